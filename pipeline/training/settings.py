"""Settings of one training job, which the graph makes of a config and ``fn_args.custom_config`` carries."""

from dataclasses import dataclass, fields, replace
from typing import Any

from pipeline.settings import checks
from pipeline.settings.config import PipelineConfig, Tuning
from pipeline.settings.gates import Threshold
from pipeline.settings.image_data import Images
from pipeline.settings.training import Training

# Not a part of a search, so that a change of one does not start the search again.
NOT_SEARCHED = ("members", "calibration", "explain_rows", "warm_start", "profile", "threshold", "coverage", "images")


@dataclass(frozen=True, kw_only=True)
class Settings(Training):
    """``Training`` with the objective decided, and what a training must know of the rest of the config.

    Attributes:
        weight: Name of the weights of rows among them, of mean 1 in the train split; None: all count the same.
        search_rows: About the most rows that a trial of a search learns from; None: all.
        threshold: Of two classes, the probability from which the answer is the second, or how it is chosen.
        coverage: Share of the rows whose label intervals or sets are to contain; None: there are none.
        weights_fingerprint: Of ``backbone_weights``, so that other weights in the same place train anew.
        spin: Whether the training ends with the network, and nothing is made of it and exported.
    """

    label: str
    objective: str
    weight: str | None = None
    trials: int = 1
    minutes: float | None = None
    search_rows: int | None = None
    classes: tuple[str, ...] = ()
    threshold: Threshold = 0.5
    coverage: float | None = None
    images: Images | None = None
    weights_fingerprint: str | None = None
    spin: bool = False

    def __post_init__(self) -> None:
        """Check nothing: the config was checked, and a trial may have fewer epochs than the warm-up."""

    @classmethod
    def of_config(cls, config: PipelineConfig, weights_fingerprint: str | None = None) -> "Settings":
        """Return the settings of the Trainer; steps, which are for stock modules, travel as TFX's TrainArgs."""
        training = replace(config.training, objective=config.objective, train_steps=None, eval_steps=None)
        return cls(
            **vars(training),
            label=config.label.name,
            weight=config.label.weight,
            classes=config.label.classes,
            threshold=config.evaluation.threshold,
            coverage=config.evaluation.coverage,
            images=config.data.images,
            weights_fingerprint=weights_fingerprint,
        )

    @classmethod
    def of(cls, fn_args: Any) -> "Settings":
        """Return the settings in ``fn_args.custom_config``, which JSON has turned into plain values."""
        return checks.parse(cls, fn_args.custom_config)

    def of_search(self, tuning: Tuning) -> "Settings":
        """Return the settings of the Tuner, without those that a search does not depend on."""
        unset: dict[str, Any] = {field.name: field.default for field in fields(self) if field.name in NOT_SEARCHED}
        if not self.class_weight:
            unset["classes"] = ()
        limited = replace(self, epochs=tuning.epochs, trials=tuning.trials, minutes=tuning.minutes)
        return replace(limited, search_rows=tuning.rows, **unset)
