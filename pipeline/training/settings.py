"""What the pipeline tells a training job, read from ``fn_args.custom_config``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """Settings of one training; ``pipeline.config`` explains each and holds the defaults.

    Attributes:
        label: Name of the label among the transformed features.
        objective: Metric of the compiled model that early stopping and the search judge by, on the eval split.
        epochs: Most passes over the train split.
        batch_size: Examples per replica and step.
        patience: Epochs without a better objective before training stops.
        schedule: "cosine" or "constant".
        warmup_epochs: Epochs, or part of one, over which a cosine schedule rises.
        strategy: Name of a distribution strategy, or "auto".
        seed: Of weights, dropout and shuffling.
        trials: Models tried by a search.
        classes: What labels 0 and 1 mean in words.
        threshold: Probability from which the answer is class 1.
    """

    label: str
    objective: str
    epochs: int
    batch_size: int
    patience: int
    schedule: str
    warmup_epochs: float
    strategy: str
    seed: int
    trials: int = 1
    classes: tuple[str, ...] = ()
    threshold: float = 0.5

    @classmethod
    def of(cls, fn_args: Any) -> Settings:
        """Reads the settings that ``pipeline.create_pipeline`` put there; "code" is only for the cache key."""
        given = {name: value for name, value in (fn_args.custom_config or {}).items() if name != "code"}
        return cls(**{**given, "classes": tuple(given.get("classes", ()))})
