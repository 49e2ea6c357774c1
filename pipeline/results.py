"""What a run came to: metrics, verdict, and where the model lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import UserError
from pipeline.evaluation import read_metrics, read_verdict
from pipeline.local import Step


@dataclass(frozen=True)
class Results:
    """The outcome of a run.

    Attributes:
        metrics: On the test split, by slice ("overall" first), then by metric.
        blessed: Whether every gate held.
        reasons: One sentence for each gate that did not hold.
        pushed_to: Folder of the pushed model; None when it was not pushed.
    """

    metrics: dict[str, dict[str, float]]
    blessed: bool
    reasons: list[str]
    pushed_to: str | None


def read_results(steps: Mapping[str, Step]) -> Results:
    """Reads the outcome from the artifacts of the Evaluator and the Pusher.

    Raises:
        UserError: the Pusher is cached, and the model it pushed then has been deleted since.
    """
    evaluation = steps["Evaluator"].outputs["evaluation"][0].uri
    blessed, reasons = read_verdict(evaluation)
    pushed_model = steps["Pusher"].outputs["pushed_model"][0]
    pushed_to = None
    if pushed_model.get_int_custom_property("pushed"):
        pushed_to = pushed_model.get_string_custom_property("pushed_destination")
        if not Path(pushed_to).is_dir():
            raise UserError(
                f"the model pushed to {pushed_to} is no longer there, and nothing has changed that would push it "
                f"again; copy it from {pushed_model.uri}, or start in a new folder with --output"
            )
    return Results(metrics=read_metrics(evaluation), blessed=blessed, reasons=reasons, pushed_to=pushed_to)
