"""Blessed or not, and why: one sentence for each condition that failed or could not be judged."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.evaluation import intervals
from pipeline.settings.gates import AnyGate, Evaluation, FairnessGate, Gate, SliceGate
from pipeline.settings.tasks import METRICS, TASKS

Slices = Mapping[str, Mapping[str, float]]
OVERALL = "overall"
# Exit codes of the runners: the model was pushed, the run failed, the model was not blessed.
PUSHED, FAILED, NOT_BLESSED = 0, 1, 3


@dataclass(frozen=True)
class Verdict:
    """What the gates say about a model.

    Attributes:
        blessed: Whether every gate held.
        failed: A sentence for each condition that did not.
        passed_over: A sentence for each condition that was not judged, or that only chance may have broken.
        notes: What else a person should know, such as a baseline that could not be used.
    """

    blessed: bool
    failed: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """As JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Verdict:
        """Reads what ``to_json`` wrote."""
        read = json.loads(text)
        return cls(read["blessed"], *(tuple(read[name]) for name in ("failed", "passed_over", "notes")))


def judge(settings: Evaluation, candidate: Slices, baseline: Slices | None, notes: tuple[str, ...] = ()) -> Verdict:
    """Holds the metrics of a model against the gates.

    Args:
        settings: The gates.
        candidate: Metrics by slice, "overall" or "carrier=MQ", then by name, with the counts of the confusion matrix;
            those that are undefined in a slice are left out or NaN.
        baseline: The same of the model to compare with, on the same rows; None leaves ``max_drop`` aside.
        notes: For the verdict.
    """
    bench = _Bench(settings, candidate, baseline)
    for gate in settings.gates:
        if isinstance(gate, FairnessGate):
            bench.judge_gap(gate)
        else:
            for name in bench.slices_of(gate):
                bench.judge_slice(gate, name)
    return Verdict(not bench.failed, tuple(bench.failed), tuple(bench.passed_over), notes)


class _Bench:
    """The metrics, and the sentences so far."""

    def __init__(self, settings: Evaluation, candidate: Slices, baseline: Slices | None):
        self.settings = settings
        self.candidate = candidate
        self.baseline = baseline
        self.failed: list[str] = []
        self.passed_over: list[str] = []

    def slices_of(self, gate: AnyGate) -> list[str]:
        """The slices that a gate is about; says so when there are none."""
        if isinstance(gate, Gate):
            return [OVERALL]
        if "=" in gate.by:
            found = [gate.by] if gate.by in self.candidate else []
        else:
            found = sorted(name for name in self.candidate if name.startswith(f"{gate.by}="))
        if not found:
            self.failed.append(f"{gate.metric} by {gate.by}: the test split has no such rows")
        return found

    def judge_slice(self, gate: Gate | SliceGate, name: str) -> None:
        """Floor, ceiling and change against the baseline in one slice."""
        values = self.candidate[name]
        value = values.get(gate.metric, math.nan)
        what = f"{gate.metric} on {_where(name)}"
        if isinstance(gate, SliceGate) and self._too_few(gate, name, what):
            return
        if not math.isfinite(value):
            sentence = f"{what} is undefined {_want(gate.metric, values)} ({_examples(values)})"
            (self.failed if name == OVERALL else self.passed_over).append(sentence)
            return
        confidence = gate.confidence if isinstance(gate, SliceGate) else 0.0
        within = intervals.interval(gate.metric, values, confidence)
        count = _examples(values, within, confidence)
        if gate.floor is not None and value < gate.floor:
            limit = f"floor {gate.floor:g}"
            self._add(f"{what} is {value:.4f}, {limit} ({count})", bool(within and within[1] >= gate.floor))
        if gate.ceiling is not None and value > gate.ceiling:
            limit = f"ceiling {gate.ceiling:g}"
            self._add(f"{what} is {value:.4f}, {limit} ({count})", bool(within and within[0] <= gate.ceiling))
        before = (self.baseline or {}).get(name, {}).get(gate.metric, math.nan)
        if gate.max_drop is None or not METRICS[gate.metric].direction or not math.isfinite(before):
            return
        drop = METRICS[gate.metric].direction * (before - value)
        if drop > gate.max_drop:
            chance = False
            before_within = self.baseline and intervals.interval(gate.metric, self.baseline[name], confidence)
            if within and before_within:
                best, worst = (before, before_within), (value, within)
                if METRICS[gate.metric].direction < 0:
                    best, worst = worst, best
                chance = intervals.difference(*best, *worst)[0] <= gate.max_drop
            self._add(
                f"{what} is {value:.4f}, {drop:.4f} worse than the {before:.4f} of {self._baseline_name()}, "
                f"at most {gate.max_drop:g} ({count})",
                chance,
            )

    def judge_gap(self, gate: FairnessGate) -> None:
        """The largest difference between two slices."""
        usable = []
        for name in self.slices_of(gate):
            values = self.candidate[name]
            what = f"{gate.metric} on {_where(name)}"
            if self._too_few(gate, name, what):
                continue
            if not math.isfinite(values.get(gate.metric, math.nan)):
                self.passed_over.append(f"{what} is undefined {_want(gate.metric, values)} ({_examples(values)})")
                continue
            usable.append(name)
        if len(usable) < 2:
            self.passed_over.append(f"gap of {gate.metric} by {gate.by} was not judged: fewer than two values are left")
            return
        usable.sort(key=lambda name: self.candidate[name][gate.metric])
        low, high = self.candidate[usable[0]], self.candidate[usable[-1]]
        gap = high[gate.metric] - low[gate.metric]
        if gap <= gate.max_gap:
            return
        chance = False
        ranges = [intervals.interval(gate.metric, values, gate.confidence) for values in (high, low)]
        if ranges[0] and ranges[1]:
            chance = intervals.difference(high[gate.metric], ranges[0], low[gate.metric], ranges[1])[0] <= gate.max_gap
        self._add(
            f"gap of {gate.metric} by {gate.by} is {gap:.4f}, at most {gate.max_gap:g}: "
            f"{_where(usable[-1])} has {high[gate.metric]:.4f} ({_examples(high)}), "
            f"{_where(usable[0])} {low[gate.metric]:.4f} ({_examples(low)})",
            chance,
        )

    def _too_few(self, gate: SliceGate | FairnessGate, name: str, what: str) -> bool:
        count = self.candidate[name].get("example_count", 0)
        if count >= gate.min_examples:
            return False
        self.passed_over.append(f"{what} was not judged: {count:,.0f} examples, minimum {gate.min_examples:,}")
        return True

    def _add(self, sentence: str, chance: bool) -> None:
        if chance:
            self.passed_over.append(f"{sentence}; that may be chance")
        else:
            self.failed.append(sentence)

    def _baseline_name(self) -> str:
        chosen = self.settings.baseline
        return "the last blessed model" if chosen == "last blessed" else f"the baseline {chosen}"


def _want(metric: str, values: Mapping[str, float]) -> str:
    """What a slice lacks for a metric to be defined."""
    if metric not in TASKS["binary"].metrics:
        return "for want of rows that differ"
    positives = values.get("true_positives", 0) + values.get("false_negatives", 0)
    negatives = values.get("true_negatives", 0) + values.get("false_positives", 0)
    if metric == "precision" and positives and negatives:
        return "for want of rows that the model takes for the second class"
    return "for want of rows of both classes"


def _where(name: str) -> str:
    return "all rows" if name == OVERALL else name


def _examples(values: Mapping[str, float], within: intervals.Interval | None = None, confidence: float = 0.0) -> str:
    text = f"{values.get('example_count', 0):,.0f} examples"
    if within:
        text += f", {100 * confidence:g} % interval {within[0]:.4f} to {within[1]:.4f}"
    return text


def whole_outcome(run_id: str, exit_code: int, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """What came of a run for programs, however it ended.

    Args:
        run_id: Name of the run.
        exit_code: Of the runner.
        outcome: What the step Verdict wrote; of a failed run "failed" alone, the reasons.
    """
    nothing: dict[str, Any] = {"blessed": False, "pushed_to": None, "failed": []}
    return {"run": run_id, "exit_code": exit_code, **nothing, **outcome}


def write_outcome(file: Path, run_id: str, exit_code: int, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Writes ``whole_outcome`` to a file, in place of what is there, and returns it."""
    whole = whole_outcome(run_id, exit_code, outcome)
    file.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    return whole
