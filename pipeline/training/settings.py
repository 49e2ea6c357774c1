"""Settings of one training job, read from ``fn_args.custom_config``."""

from dataclasses import dataclass
from typing import Any

from pipeline.settings.gates import AtLeast, Costs, Threshold
from pipeline.settings.training import Training


@dataclass(frozen=True, kw_only=True)
class Settings(Training):
    """``Training``, with the objective decided, and what a training must know of the rest of the config.

    Attributes:
        label: Name of the label among the transformed features.
        weight: Name of the weights of rows among them, of mean 1 in the train split; None: all count the same.
        trials: Most models tried by a search.
        minutes: Time of a search; None: as long as it takes.
        search_rows: About the most rows that a trial of a search learns from; None: all.
        classes: Words for the classes, in the order of their numbers; empty where the label is a number.
        threshold: Of two classes, the probability from which the answer is the second, or how it is chosen.
        coverage: Share of the rows whose label intervals or sets are to contain; None: there are none.
        images: ``pipeline.settings.image_data.Images``, where one of the raw features is an image.
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
    images: dict[str, Any] | None = None
    spin: bool = False

    def __post_init__(self, profile_steps: tuple[int, int] | None, recompute: bool | None) -> None:
        """Check nothing: the config was checked, and a trial may have fewer epochs than the warm-up."""

    @classmethod
    def of(cls, fn_args: Any) -> "Settings":
        """Return the settings that ``pipeline.graph`` put there, as JSON has them: without tuples."""
        given: dict[str, Any] = fn_args.custom_config or {}
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        threshold = given.get("threshold")
        if isinstance(threshold, dict):
            given["threshold"] = Costs(**threshold) if "false_positive" in threshold else AtLeast(**threshold)
        given.pop("weights_fingerprint", None)  # only for the cache of steps
        return cls(**given)
