"""Judge metrics by the gates: a sentence for each condition that failed or could not be judged."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.quality import intervals
from pipeline.settings.gates import (
    LAST_BLESSED,
    OF_BASELINES,
    AnyGate,
    BeatsBaseline,
    Evaluation,
    FairnessGate,
    Gate,
    SliceGate,
)
from pipeline.settings.tasks import METRICS, TASKS

Slices = Mapping[str, Mapping[str, float]]
OVERALL = "overall"
# Exit codes of the runners: model pushed, run failed, model not blessed.
PUSHED, FAILED, NOT_BLESSED = 0, 1, 3


@dataclass(frozen=True)
class GateResult:
    """Result of the gates for a model, in sentences."""

    blessed: bool
    failed: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()  # conditions that were not judged, or that only chance may have broken
    notes: tuple[str, ...] = ()  # other facts, such as the metrics of the baseline
    warnings: tuple[str, ...] = ()  # needed to trust the result, such as a baseline that could not be used
    unjudged: tuple[str, ...] = ()  # gates, as "auc by carrier", of which no slice could be judged

    def to_json(self) -> str:
        """Return the result as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> "GateResult":
        """Return the result that ``to_json`` wrote."""
        fields = json.loads(text)
        return cls(fields.pop("blessed"), **{name: tuple(sentences) for name, sentences in fields.items()})


def judge(
    settings: Evaluation,
    candidate: Slices,
    baseline: Slices | None,
    notes: tuple[str, ...] = (),
    simple_models: Slices | None = None,
    warnings: tuple[str, ...] = (),
    refused: bool = False,
) -> GateResult:
    """Judge the metrics of a model by the gates.

    Metrics are those of ``tfma_config.read_metrics``. Without a baseline, the model to compare with, ``max_drop`` is
    ignored; ``simple_models`` are those of ``gates.BASELINES``. Of a model that ModelCheck has ``refused``, no other
    cause of bad metrics is supposed.
    """
    judging = _Judge(settings, candidate, baseline)
    unjudged = []
    for gate in settings.gates:
        if isinstance(gate, BeatsBaseline):
            judging.judge_against(gate, simple_models or {})
            continue
        slices = judging.slices_of(gate)
        if isinstance(gate, FairnessGate):
            judged = [judging.judge_gap(gate, slices)]
        else:
            judged = [judging.judge_slice(gate, name) for name in slices]
        if slices and not any(judged) and not isinstance(gate, Gate):
            unjudged.append(f"{gate.metric} by {gate.by}")
    warnings += tuple(
        f"the gate on {name} could not be judged in any slice and has held nothing back; min_examples may be too high "
        "for this test split"
        for name in unjudged
    )
    warnings += _turned_over((baseline or {}).get(OVERALL, {}), simple_models or {})
    if not refused:
        warnings += _worse_than_constant(candidate.get(OVERALL, {}), simple_models or {})
        notes += _behind_baselines(candidate.get(OVERALL, {}), simple_models or {})
    failed, passed_over = tuple(judging.failed), tuple(judging.passed_over)
    return GateResult(not failed, failed, passed_over, notes, warnings, tuple(unjudged))


def _behind_baselines(overall: Mapping[str, float], simple_models: Slices) -> tuple[str, ...]:
    """Return that a model may have learnt nothing, or that a simple one is better by more than chance."""
    metric, value, worst, best = _metric_of_baselines(overall, simple_models)
    if not metric:
        return ()
    direction = METRICS[metric].direction
    others = {name: values[metric] for name, values in simple_models.items() if metric in values}
    if direction * best < direction * others["constant"]:
        return ()  # a warning
    ahead = max(others, key=lambda name: direction * others[name])
    is_ahead = direction * others[ahead] > direction * best
    if direction * worst <= direction * others["constant"]:
        remedy = "look for columns that say more about the label"
        if is_ahead:
            with_same = f"the baseline {ahead!r} has {others[ahead]:.4f} with the same columns"
            remedy = f"{with_same}: train longer or at another learning rate"
        return (
            f"nothing shows that the model has learnt: {metric} on all rows is {value}, and the same answer for every "
            f"row has {others['constant']:.4f}; {remedy}",
        )
    if not is_ahead:
        return ()
    return (
        f"the baseline {ahead!r} is better: {metric} on all rows is {value}, and it has {others[ahead]:.4f}; search "
        'for better hyperparameters, or try others of training.members, "network", "trees" and "both"; '
        f'BeatsBaseline("{metric}", than="{ahead}") keeps such a model back',
    )


def _worse_than_constant(overall: Mapping[str, float], simple_models: Slices) -> tuple[str, ...]:
    """Return that a model is worse than a constant by more than chance: a lack of information does not explain that."""
    metric, value, _, best = _metric_of_baselines(overall, simple_models)
    if not metric or METRICS[metric].direction * (best - simple_models["constant"][metric]) >= 0:
        return ()
    cause = (
        "look whether run_fn or the signature that it exports numbers the classes in another order than label.classes"
        if metric in ("auc", "auc_precision_recall", "accuracy", "log_loss")
        else "look whether the signature that run_fn exports answers on the scale of the label, and train longer"
    )
    return (
        f"the model is worse than the same answer for every row: {metric} on all rows is {value}, and that has "
        f"{simple_models['constant'][metric]:.4f}; {cause}",
    )


def _turned_over(before: Mapping[str, float], simple_models: Slices) -> tuple[str, ...]:
    """Return that the earlier model is worse than a constant on these rows, by more than chance."""
    metric, value, _, best = _metric_of_baselines(before, simple_models)
    if not metric or METRICS[metric].direction * (best - simple_models["constant"][metric]) >= 0:
        return ()
    return (
        f"the earlier model is worse on these rows than the same answer for every row: {metric} {value}, and that has "
        f"{simple_models['constant'][metric]:.4f}; the label, or what the columns say of it, may have turned over: "
        "look at the data before this model is used",
    )


def _metric_of_baselines(overall: Mapping[str, float], simple_models: Slices) -> tuple[str, str, float, float]:
    """Return a metric that the constant has too, its value in words, and its worst and best likely values; or ""."""
    metric = next((name for name in OF_BASELINES if name in overall and name in simple_models.get("constant", {})), "")
    within = intervals.interval(metric, overall, 0.95) if metric else None
    if not within:
        return "", "", 0.0, 0.0
    worst, best = within if METRICS[metric].direction > 0 else within[::-1]
    return metric, f"{overall[metric]:.4f} ({_examples(overall, within, 0.95)})", worst, best


@dataclass
class _Judge:
    """Metrics, and the sentences about them."""

    settings: Evaluation
    candidate: Slices
    baseline: Slices | None
    failed: list[str] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)

    def judge_against(self, gate: BeatsBaseline, simple_models: Slices) -> None:
        """Judge whether the model is better than a simple one."""
        if not self._can_judge(gate, OVERALL):
            return
        value, other = self.candidate[OVERALL][gate.metric], simple_models.get(gate.than, {}).get(gate.metric)
        if other is None:
            measured = ", ".join(simple_models) or "none"
            self.failed.append(f"{gate.metric}: there is no baseline {gate.than!r} on such data, measured: {measured}")
            return
        gain = METRICS[gate.metric].direction * (value - other)
        if gain <= gate.margin:
            by = f" by more than {gate.margin:g}" if gate.margin else ""
            beaten = f"does not beat the {other:.4f} of the baseline {gate.than!r}{by}"
            self.failed.append(f"{gate.metric} on all rows is {value:.4f} and {beaten}")

    def slices_of(self, gate: Gate | SliceGate | FairnessGate) -> list[str]:
        """Return the slices of a gate; the gate fails if there are none."""
        if isinstance(gate, Gate):
            return [OVERALL]
        if "=" in gate.by:
            slices = [gate.by] if gate.by in self.candidate else []
        else:
            slices = sorted(name for name in self.candidate if name.startswith(f"{gate.by}="))
        if not slices:
            self.failed.append(f"{gate.metric} by {gate.by}: the test split has no such rows")
        return slices

    def judge_slice(self, gate: Gate | SliceGate, name: str) -> bool:
        """Judge floor, ceiling and change against the baseline in a slice; return whether it could be."""
        if not self._can_judge(gate, name):
            return False
        values, direction = self.candidate[name], METRICS[gate.metric].direction
        value, subject = values[gate.metric], f"{gate.metric} on {_where(name)}"
        confidence = gate.confidence if isinstance(gate, SliceGate) else 0.0
        within = intervals.interval(gate.metric, values, confidence)
        count = _examples(values, within, confidence)
        if gate.floor is not None and value < gate.floor:
            chance = bool(within and within[1] >= gate.floor)
            self._add(f"{subject} is {value:.4f}, floor {gate.floor:g} ({count})", chance)
        if gate.ceiling is not None and value > gate.ceiling:
            chance = bool(within and within[0] <= gate.ceiling)
            self._add(f"{subject} is {value:.4f}, ceiling {gate.ceiling:g} ({count})", chance)
        before = (self.baseline or {}).get(name, {}).get(gate.metric, math.nan)
        if gate.max_drop is None or not direction or not math.isfinite(before):
            return True
        drop = direction * (before - value)
        if drop > gate.max_drop:
            chance = False
            before_within = self.baseline and intervals.interval(gate.metric, self.baseline[name], confidence)
            if within and before_within:
                high, low = ((before, before_within), (value, within))[::direction]
                chance = intervals.difference(*high, *low)[0] <= gate.max_drop
            wanted = self.settings.baseline
            baseline = "the last blessed model" if wanted == LAST_BLESSED else f"the baseline {wanted}"
            self._add(
                f"{subject} is {value:.4f}, {drop:.4f} worse than the {before:.4f} of {baseline}, "
                f"at most {gate.max_drop:g} ({count})",
                chance,
            )
        return True

    def judge_gap(self, gate: FairnessGate, slices: list[str]) -> bool:
        """Judge the largest difference between two of the slices; return whether it could be."""
        usable = [name for name in slices if self._can_judge(gate, name)]
        if len(usable) < 2:
            self.passed_over.append(f"gap of {gate.metric} by {gate.by} was not judged: fewer than two values are left")
            return False
        usable.sort(key=lambda name: self.candidate[name][gate.metric])
        low, high = self.candidate[usable[0]], self.candidate[usable[-1]]
        gap = high[gate.metric] - low[gate.metric]
        if gap <= gate.max_gap:
            return True
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
        return True

    def _can_judge(self, gate: AnyGate, name: str) -> bool:
        """Return whether a slice has enough examples and a value of the metric; if not, add the reason once."""
        values = self.candidate[name]
        subject, count = f"{gate.metric} on {_where(name)}", values.get("example_count", 0)
        if isinstance(gate, SliceGate | FairnessGate) and count < gate.min_examples:
            sentence = f"{subject} was not judged: {count:,.0f} examples, minimum {gate.min_examples:,}"
        elif not math.isfinite(values.get(gate.metric, math.nan)):
            sentence = f"{subject} is undefined {_reason_undefined(gate.metric, values)} ({_examples(values)})"
        else:
            return True
        sentences = self.failed if name == OVERALL else self.passed_over
        if sentence not in sentences:
            sentences.append(sentence)
        return False

    def _add(self, sentence: str, chance: bool) -> None:
        if chance:
            self.passed_over.append(f"{sentence}; that may be chance")
        else:
            self.failed.append(sentence)


def _reason_undefined(metric: str, values: Mapping[str, float]) -> str:
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
    """Return the result of a run for other programs; the outcome of a failed run has "failed" and "failed_step"."""
    defaults: dict[str, Any] = {"blessed": False, "pushed_to": None, "failed": [], "failed_step": None}
    return {"run": run_id, "exit_code": exit_code, **defaults, **outcome}
