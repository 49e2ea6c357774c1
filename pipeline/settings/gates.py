"""Settings of the gates that data and a model must pass, as parts of ``PipelineConfig``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from pipeline.settings.checks import ConfigError, Count, NotNegative, Share, check_settings, check_value, listed, number
from pipeline.settings.tasks import METRICS

Severity = Literal["stop", "warn", "ignore"]
# Kinds of findings in the data, with the default severity; the config or the schema may override it.
FINDINGS: dict[str, Severity] = {
    "missing_column": "stop",  # in the schema, not in the data
    "new_column": "warn",  # in the data, not in the schema; no step uses it
    "type": "stop",
    "presence": "stop",  # more rows without a value than the schema allows
    "domain": "stop",  # a text that the schema does not list
    "range": "stop",
    "infinite": "warn",  # infinite numbers, but labels and weights
    "notation": "warn",  # a time or an amount in another notation than the schema's, which counts as missing
    "value_count": "stop",  # values per row
    "label": "stop",  # a label outside the classes
    "label_share": "stop",
    "missing_class": "warn",  # one of several classes has no row in train
    "weight": "stop",  # a weight that is missing, negative or not finite, or 0 in every row
    "skew": "stop",  # eval or test against train, past the schema's skew_comparator
    "drift": "stop",  # against the data of the model pushed last, past the schema's drift_comparator
    "moved": "warn",  # far from the data of the model pushed last, where the schema has no drift_comparator
    "prediction_drift": "stop",  # predictions for requests against those for the test split; found by monitor
    "leak": "stop",  # a column that alone predicts the label
    "constant": "warn",  # one value in the whole train split
    "shared_rows": "stop",  # rows of eval or test that are in another split too
    "shared_images": "warn",  # images of eval or test that are in another split too, no more than max_shared_rows
    "similar_rows": "stop",  # rows of eval or test that are of the same group as rows of train, or near-equal to one
    "repeated_rows": "warn",  # rows that occur more than once in a split
    "other": "stop",  # anything else that TensorFlow Data Validation reports
}
Coverage = Annotated[float, number("above 0 and below 1", lambda value: 0 < value < 1)]
Confidence = Annotated[float, number("from 0 to less than 1", lambda value: 0 <= value < 1)]
LAST_BLESSED, NO_BASELINE = "last blessed", "none"
# Simple models that every run measures on the same rows, the simplest first.
Baseline = Literal["constant", "linear", "boosting"]
BASELINES: tuple[Baseline, ...] = get_args(Baseline)
# Metrics that need no threshold, which these models would have to choose.
OF_BASELINES = ("auc", "auc_precision_recall", "accuracy", "log_loss", "rmse", "mae")


@dataclass(frozen=True)
class DataChecks:
    """Limits that stop a run. Types, domains, ranges, presence, skew and drift limits are in the schema.

    Attributes:
        severity: By kind of finding, where it is not the one in ``FINDINGS``. The schema overrides it for one column:
            ``annotation { tag: "constant: ignore" }``.
        label_share: Lowest and highest share of the second of two classes in a split. Other labels must only differ.
        max_shared_rows: Largest share of rows of eval or test that may be in an earlier split too.
        max_similar_rows: Largest share of rows of eval or test that are near-equal to a row of train, or of a group (a
            patient, say) that has rows in train, where rows of one group are alike.
        max_repeated_rows: Largest share of rows of a split that may repeat another one.
        max_column_auc: Highest AUC of a column alone; when its whole 95 % confidence interval lies above, the column
            leaks the label. Several classes: the mean of each against the others; a number: squared correlation.
        max_moved: Largest distance of a column without drift_comparator from the data of the model pushed last, and of
            the share of its rows that have a value: L-infinity of text, Jensen-Shannon of numbers.
        max_prediction_drift: Largest distance between the predictions for monitored requests and for the test split:
            Jensen-Shannon of probabilities and numbers, L-infinity of several classes.
    """

    severity: Mapping[str, Severity] = field(default_factory=dict)
    label_share: tuple[float, float] = (0.01, 0.99)
    max_shared_rows: Share = 0.01
    max_similar_rows: Share = 0.1
    max_repeated_rows: Share = 0.05
    max_column_auc: Share = 0.98
    max_moved: Share = 0.3
    max_prediction_drift: Share = 0.1

    def __post_init__(self) -> None:
        check_settings("data_checks.", self)
        unknown = set(self.severity) - set(FINDINGS)
        if unknown:
            raise ConfigError(f"data_checks.severity: {listed(unknown)} is no finding; there are {', '.join(FINDINGS)}")
        for name, severity in self.severity.items():
            check_value(f"data_checks.severity[{name!r}]", severity, Severity)
        for share in self.label_share:
            check_value("data_checks.label_share", share, Share)
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
        _check_gate(self, self.metric)


@dataclass(frozen=True)
class SliceGate:
    """Limits of a metric in every slice of the test split, so that a model cannot be good on average only.

    Attributes:
        metric: A key of ``tasks.METRICS``.
        by: A column, each of whose values is a slice, or one slice such as "carrier=MQ".
        floor: Lowest accepted value.
        ceiling: Highest accepted value.
        max_drop: Most it may be worse than the baseline's; None compares with no earlier model.
        min_examples: Slices with fewer are skipped, and the verdict lists them.
        confidence: A limit is broken only when the whole confidence interval lies beyond it. 0 judges by the value.
    """

    metric: str
    by: str
    floor: float | None = None
    ceiling: float | None = None
    max_drop: float | None = None
    min_examples: Count = 100
    confidence: Confidence = 0.95

    def __post_init__(self) -> None:
        _check_gate(self, f"{self.metric} by {self.by}")
        if self.floor is None and self.ceiling is None and self.max_drop is None:
            raise ConfigError(f"{self.metric} by {self.by}: give a floor, a ceiling or max_drop")


@dataclass(frozen=True)
class FairnessGate:
    """The largest gap of a metric between two values of a column.

    Attributes:
        metric: A key of ``tasks.METRICS``; "recall" by a group is equal opportunity (Hardt et al. 2016).
        by: The column.
        max_gap: Largest accepted difference between the highest and the lowest value.
        min_examples: Values of the column with fewer are skipped, and the verdict lists them.
        confidence: The gap is too large only when its whole interval is above ``max_gap``. 0 judges by the difference.
    """

    metric: str
    by: str
    max_gap: NotNegative
    min_examples: Count = 100
    confidence: Confidence = 0.95

    def __post_init__(self) -> None:
        name = f"{self.metric} by {self.by}"
        _check_gate(self, name)
        if "=" in self.by:
            raise ConfigError(f"{name}: a gap is between the values of a column, got the one value {self.by!r}")


@dataclass(frozen=True)
class BeatsBaseline:
    """A simple model that must be beaten on all rows of the test split.

    Attributes:
        metric: One of ``OF_BASELINES``.
        than: "constant", "linear", or "boosting": scikit-learn's gradient boosting with its defaults.
        margin: Least that the model must be better by.
    """

    metric: str
    than: Baseline = "boosting"
    margin: NotNegative = 0.0

    def __post_init__(self) -> None:
        if self.metric not in OF_BASELINES:
            raise ConfigError(f"BeatsBaseline.metric must be one of {', '.join(OF_BASELINES)}, got {self.metric!r}")
        check_settings(f"BeatsBaseline of {self.metric}: ", self)


AnyGate = Gate | SliceGate | FairnessGate | BeatsBaseline


@dataclass(frozen=True)
class Costs:
    """The threshold at which wrong answers cost least on the eval split.

    Attributes:
        false_positive: Cost of a row of the first class predicted as the second.
        false_negative: Cost of a row of the second class predicted as the first, in the same unit.
    """

    false_positive: NotNegative = 1.0
    false_negative: NotNegative = 1.0

    def __post_init__(self) -> None:
        check_settings("Costs.", self)
        if not self.false_positive or not self.false_negative:
            raise ConfigError("Costs: both must be above 0, or one answer for every row costs least")


@dataclass(frozen=True)
class AtLeast:
    """The threshold that reaches a precision or a recall on the eval split and maximizes the other.

    Attributes:
        precision: Lowest share of rows of the second class among the rows predicted as the second class.
        recall: Lowest share of rows predicted as the second class among the rows of the second class.
    """

    precision: Share | None = None
    recall: Share | None = None

    def __post_init__(self) -> None:
        check_settings("AtLeast.", self)
        if (self.precision is None) == (self.recall is None):
            raise ConfigError(f"AtLeast takes a precision or a recall, one of both, got {self}")


Threshold = Share | Costs | AtLeast


@dataclass(frozen=True)
class Evaluation:
    """Settings of the Evaluator, which judges on the test split.

    Attributes:
        gates: All must hold; at least one.
        slices: Columns whose values get separate metrics, in addition to the columns that gates name.
        threshold: Of two classes, the probability from which a row counts as the second, for precision, recall and the
            served label. ``Costs`` and ``AtLeast``: the Trainer chooses it on the eval split.
        coverage: Share of rows whose label a served interval, or set of classes, contains, fitted on the eval split.
            None serves neither.
        baseline: What ``max_drop`` compares with: "last blessed", "none", the name of a run, such as
            "2026-11-21T09-47-15", or the address of a model that a Trainer wrote.
        broken_baseline: "fail" ends the run if the baseline no longer loads, has changed or does not answer today's
            rows; "warn" skips it, with a warning in the verdict.
        logits: The model answers logits, as a stock module file with ``from_logits=True`` exports it. Metrics are
            computed from probabilities; the served model answers logits.
    """

    gates: tuple[AnyGate, ...]
    slices: tuple[str, ...] = ()
    threshold: Threshold = 0.5
    coverage: Coverage | None = None
    baseline: str = LAST_BLESSED
    broken_baseline: Literal["warn", "fail"] = "warn"
    logits: bool = False

    def __post_init__(self) -> None:
        if not self.gates:
            raise ConfigError(
                "evaluation.gates is empty: without a gate TFX blesses no model and says nothing. "
                'Give at least one, such as Gate("auc", floor=0.6)'
            )
        names = [
            (type(gate).__name__, gate.metric, getattr(gate, "by", getattr(gate, "than", None))) for gate in self.gates
        ]
        for kind, metric, by in names:
            if names.count((kind, metric, by)) > 1:
                raise ConfigError(f"evaluation.gates: two {kind}s of {metric}{f' by {by}' if by else ''}; leave one")
        for gate in self.gates:
            if METRICS[gate.metric].direction == 0 and getattr(gate, "max_drop", None):
                raise ConfigError(f"{gate.metric} has no better direction: give floor and ceiling, and max_drop=None")
        check_settings("evaluation.", self)
        if self.threshold == 0:
            raise ConfigError("evaluation.threshold must be above 0: from 0 on, every row is of the second class")
        if self.logits and (self.coverage is not None or not isinstance(self.threshold, int | float)):
            raise ConfigError("evaluation: of logits (logits=True) no threshold is chosen, and no coverage reached")
        if isinstance(self.slices, str):
            raise ConfigError(
                f"evaluation.slices must be a tuple of columns, got the text {self.slices!r}; add a comma"
            )

    @property
    def sliced_by(self) -> tuple[str, ...]:
        """Return every column whose values get separate metrics."""
        named = (gate.by.partition("=")[0] for gate in self.gates if isinstance(gate, SliceGate | FairnessGate))
        return tuple(dict.fromkeys([*self.slices, *named]))


@dataclass(frozen=True)
class ModelChecks:
    """Limits that the exported model must keep before it is pushed.

    Attributes:
        tolerance: Largest difference of a probability between signatures, batch sizes, and training and serving; of a
            number, relative to its largest answer.
        timeout: Seconds to wait for an answer of the model.
    """

    tolerance: Share = 1e-3
    timeout: Count = 600

    def __post_init__(self) -> None:
        check_settings("model_checks.", self)


def _check_gate(gate: AnyGate, name: str) -> None:
    """Reject an unknown metric, and limits that it cannot reach."""
    if gate.metric not in METRICS:
        raise ConfigError(f"{type(gate).__name__}.metric must be one of {', '.join(METRICS)}, got {gate.metric!r}")
    check_settings(f"{name} ", gate)
    kind = NotNegative if METRICS[gate.metric].highest is None else Share
    for limit in ("floor", "ceiling", "max_drop", "max_gap"):
        check_value(f"{name} {limit}", getattr(gate, limit, None), kind | None)
    floor, ceiling = getattr(gate, "floor", None), getattr(gate, "ceiling", None)
    if floor is not None and ceiling is not None and floor > ceiling:
        raise ConfigError(f"{name}: the floor {floor:g} is above the ceiling {ceiling:g}")
