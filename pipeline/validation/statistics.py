"""Statistics against the schema, by TensorFlow Data Validation, and its anomalies as findings."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2, statistics_pb2

from pipeline.settings.gates import DataChecks
from pipeline.validation.findings import Finding

Statistics: TypeAlias = statistics_pb2.DatasetFeatureStatisticsList
TRAINING, SERVING = "TRAINING", "SERVING"
# TFDV's reasons by the words in their names, most special first.
KINDS = {
    "SCHEMA_NEW_COLUMN": "new_column",
    "SCHEMA_MISSING_COLUMN": "missing_column",
    "FEATURE_TYPE_NOT_PRESENT": "missing_column",
    "FRACTION_PRESENT": "presence",
    "NUMBER_PRESENT": "presence",
    "UNEXPECTED_STRING": "domain",
    "NUMBER_VALUES": "value_count",
    "NO_VALUES": "value_count",
    "REPEATED": "value_count",
    "INVALID_FEATURE_SHAPE": "value_count",
    "BIG_": "range",
    "SMALL_": "range",
    "DATA_TYPE": "type",
    "BOOL_TYPE": "type",
    "ENUM_TYPE": "type",
    "INT_TYPE": "type",
    "FLOAT_TYPE": "type",
    "STRING_TYPE": "type",
}
MEASURES = {
    anomalies_pb2.DriftSkewInfo.Measurement.L_INFTY: "L-infinity",
    anomalies_pb2.DriftSkewInfo.Measurement.JENSEN_SHANNON_DIVERGENCE: "Jensen-Shannon",
}


@dataclass(frozen=True)
class Draft:
    """A finding and, where rows have to be looked at for the values, how to tell those that are wrong."""

    finding: Finding
    is_wrong: Callable[[pa.Array], pa.Array] | None = None

    def with_values(self, wrong: Mapping[str, tuple[int, tuple[tuple[str, int], ...]]]) -> Finding:
        """The finding with what ``rows.wrong_values`` counted, where it is about values."""
        if self.is_wrong is None:
            return self.finding
        count, values = wrong[self.finding.feature]
        text = self.finding.found.replace("{rows}", f"{count:,} rows")
        return dataclasses.replace(self.finding, found=text, values=values)


@dataclass(frozen=True)
class Remedies:
    """Where a person accepts a finding.

    Attributes:
        schema: The reviewed schema; None where there is none.
        statistics: The statistics that it was held against.
    """

    schema: str | None
    statistics: str

    def accept(self, feature: str) -> str:
        """The command that changes the schema to what was found."""
        if not self.schema:
            return "have a schema to review: python -m pipeline schema write --to FILE"
        command = " ".join(["python -m pipeline schema accept", *([shlex.quote(feature)] if feature else [])])
        return f"accept it: {command} --schema {self.schema} --statistics {self.statistics}"

    def comparator(self, kind: str, measure: str, feature: str, value: float) -> str:
        """The edit that allows a distance."""
        name = "infinity_norm" if measure == "L-infinity" else "jensen_shannon_divergence"
        limit = f"{name} {{ threshold: {value * 1.1:.2g} }}"
        return f"accept it: {kind}_comparator {{ {limit} }} of {feature} in {self.schema}"


def validate(
    statistics: Mapping[str, Statistics],
    schema: schema_pb2.Schema,
    label: str,
    checks: DataChecks,
    remedies: Remedies,
    reference: Mapping[str, Statistics],
    classes: int = 2,
    *,
    train: Statistics | None = None,
    environment: str = TRAINING,
) -> tuple[dict[str, anomalies_pb2.Anomalies], list[Draft]]:
    """Holds the statistics of every split against the schema, the train split, and those of an earlier model.

    Args:
        statistics: By split.
        schema: With skew_comparators against the train split and drift_comparators against ``reference``.
        label: Column of the numbers of classes, or of any numbers.
        checks: The limits that are not in the schema.
        remedies: Where findings are accepted.
        reference: By split, the statistics of the data that the model pushed last was trained on; may be empty.
        classes: How many classes there are; 0 where the label is a number.
        train: Of the train split, where it is not among ``statistics``.
        environment: Of the schema, if it has any.

    Returns:
        TFDV's anomalies by split, and the findings.
    """
    train = statistics.get("train", train)
    anomalies: dict[str, anomalies_pb2.Anomalies] = {}
    drafts: list[Draft] = []
    for split, ours in statistics.items():
        other = None if split == "train" else train
        found = tfdv.validate_statistics(
            ours,
            schema,
            environment=environment if environment in schema.default_environment else None,
            previous_statistics=reference.get(split),
            serving_statistics=other,
        )
        anomalies[split] = found
        translate = _Translator(split, ours, schema, label, remedies, classes)
        drafts += translate.anomalies(found)
        drafts += translate.distances(found, other, reference.get(split))
        drafts += translate.label(checks, {draft.finding.kind for draft in drafts if draft.finding.split == split})
    drafts += _constants(statistics["train"], remedies) if "train" in statistics else []
    return anomalies, drafts


class _Translator:
    """TFDV's findings about one split in our words."""

    def __init__(
        self,
        split: str,
        statistics: Statistics,
        schema: schema_pb2.Schema,
        label: str,
        remedies: Remedies,
        classes: int,
    ):
        self.split = split
        self.rows = _dataset(statistics).num_examples
        self.by_name = features_of(statistics)
        self.schema = schema
        self.features = {feature.name: feature for feature in schema.feature}
        self.label_name = label
        self.classes = classes
        self.remedies = remedies

    def anomalies(self, found: anomalies_pb2.Anomalies) -> Iterator[Draft]:
        """A draft for each kind of thing that is wrong with a column."""
        for info in found.anomaly_info.values():
            name = ".".join(info.path.step)
            by_kind: dict[str, Any] = {}
            for reason in info.reason:
                type_name = anomalies_pb2.AnomalyInfo.Type.Name(reason.type)
                if type_name.startswith("COMPARATOR"):
                    continue  # in ``distances``, with the numbers
                by_kind.setdefault(self._kind_of(type_name, name), reason)
            if "presence" in by_kind:
                by_kind.pop("value_count", None)  # the shape that a column with gaps cannot have
            for kind, reason in by_kind.items():
                yield self._draft(kind, name, reason.description)
        for reason in found.dataset_anomaly_info.reason:
            yield Draft(
                Finding("other", self.split, "", reason.description, "see the schema", self.remedies.accept(""))
            )

    def distances(
        self, found: anomalies_pb2.Anomalies, train: Statistics | None, reference: Statistics | None
    ) -> Iterator[Draft]:
        """A draft for each distribution that lies too far from another."""
        for info in found.drift_skew_info:
            name = ".".join(info.path.step)
            for kind, measurements, other, whose in (
                ("skew", info.skew_measurements, train, "the train split"),
                ("drift", info.drift_measurements, reference, "the data of the model pushed last"),
            ):
                for one in measurements:
                    if one.value <= one.threshold:
                        continue
                    measure = MEASURES.get(one.type, "distance")
                    finding = Finding(
                        kind,
                        self.split,
                        name,
                        f"{measure} distance {one.value:.3f} from {whose}{self._compared(name, other)}",
                        f"at most {one.threshold:g}",
                        self.remedies.comparator(kind, measure, name, one.value),
                    )
                    yield Draft(finding)

    def label(self, checks: DataChecks, kinds: set[str]) -> Iterator[Draft]:
        """Labels that are none of the classes and that the schema lets pass, and how they are spread."""
        name = self.label_name
        numbers = self.by_name[name].num_stats if name in self.by_name else None
        if numbers is None or self.by_name[name].WhichOneof("stats") != "num_stats":
            return
        if numbers.min == numbers.max and self.rows > 1 and self.classes != 2:
            yield Draft(
                Finding(
                    "label_share",
                    self.split,
                    name,
                    f"the label is {numbers.min:g} in all of {self.rows:,} rows",
                    "a model learns from labels that differ",
                    "give this split other rows: data.split_by in the config",
                )
            )
        if not self.classes:
            return
        if numbers.min < 0 or numbers.max > self.classes - 1:
            if "label" not in kinds:
                yield self._draft("label", name, "")
            return
        low, high = checks.label_share
        if self.classes == 2 and not low <= numbers.mean <= high:
            finding = Finding(
                "label_share",
                self.split,
                name,
                f"label 1 is {_percent(numbers.mean)} of {self.rows:,} rows",
                f"from {_percent(low)} to {_percent(high)}",
                "accept it: DataChecks(label_share=...) in the config",
            )
            yield Draft(finding)

    def _kind_of(self, type_name: str, name: str) -> str:
        kind = next((kind for part, kind in KINDS.items() if part in type_name), "other")
        is_label = name == self.label_name and self.classes and kind in ("range", "type", "domain")
        return "label" if is_label else kind

    def _draft(self, kind: str, name: str, description: str) -> Draft:
        feature = self.features.get(name, schema_pb2.Feature())
        statistics = self.by_name.get(name, statistics_pb2.FeatureNameStatistics())
        found, limit = description.strip().rstrip("."), "see the schema"
        is_wrong: Callable[[pa.Array], pa.Array] | None = None
        if kind == "missing_column":
            found, limit = "there is no such column", "the schema has it"
        elif kind == "new_column":
            found, limit = "the schema does not have this column", "no step uses it until the schema does"
        elif kind == "type":
            limit = f"the schema says {schema_pb2.FeatureType.Name(feature.type)}"
            found = f"is {statistics_pb2.FeatureNameStatistics.Type.Name(statistics.type)}"
        elif kind == "presence":
            missing = self.rows - present(statistics)
            found = f"{_percent(missing / max(1, self.rows))} of the rows have no value ({missing:,} of {self.rows:,})"
            limit = f"at most {_percent(1 - feature.presence.min_fraction)} may have none"
        elif kind == "domain":
            allowed = self._domain_of(feature)
            found = "{rows} have a value that the schema does not list"
            limit = f"it lists {_shortened(allowed)}"
            is_wrong = _not_in(allowed)
        elif kind == "range":
            low, high = _range_of(feature)
            found = "{rows} are out of range"
            limit = f"the schema allows {low:g} to {high:g}"
            is_wrong = _outside(low, high)
        elif kind == "label":
            found = "{rows} have a label that is none"
            limit = f"a label is {'0 or 1' if self.classes == 2 else f'0 to {self.classes - 1}'}"
            is_wrong = _no_label(self.classes)
        remedy = self.remedies.accept(name)
        if kind == "label":
            remedy = "put the labels right, or leave these rows out"
        return Draft(Finding(kind, self.split, name, found, limit, remedy), is_wrong)

    def _domain_of(self, feature: schema_pb2.Feature) -> list[str]:
        if feature.HasField("string_domain"):
            return list(feature.string_domain.value)
        return [
            value for domain in self.schema.string_domain if domain.name == feature.domain for value in domain.value
        ]

    def _compared(self, name: str, other: Statistics | None) -> str:
        """The same column here and there: means of numbers, or the text whose share changed most."""
        mine, theirs = self.by_name.get(name), features_of(other).get(name) if other else None
        if mine is None or theirs is None:
            return ""
        if mine.HasField("num_stats"):
            return f" (mean {mine.num_stats.mean:.4g}, there {theirs.num_stats.mean:.4g})"
        shares = [_shares(one) for one in (mine, theirs)]
        most = max({*shares[0], *shares[1]}, key=lambda one: abs(shares[0].get(one, 0) - shares[1].get(one, 0)))
        return f" ({most}: {_percent(shares[0].get(most, 0))}, there {_percent(shares[1].get(most, 0))})"


def _constants(train: Statistics, remedies: Remedies) -> Iterator[Draft]:
    rows = _dataset(train).num_examples
    for name, one in features_of(train).items():
        if one.HasField("num_stats"):
            value, same = f"{one.num_stats.min:g}", one.num_stats.min == one.num_stats.max
        elif one.HasField("string_stats"):
            same = one.string_stats.unique == 1
            value = one.string_stats.top_values[0].value if one.string_stats.top_values else ""
        else:
            continue
        if same and rows > 1 and present(one) == rows:
            tag = 'annotation { tag: "constant: ignore" }'
            remedy = f"accept it: {tag} of {name} in {remedies.schema}" if remedies.schema else "leave the column out"
            finding = Finding(
                "constant",
                "train",
                name,
                f"{value} in every row",
                "a column that never changes teaches nothing",
                remedy,
            )
            yield Draft(finding)


def features_of(statistics: Statistics) -> dict[str, statistics_pb2.FeatureNameStatistics]:
    """Statistics by column."""
    return {".".join(one.path.step) or one.name: one for one in _dataset(statistics).features}


def present(column: statistics_pb2.FeatureNameStatistics | None) -> int:
    """Return the number of rows with a value; 0 for a column that is not there."""
    kind = column.WhichOneof("stats") if column else None
    return int(getattr(column, kind).common_stats.num_non_missing) if kind else 0


def _dataset(statistics: Statistics) -> statistics_pb2.DatasetFeatureStatistics:
    return statistics.datasets[0]


def _shares(column: statistics_pb2.FeatureNameStatistics) -> dict[str, float]:
    buckets = column.string_stats.rank_histogram.buckets
    total = sum(bucket.sample_count for bucket in buckets) or 1.0
    return {bucket.label: bucket.sample_count / total for bucket in buckets}


def _range_of(feature: schema_pb2.Feature) -> tuple[float, float]:
    domain = feature.int_domain if feature.HasField("int_domain") else feature.float_domain
    low = domain.min if domain.HasField("min") else -np.inf
    high = domain.max if domain.HasField("max") else np.inf
    return low, high


def _outside(low: float, high: float) -> Callable[[pa.Array], pa.Array]:
    return lambda values: pc.or_(pc.less(values, low), pc.greater(values, high))


def _no_label(classes: int) -> Callable[[pa.Array], pa.Array]:
    def is_wrong(values: pa.Array) -> pa.Array:
        if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
            return pc.invert(pc.is_in(values.cast(pa.float64()), pa.array(range(classes), pa.float64())))
        return pa.array([True] * len(values))

    return is_wrong


def _not_in(allowed: list[str]) -> Callable[[pa.Array], pa.Array]:
    def is_wrong(values: pa.Array) -> pa.Array:
        return pc.invert(pc.is_in(values.cast(pa.string()), pa.array(allowed, pa.string())))

    return is_wrong


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.0995 else f"{100 * share:.2g} %"


def _shortened(values: list[str]) -> str:
    return ", ".join(values) if len(values) <= 8 else f"{', '.join(values[:6])} and {len(values) - 6} more"
