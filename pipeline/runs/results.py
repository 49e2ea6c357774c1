"""Read the results of a run: metrics, verdict, and the folder of the model."""

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import filesystem
from pipeline.components.artifacts import WARNING, read_findings
from pipeline.errors import UserError
from pipeline.model.versions import changed_since_push, was_withdrawn
from pipeline.quality.tfma_config import read_metrics
from pipeline.quality.verdict import NOT_BLESSED, PUSHED
from pipeline.runs.step import Step
from pipeline.settings.repository import shown


@dataclass(frozen=True)
class Results:
    """The outcome of a run."""

    metrics: dict[str, dict[str, float]]  # on the test split, by slice ("overall" first), then by metric
    verdict: dict[str, Any]  # as the step Verdict writes it

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
        """Return the metrics of simple models on the test split, by model."""
        return self.verdict.get("baselines", {})

    @property
    def threshold(self) -> float | None:
        """Return the probability from which a row counted as the second of two classes; None for other labels."""
        return self.verdict.get("threshold")

    @property
    def pushed_to(self) -> str | None:
        """Return the folder of the pushed model; None when it was not pushed."""
        return self.verdict["pushed_to"]


def outcome_of(steps: Mapping[str, Step]) -> Results:
    """Return the results from the artifacts of the last steps."""
    return Results(metrics=read_metrics(steps["Evaluator"].outputs["evaluation"][0].uri), verdict=_verdict_of(steps))


def refusals_of(steps: Iterable[Step]) -> list[str]:
    """Return why the steps so far have refused the model: it may be why a later step fails."""
    reasons = {
        step.name: artifact.get_string_custom_property("reasons")
        for step in steps
        for artifact in step.outputs.get("blessing", [])
    }
    if "Evaluator" in reasons:  # it repeats those of ModelCheck
        return list(filter(None, [reasons["Evaluator"]]))
    return [f"model check: {reason}" for reason in reasons.values() if reason]


def read_results(steps: Mapping[str, Step]) -> Results:
    """Return the results of a run on this machine.

    Raises:
        UserError: the Pusher is cached, and its model was withdrawn, deleted or changed since.
    """
    if not (pushed_to := _verdict_of(steps)["pushed_to"]):
        return outcome_of(steps)
    if was_withdrawn(Path(pushed_to)):
        raise UserError(
            f"the model pushed to {pushed_to} was taken back by a rollback, and nothing has changed that would push "
            "another; change what was wrong with it, or serve it again: python -m pipeline serve --restore --model "
            f"{shlex.quote(shown(Path(pushed_to).parent))}"
        )
    original = steps["Pusher"].outputs["pushed_model"][0].uri
    if not Path(pushed_to).is_dir():
        raise UserError(
            f"the model pushed to {pushed_to} is no longer there, and nothing has changed that would push it again; "
            f"copy it from {original}, or start in a new folder with --output"
        )
    if changed := changed_since_push(pushed_to):
        raise UserError(
            f"the model pushed to {pushed_to} has changed since: {changed}; nothing else has changed that would push "
            f"it again. Copy it from {original}, or start in a new folder with --output"
        )
    return outcome_of(steps)


def _verdict_of(steps: Mapping[str, Step]) -> dict[str, Any]:
    return json.loads(filesystem.read_text(steps["Verdict"].outputs["verdict"][0].uri))


def warnings_of(step: Step) -> list[str]:
    """Return the warnings of a step about the data and the label."""
    found = [finding for artifact in step.outputs.get("anomalies", []) for finding in read_findings(artifact.uri)]
    of_label = [graph.get_string_custom_property(WARNING) for graph in step.outputs.get("transform_graph", [])]
    return [*(str(finding) for finding in found if finding.severity == "warn"), *filter(None, of_label)]
