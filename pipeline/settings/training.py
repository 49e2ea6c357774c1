"""Settings of a training; a part of ``PipelineConfig``, and what ``pipeline.training`` reads."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pipeline.settings.checks import ConfigError, Count, Rule, check_settings, number

Schedule = Literal["cosine", "constant"]
StrategyName = Literal["auto", "one_device", "mirrored", "multi_worker", "tpu"]
Precision = Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"]
Cache = Literal["auto", "memory", "disk", "none"]
Members = Literal["network", "trees", "both"]
Calibration = Literal["none", "sigmoid", "isotonic", "temperature"]
ClassWeight = Literal["balanced"]
Norm = Annotated[float, number("above 0, or None to clip nothing", lambda value: value > 0)]


def _is_profile(value: Any) -> bool:
    is_range = isinstance(value, tuple) and len(value) == 2 and all(type(step) is int for step in value)
    return is_range and 0 <= value[0] < value[1]


Profile = Annotated[
    tuple[int, int],
    Rule("the first step to trace and the one after the last, such as (100, 110), or None", _is_profile),
]


@dataclass(frozen=True)
class Training:
    """Settings of a training. One step takes batch_size x replicas x accumulate examples.

    Attributes:
        epochs: Most passes over the train split.
        batch_size: Examples per replica that are computed together, halved where they do not fit into memory.
        accumulate: Batches whose gradients are summed for one step.
        patience: Epochs without a better eval objective before training stops; the best weights are restored.
        schedule: "cosine" warms the learning rate up over ``warmup_epochs`` and lowers it to 5 % of the model's;
            "constant" leaves it as it is.
        warmup_epochs: May be a fraction.
        scale_learning_rate: Multiply the learning rate by the number of replicas, reached at the end of the warm-up.
        clip_norm: Largest norm of all gradients together; None clips nothing.
        objective: Metric of the compiled model that early stopping and the search judge by; of losses and errors, such
            as "rmse", lower is better. None: "auc", "loss" or "rmse", as the label needs.
        strategy: "auto" takes the first that applies: "multi_worker" when TF_CONFIG names several workers, "tpu" when
            the environment names one, "mirrored" with two or more GPUs, "one_device".
        precision: Keras dtype policy; "auto" is "mixed_bfloat16" on TPUs and "float32" elsewhere.
        cache: Where parsed examples are kept between epochs; "auto": the first of memory, disk and none that they fit.
        seed: Of initial weights, dropout and order; None takes another one in every run.
        steps_per_call: Steps that run without Python in between; callbacks see that many as one batch.
        checkpoint_steps: Steps between checkpoints within an epoch; there is one after every epoch. None: only those.
        profile: The first step to trace for TensorBoard and the one after the last, such as (100, 110); None traces
            none.
        sequence_length: Values kept of a feature whose number varies, such as the words of a text; fewer are filled up.
        backbone_weights: For ``training.backbone``: "imagenet", a .weights.h5 file, or the folder of a pushed model,
            here or gs://. Others make the Tuner and the Trainer run again.
        head_epochs: Epochs in which a backbone keeps its weights and only the layers after it learn.
        fine_tuning_rate: Factor of the learning rate after these.
        members: What answers: "network", the module file's model; "trees", gradient boosting on its numbers and
            categories, without lists and images; "both", their mean, weighed by the eval split. The search is for the
            network.
        calibration: Of the probabilities in the served model, fitted on the eval split: "sigmoid" or "isotonic" of two
            classes, "temperature" of any number.
        class_weight: "balanced" makes each class count the same in the loss on train and eval, not in metrics and
            gates. Probabilities then differ from the data's. None: every row counts the same.
        explain_rows: Rows of the train split that explanations begin from: more are more certain and slower. They are
            readable in the pushed model; 0 leaves ``explain`` out. Transform keeps 128 to 255 of each file. From 33
            columns on 2,048 over their number are taken, at least 16.
        warm_start: Start from the weights of the last blessed model. Each new one makes the Trainer run again.
        train_steps: ``fn_args.train_steps``, for module files of stock TFX; None: one pass over the train split.
        eval_steps: ``fn_args.eval_steps``, the same of the eval split.
    """

    epochs: Count = 10
    batch_size: Count = 1024
    accumulate: Count = 1
    patience: Count = 3
    schedule: Schedule = "cosine"
    warmup_epochs: float = 0.5
    scale_learning_rate: bool = True
    clip_norm: Norm | None = None
    objective: str | None = None
    strategy: StrategyName = "auto"
    precision: Precision = "auto"
    cache: Cache = "auto"
    seed: int | None = 1
    steps_per_call: Count = 32
    checkpoint_steps: Count | None = 1000
    profile: Profile | None = None
    sequence_length: Count = 128
    backbone_weights: str | None = None
    head_epochs: Annotated[int, number("0 or more", lambda value: value >= 0)] = 0
    fine_tuning_rate: Annotated[float, number("above 0, at most 1", lambda value: 0 < value <= 1)] = 0.1
    members: Members = "network"
    calibration: Calibration = "none"
    class_weight: ClassWeight | None = None
    explain_rows: Annotated[int, number("0, or 2 or more", lambda value: value >= 0 and value != 1)] = 64
    warm_start: bool = False
    train_steps: Count | None = None
    eval_steps: Count | None = None

    def __post_init__(self) -> None:
        check_settings("training.", self)
        if self.class_weight and self.calibration == "temperature":
            raise ConfigError(
                'training.calibration "temperature" cannot undo what training.class_weight "balanced" does to '
                'probabilities; leave one of them out, or of two classes take "sigmoid" or "isotonic"'
            )
        if not 0 <= self.warmup_epochs <= self.epochs:
            raise ConfigError(
                f"training.warmup_epochs must be between 0 and training.epochs, which is {self.epochs}, "
                f"got {self.warmup_epochs!r}"
            )
        if self.head_epochs and self.head_epochs >= self.epochs:
            raise ConfigError(
                f"training.head_epochs must be fewer than training.epochs, which is {self.epochs}, got "
                f"{self.head_epochs}"
            )
