"""Read the results of a run: metrics, verdict, and the folder of the model."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import filesystem
from pipeline.components.artifacts import read_findings
from pipeline.errors import UserError
from pipeline.evaluation.tfma_config import read_metrics
from pipeline.evaluation.verdict import NOT_BLESSED, PUSHED
from pipeline.model.versions import changed_since_push, was_withdrawn
from pipeline.runs.step import Step
from pipeline.settings.repository import shown


@dataclass(frozen=True)
class Results:
    """The outcome of a run.

    Attributes:
        metrics: On the test split, by slice ("overall" first), then by metric.
        verdict: Written by the step Verdict: "blessed", "pushed_to", "failed", "passed_over", "notes", "warnings",
            "unjudged", "threshold", "model_check", "baselines".
    """

    metrics: dict[str, dict[str, float]]
    verdict: dict[str, Any]

    @property
    def outcome(self) -> dict[str, Any]:
        """Return the verdict with the metrics on all rows, as in verdict.json."""
        return {**self.verdict, "metrics": self.metrics["overall"]}

    @property
    def exit_code(self) -> int:
        """Return the exit code of the runner."""
        return PUSHED if self.pushed_to else NOT_BLESSED

    @property
    def blessed(self) -> bool:
        """Return whether every gate held."""
        return bool(self.verdict["blessed"])

    @property
    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the metrics of simple models on the test split, by model; empty of a run before there were any."""
        found: dict[str, dict[str, float]] = self.verdict.get("baselines", {})
        return found

    @property
    def threshold(self) -> float | None:
        """Return the probability from which a row counted as the second of two classes; None of other labels."""
        threshold: float | None = self.verdict.get("threshold")
        return threshold

    @property
    def pushed_to(self) -> str | None:
        """Return the folder of the pushed model; None when it was not pushed."""
        pushed_to: str | None = self.verdict["pushed_to"]
        return pushed_to


def outcome_of(steps: Mapping[str, Step]) -> Results:
    """Return the results from the artifacts of the last steps."""
    return Results(metrics=read_metrics(steps["Evaluator"].outputs["evaluation"][0].uri), verdict=_verdict_of(steps))


def read_results(steps: Mapping[str, Step]) -> Results:
    """Return the results of a run on this machine.

    Raises:
        UserError: the Pusher is cached, and the model it pushed then has been deleted since.
    """
    pushed_to = _verdict_of(steps)["pushed_to"]
    if pushed_to and was_withdrawn(Path(pushed_to)):
        raise UserError(
            f"the model pushed to {pushed_to} was taken back by a rollback, and nothing has changed that would push "
            "another; change what was wrong with it, or serve it again: python -m pipeline serve --restore --model "
            f"{shlex.quote(shown(Path(pushed_to).parent))}"
        )
    if pushed_to and not Path(pushed_to).is_dir():
        raise UserError(
            f"the model pushed to {pushed_to} is no longer there, and nothing has changed that would push it again; "
            f"copy it from {steps['Pusher'].outputs['pushed_model'][0].uri}, or start in a new folder with --output"
        )
    if pushed_to and (changed := changed_since_push(pushed_to)):
        raise UserError(
            f"the model pushed to {pushed_to} has changed since: {changed}; nothing else has changed that would push "
            f"it again. Copy it from {steps['Pusher'].outputs['pushed_model'][0].uri}, or start in a new folder with "
            "--output"
        )
    return outcome_of(steps)


def _verdict_of(steps: Mapping[str, Step]) -> dict[str, Any]:
    return dict(json.loads(filesystem.read_text(steps["Verdict"].outputs["verdict"][0].uri)))


def warnings_of(step: Step) -> list[str]:
    """Return the findings of a step about the data that do not end the run."""
    anomalies = step.outputs.get("anomalies", [])
    return [
        str(finding) for artifact in anomalies for finding in read_findings(artifact.uri) if finding.severity == "warn"
    ]
