"""What the pipeline tells a training job, read from ``fn_args.custom_config``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """Settings of one training; ``pipeline.settings.config`` explains each and holds the defaults.

    Attributes:
        label: Name of the label among the transformed features.
        objective: Metric of the compiled model that early stopping and the search judge by, on the eval split.
        epochs: Most passes over the train split.
        batch_size: Examples per replica that are computed at once.
        patience: Epochs without a better objective before training stops.
        schedule: "cosine" or "constant".
        warmup_epochs: Epochs, or part of one, in which the learning rate rises.
        strategy: Name of a distribution strategy, or "auto".
        seed: Of weights, dropout and order; None takes another one each time.
        accumulate: Batches whose gradients are summed for one step.
        scale_learning_rate: Whether the learning rate grows with the replicas.
        clip_norm: Largest norm of all gradients together; None clips nothing.
        precision: Keras dtype policy of the model's layers, or "auto".
        cache: "auto", "memory", "disk" or "none".
        steps_per_call: Steps in one call of the compiled function.
        checkpoint_steps: Steps between checkpoints within an epoch; None saves after epochs only.
        profile_steps: First step to profile and the one after the last.
        warm_start: Whether to start from the weights of ``fn_args.base_model``.
        trials: Models tried by a search.
        classes: Words for the classes, in the order of their numbers; empty where the label is a number.
        threshold: Of two classes, the probability from which the answer is the second.
    """

    label: str
    objective: str
    epochs: int
    batch_size: int
    patience: int
    schedule: str
    warmup_epochs: float
    strategy: str
    seed: int | None
    accumulate: int = 1
    scale_learning_rate: bool = True
    clip_norm: float | None = None
    precision: str = "auto"
    cache: str = "auto"
    steps_per_call: int = 32
    checkpoint_steps: int | None = None
    profile_steps: tuple[int, int] | None = None
    warm_start: bool = False
    trials: int = 1
    classes: tuple[str, ...] = ()
    threshold: float = 0.5

    @classmethod
    def of(cls, fn_args: Any) -> Settings:
        """Reads the settings that ``pipeline.create_pipeline`` put there; "code" is only for the cache key."""
        given = {name: value for name, value in (fn_args.custom_config or {}).items() if name != "code"}
        given["classes"] = tuple(given.get("classes", ()))
        if given.get("profile_steps"):
            first, last = given["profile_steps"]
            given["profile_steps"] = (first, last)
        return cls(**given)
