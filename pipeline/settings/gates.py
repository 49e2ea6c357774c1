"""What data and a model must meet: the settings of the gates.

Frozen and checked when built, standard library only. ``pipeline.settings.config`` takes them up in ``PipelineConfig``.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from pipeline.settings.checks import ConfigError, check_choice, check_positive, check_share, listed
from pipeline.settings.tasks import METRICS

Severity = Literal["stop", "warn", "ignore"]
# What may be found in the data, and what comes of it unless the config or the schema says otherwise.
FINDINGS: dict[str, Severity] = {
    "missing_column": "stop",  # in the schema, not in the data
    "new_column": "warn",  # in the data, not in the schema; no step uses it
    "type": "stop",
    "presence": "stop",  # more rows without a value than the schema allows
    "domain": "stop",  # a text that the schema does not list
    "range": "stop",
    "value_count": "stop",  # values per row
    "label": "stop",  # a label that is none of the classes
    "label_share": "stop",
    "skew": "stop",  # eval or test against train, past the schema's skew_comparator
    "drift": "stop",  # against the data of the model pushed last, past the schema's drift_comparator
    "leak": "stop",  # a column that alone predicts the label
    "constant": "warn",  # one value in the whole train split
    "shared_rows": "stop",  # rows of eval or test that are in another split too
    "repeated_rows": "warn",  # rows that are in a split more than once
    "other": "stop",  # anything else that TensorFlow Data Validation reports
}
LAST_BLESSED, NO_BASELINE = "last blessed", "none"


@dataclass(frozen=True)
class DataChecks:
    """When data stops a run. Types, domains, ranges, presence, skew and drift limits stand in the schema.

    Attributes:
        severity: What comes of a kind of finding, where it is not the one in ``FINDINGS``. For one column the schema
            says it, which counts more: ``annotation { tag: "constant: ignore" }``.
        label_share: Lowest and highest share of the second of two classes in a split. Of more classes, and of a number,
            it only must not be the same in every row.
        max_shared_rows: Most rows of eval or test, as a share, that may be in an earlier split too.
        max_repeated_rows: Most rows of a split, as a share, that may repeat another one.
        max_column_auc: Highest AUC of a column taken alone; when its whole 95 % confidence interval lies above, the
            column is taken to contain a leaked label. Of several classes, the mean of each class against the others; of
            a number, the squared correlation.
    """

    severity: Mapping[str, Severity] = field(default_factory=dict)
    label_share: tuple[float, float] = (0.01, 0.99)
    max_shared_rows: float = 0.01
    max_repeated_rows: float = 0.05
    max_column_auc: float = 0.98

    def __post_init__(self) -> None:
        unknown = set(self.severity) - set(FINDINGS)
        if unknown:
            raise ConfigError(f"data_checks.severity: {listed(unknown)} is no finding; there are {', '.join(FINDINGS)}")
        for name, severity in self.severity.items():
            check_choice(f"data_checks.severity[{name!r}]", severity, get_args(Severity))
        for name in ("max_shared_rows", "max_repeated_rows", "max_column_auc"):
            check_share(f"data_checks.{name}", getattr(self, name))
        for share in self.label_share:
            check_share("data_checks.label_share", share)
        if len(self.label_share) != 2 or self.label_share[0] > self.label_share[1]:
            raise ConfigError(f"data_checks.label_share must be the lowest and the highest, got {self.label_share!r}")


@dataclass(frozen=True)
class Gate:
    """Limits of a metric over all rows of the test split.

    Attributes:
        metric: A key of ``tasks.METRICS``.
        floor: Lowest accepted value.
        ceiling: Highest accepted value.
        max_drop: Most it may be worse than the baseline's; None compares with no earlier model.
    """

    metric: str
    floor: float | None = None
    ceiling: float | None = None
    max_drop: float | None = 0.0

    def __post_init__(self) -> None:
        _check_limits(self.metric, self.floor, self.ceiling)
        _check_distance(self.metric, "max_drop", self.max_drop)


@dataclass(frozen=True)
class SliceGate:
    """Limits of a metric in every slice of the test split, so that a model cannot be good on average only.

    Attributes:
        metric: A key of ``tasks.METRICS``.
        by: A column, each of whose values is a slice, or one slice such as "carrier=MQ".
        floor: Lowest accepted value.
        ceiling: Highest accepted value.
        max_drop: Most it may be worse than the baseline's; None compares with no earlier model.
        min_examples: Slices with fewer are passed over, and the verdict says so.
        confidence: A limit counts as broken only when the whole confidence interval lies beyond it, so that chance in a
            small slice does not hold up a good model. 0 judges by the value itself.
    """

    metric: str
    by: str
    floor: float | None = None
    ceiling: float | None = None
    max_drop: float | None = None
    min_examples: int = 100
    confidence: float = 0.95

    def __post_init__(self) -> None:
        _check_limits(f"{self.metric} by {self.by}", self.floor, self.ceiling)
        _check_distance(self.metric, f"by {self.by} max_drop", self.max_drop)
        if self.floor is None and self.ceiling is None and self.max_drop is None:
            raise ConfigError(f"{self.metric} by {self.by}: give a floor, a ceiling or max_drop")
        _check_slices(self)


@dataclass(frozen=True)
class FairnessGate:
    """The largest gap of a metric between two values of a column.

    Attributes:
        metric: A key of ``tasks.METRICS``; "recall" by a group is equal opportunity (Hardt et al. 2016).
        by: The column.
        max_gap: Largest accepted difference between the highest and the lowest value.
        min_examples: Values of the column with fewer examples are passed over, and the verdict says so.
        confidence: The gap counts as too large only when the whole interval of the difference is above ``max_gap``. 0
            judges by the difference itself.
    """

    metric: str
    by: str
    max_gap: float
    min_examples: int = 100
    confidence: float = 0.95

    def __post_init__(self) -> None:
        _check_distance(self.metric, f"by {self.by} max_gap", self.max_gap)
        _check_slices(self)


AnyGate = Gate | SliceGate | FairnessGate


@dataclass(frozen=True)
class Evaluation:
    """How the Evaluator judges, on the test split.

    Attributes:
        gates: All must hold; at least one.
        slices: Columns whose values get metrics of their own, beside those that gates name; the overall metrics are
            always there.
        threshold: Of two classes, the probability from which a row counts as the second, for precision, recall and the
            served label.
        baseline: What ``max_drop`` compares with: "last blessed", "none", or the name of a run, such as
            "2026-11-21T09-47-15", or the address of a model that a Trainer wrote.
        logits: The model answers logits, as a module file for stock TFX that compiles with ``from_logits=True`` exports
            it. They are measured as the probabilities they stand for; who asks the model gets logits.
    """

    gates: tuple[AnyGate, ...]
    slices: tuple[str, ...] = ()
    threshold: float = 0.5
    baseline: str = LAST_BLESSED
    logits: bool = False

    def __post_init__(self) -> None:
        if not self.gates:
            raise ConfigError(
                "evaluation.gates is empty: without a gate TFX blesses no model and says nothing. "
                'Give at least one, such as Gate("auc", floor=0.6)'
            )
        names = [(type(gate).__name__, gate.metric, getattr(gate, "by", None)) for gate in self.gates]
        for kind, metric, by in names:
            check_choice(f"{kind}.metric", metric, tuple(METRICS))
            if names.count((kind, metric, by)) > 1:
                raise ConfigError(f"evaluation.gates: two {kind}s of {metric}{f' by {by}' if by else ''}; leave one")
        for gate in self.gates:
            if METRICS[gate.metric].direction == 0 and getattr(gate, "max_drop", None):
                raise ConfigError(f"{gate.metric} has no better direction: give floor and ceiling, and max_drop=None")
        check_share("evaluation.threshold", self.threshold)
        if isinstance(self.slices, str):
            raise ConfigError(
                f"evaluation.slices must be a tuple of columns, got the text {self.slices!r}; add a comma"
            )

    @property
    def sliced_by(self) -> tuple[str, ...]:
        """Every column whose values get metrics of their own."""
        named = (gate.by.partition("=")[0] for gate in self.gates if not isinstance(gate, Gate))
        return tuple(dict.fromkeys([*self.slices, *named]))


@dataclass(frozen=True)
class ModelChecks:
    """What the exported model must do before it is pushed.

    Attributes:
        tolerance: Largest difference of a probability between the signatures, between batch sizes, and from what the
            trained model answered in training; of a number, relative to the largest of its answers.
        timeout: Seconds until a model that does not answer is given up.
    """

    tolerance: float = 1e-3
    timeout: int = 600

    def __post_init__(self) -> None:
        check_share("model_checks.tolerance", self.tolerance)
        check_positive("model_checks.timeout", self.timeout)


def _check_limits(name: str, floor: float | None, ceiling: float | None) -> None:
    for kind, limit in (("floor", floor), ("ceiling", ceiling)):
        if limit is None:
            continue
        _check_distance(name.partition(" ")[0], f"{name.partition(' ')[2]} {kind}".strip(), limit)
    if floor is not None and ceiling is not None and floor > ceiling:
        raise ConfigError(f"{name}: the floor {floor:g} is above the ceiling {ceiling:g}")


def _check_distance(metric: str, what: str, limit: float | None) -> None:
    """Refuses a limit that a metric cannot reach."""
    if limit is None:
        return
    if metric not in METRICS or METRICS[metric].highest is not None:
        check_share(f"{metric} {what}", limit)
    elif not (isinstance(limit, (int, float)) and math.isfinite(limit) and limit >= 0):
        raise ConfigError(f"{metric} {what} must be 0 or more, got {limit!r}")


def _check_slices(gate: SliceGate | FairnessGate) -> None:
    name = f"{gate.metric} by {gate.by}"
    check_positive(f"{name} min_examples", gate.min_examples)
    if not 0 <= gate.confidence < 1:
        raise ConfigError(f"{name} confidence must be from 0 to less than 1, got {gate.confidence!r}")
    if isinstance(gate, FairnessGate) and "=" in gate.by:
        raise ConfigError(f"{name}: a gap is between the values of a column, got the one value {gate.by!r}")


def to_json(settings: Evaluation) -> str:
    """The settings as text, for a component to carry."""
    gates = [{"kind": type(gate).__name__, **dataclasses.asdict(gate)} for gate in settings.gates]
    return json.dumps({**dataclasses.asdict(settings), "gates": gates}, sort_keys=True)


def from_json(text: str) -> Evaluation:
    """Reads what ``to_json`` wrote."""
    kinds = {kind.__name__: kind for kind in (Gate, SliceGate, FairnessGate)}
    read = json.loads(text)
    gates = tuple(kinds[gate.pop("kind")](**gate) for gate in read.pop("gates"))
    return Evaluation(**{**read, "gates": gates, "slices": tuple(read["slices"])})
