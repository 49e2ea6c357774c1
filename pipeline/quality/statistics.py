"""Compare statistics with the schema, by TensorFlow Data Validation, and turn its anomalies into findings."""

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2, statistics_pb2

from pipeline.quality.findings import Finding
from pipeline.settings.gates import DataChecks
from pipeline.settings.image_data import facts
from pipeline.settings.names import TRAINING, how_to_leave_out
from pipeline.settings.notations import listed_values

Statistics: TypeAlias = statistics_pb2.DatasetFeatureStatisticsList
Column: TypeAlias = statistics_pb2.FeatureNameStatistics
# In the text of a finding about values, until ``wrong_values`` has counted the rows.
ROWS = "{rows}"
# Words in the names of TFDV's reasons by kind of finding, the most specific first.
KINDS = {
    "new_column": ("SCHEMA_NEW_COLUMN",),
    "missing_column": ("SCHEMA_MISSING_COLUMN", "FEATURE_TYPE_NOT_PRESENT"),
    "presence": ("FRACTION_PRESENT", "NUMBER_PRESENT"),
    "domain": ("UNEXPECTED_STRING",),
    "value_count": ("NUMBER_VALUES", "NO_VALUES", "REPEATED", "INVALID_FEATURE_SHAPE"),
    "range": ("BIG_", "SMALL_"),
    "type": ("DATA_TYPE", "BOOL_TYPE", "ENUM_TYPE", "INT_TYPE", "FLOAT_TYPE", "STRING_TYPE"),
}
Measurement: TypeAlias = anomalies_pb2.DriftSkewInfo.Measurement
MEASURES = {Measurement.L_INFTY: "L-infinity", Measurement.JENSEN_SHANNON_DIVERGENCE: "Jensen-Shannon"}


def options_for(image: str | None) -> tfdv.StatsOptions:
    """Return options for rows with a column of encoded images, which are counted and measured but not kept."""
    schema = schema_pb2.Schema()
    if image:
        schema.feature.add(name=image, type=schema_pb2.BYTES).image_domain.SetInParent()
    return tfdv.StatsOptions(schema=schema if image else None)


def image_column(schema: schema_pb2.Schema) -> str | None:
    """Return the column of encoded images; None if there is no such column."""
    return next((feature.name for feature in schema.feature if feature.HasField("image_domain")), None)


@dataclass(frozen=True)
class Remedies:
    """Files in which a person accepts a finding: the reviewed schema, and the statistics compared with it."""

    schema: str | None
    statistics: str

    def accept(self, feature: str) -> str:
        """Return the command that changes the schema to what was found."""
        if not self.schema:
            return "have a schema to review: python -m pipeline schema write --to FILE"
        column = f" {shlex.quote(feature)}" if feature else ""
        files = f"--schema {self.schema} --statistics {self.statistics}"
        return f"accept it: python -m pipeline schema accept{column} {files}"

    def comparator(self, kind: str, measure: int, feature: str, value: float) -> str:
        """Return the edit that allows a distance."""
        name = "infinity_norm" if measure == Measurement.L_INFTY else "jensen_shannon_divergence"
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
    weight: str | None = None,
) -> tuple[dict[str, anomalies_pb2.Anomalies], list[Finding]]:
    """Return TFDV's anomalies by split, and the findings; ``wrong_values.with_values`` completes those about values.

    Args:
        statistics: By split.
        schema: With skew_comparators against the train split and drift_comparators against ``reference``.
        label: Column of the label.
        checks: The limits that are not in the schema.
        remedies: For the findings.
        reference: By split, the statistics of the data that the model pushed last was trained on; may be empty.
        classes: Their number; 0 where the label is a number.
        train: Statistics of the train split, where it is not among ``statistics``.
        environment: Used if the schema has it.
        weight: Column of example weights.
    """
    train = statistics.get("train", train)
    anomalies: dict[str, anomalies_pb2.Anomalies] = {}
    findings: list[Finding] = []
    for split, of_split in statistics.items():
        other = None if split == "train" else train
        anomalies[split] = tfdv.validate_statistics(
            of_split,
            schema,
            environment=environment if environment in schema.default_environment else None,
            previous_statistics=reference.get(split),
            serving_statistics=other,
        )
        translator = _Translator(split, of_split, schema, label, remedies, classes)
        of_schema = list(translator.anomalies(anomalies[split]))
        findings += of_schema
        findings += translator.distances(anomalies[split], other, reference.get(split))
        findings += translator.label(checks, has_finding="label" in {finding.kind for finding in of_schema})
        findings += translator.weights(weight) if weight else []
        findings += translator.infinite(weight)
        findings += translator.constants(weight) if split == "train" else []
    return anomalies, findings


@dataclass
class _Translator:
    """Turn what TFDV finds about one split into findings."""

    split: str
    statistics: Statistics
    schema: schema_pb2.Schema
    label_name: str
    remedies: Remedies
    classes: int

    def __post_init__(self) -> None:
        self.rows = self.statistics.datasets[0].num_examples
        self.columns = features_of(self.statistics)
        self.features = {feature.name: feature for feature in self.schema.feature}

    def anomalies(self, anomalies: anomalies_pb2.Anomalies) -> Iterator[Finding]:
        """Yield a finding for each kind of thing that is wrong with a column."""
        for info in anomalies.anomaly_info.values():
            name = ".".join(info.path.step)
            by_kind: dict[str, str] = {}
            for reason in info.reason:
                type_name = anomalies_pb2.AnomalyInfo.Type.Name(reason.type)
                if not type_name.startswith("COMPARATOR"):  # these are in ``distances``, with the numbers
                    by_kind.setdefault(self._kind_of(type_name, name), reason.description)
            if "presence" in by_kind:
                by_kind.pop("value_count", None)  # the shape that a column with gaps cannot have
            for kind, description in by_kind.items():
                yield self._of_schema(kind, name, description)
        for reason in anomalies.dataset_anomaly_info.reason:
            yield Finding("other", self.split, "", reason.description, "see the schema", self.remedies.accept(""))

    def distances(
        self, anomalies: anomalies_pb2.Anomalies, train: Statistics | None, reference: Statistics | None
    ) -> Iterator[Finding]:
        """Yield a finding for each distribution that lies too far from another."""
        for info in anomalies.drift_skew_info:
            name = ".".join(info.path.step)
            for kind, measurements, other, whose in (
                ("skew", info.skew_measurements, train, "the train split"),
                ("drift", info.drift_measurements, reference, "the data of the model pushed last"),
            ):
                theirs = features_of(other).get(name) if other else None
                for measurement, found in too_far(measurements, self.columns.get(name), theirs, whose):
                    remedy = self.remedies.comparator(kind, measurement.type, name, measurement.value)
                    yield Finding(kind, self.split, name, found, f"at most {measurement.threshold:g}", remedy)

    def label(self, checks: DataChecks, has_finding: bool) -> Iterator[Finding]:
        """Yield findings about invalid labels that the schema allows, and about shares of labels."""
        name = self.label_name
        if name not in self.columns or not self.columns[name].HasField("num_stats"):
            return
        numbers = self.columns[name].num_stats
        if numbers.min == numbers.max and self.rows > 1 and self.classes != 2:
            found = f"the label is {numbers.min:g} in all of {self.rows:,} rows"
            remedy = "give this split other rows: data.split_by in the config"
            yield Finding("label_share", self.split, name, found, "a model learns from labels that differ", remedy)
        if not self.classes:
            return
        low, high = checks.label_share
        if numbers.min < 0 or numbers.max > self.classes - 1:
            if not has_finding:
                yield self._of_schema("label", name, "")
        elif self.classes == 2 and not low <= numbers.mean <= high:
            found = f"label 1 is {percent(numbers.mean)} of {self.rows:,} rows"
            remedy = "accept it: DataChecks(label_share=...) in the config"
            yield Finding("label_share", self.split, name, found, f"from {percent(low)} to {percent(high)}", remedy)

    def weights(self, name: str) -> Iterator[Finding]:
        """Yield a finding about invalid weights: ExampleGen does not check every file row by row."""
        column = self.columns.get(name)
        numbers = column.num_stats if column and column.HasField("num_stats") else None
        lacking = self.rows - present(column)
        if column is None or numbers is None:
            found = "there is no such column of numbers"
        elif lacking:
            found = f"the weight is missing in {lacking:,} of {self.rows:,} rows"
        elif any(histogram.num_nan for histogram in numbers.histograms):
            found = "the weight is not a number in some rows"
        elif numbers.min < 0 or math.isinf(numbers.max):
            found = f"the weight is {numbers.min if numbers.min < 0 else numbers.max:g} in some rows"
        elif not numbers.max:
            found = f"the weight is 0 in all of {self.rows:,} rows"
        else:
            return
        remedy = "put the weights right, or take label.weight out of the config"
        yield Finding(
            "weight", self.split, name, found, "a finite weight of 0 or more, and above 0 in some row", remedy
        )

    def infinite(self, weight: str | None) -> Iterator[Finding]:
        """Yield a finding for each column with infinite numbers: a label stops the run, weights have their own."""
        unused = {name for name, one in self.features.items() if one.lifecycle_stage == schema_pb2.DISABLED}
        for name, column in self.columns.items():
            numbers, is_label = column.num_stats, name == self.label_name
            if (
                name not in unused | {weight}
                and math.inf in (numbers.max, -numbers.min)
                and not (is_label and self.classes)
            ):
                limit = (
                    "a model learns from finite numbers" if is_label else "generated module files take them for missing"
                )
                remedy = "correct these rows, or leave them out"
                yield Finding(
                    "label" if is_label else "infinite", self.split, name, f"{ROWS} are infinite", limit, remedy
                )

    def constants(self, weight: str | None) -> Iterator[Finding]:
        """Yield a finding for each column with one value in every row."""
        image = image_column(self.schema)
        # Weights may be equal, and images of one size and format; no model reads disabled columns.
        exempt = {weight, *(facts(image) if image else ())}
        exempt |= {name for name, one in self.features.items() if one.lifecycle_stage == schema_pb2.DISABLED}
        for name, column in self.columns.items():
            if name in exempt:
                continue
            numbers, text = column.num_stats, column.string_stats
            if column.HasField("num_stats"):
                value, same = f"{numbers.min:g}", numbers.min == numbers.max
            else:
                value, same = text.top_values[0].value if text.top_values else "", text.unique == 1
            if same and self.rows > 1 and present(column) == self.rows:
                tag, schema = 'annotation { tag: "constant: ignore" }', self.remedies.schema
                remedy = f"accept it: {tag} of {name} in {schema}" if schema else how_to_leave_out(name)
                limit = "a column that never changes teaches nothing"
                yield Finding("constant", self.split, name, f"{value} in every row", limit, remedy)

    def _kind_of(self, type_name: str, name: str) -> str:
        kind = next((kind for kind, parts in KINDS.items() if any(part in type_name for part in parts)), "other")
        is_label = name == self.label_name and self.classes and kind in ("range", "type", "domain")
        return "label" if is_label else kind

    def _of_schema(self, kind: str, name: str, description: str) -> Finding:
        feature = self.features.get(name, schema_pb2.Feature())
        column = self.columns.get(name, Column())
        found, limit, remedy = description.strip().rstrip("."), "see the schema", self.remedies.accept(name)
        if kind == "missing_column":
            found, limit = "there is no such column", "the schema has it"
        elif kind == "new_column":
            found, limit = "the schema does not have this column", "no step uses it until the schema does"
        elif kind == "type":
            found = f"is {Column.Type.Name(column.type)}"
            limit = f"the schema says {schema_pb2.FeatureType.Name(feature.type)}"
        elif kind == "presence":
            missing = self.rows - present(column)
            found = f"{percent(missing / max(1, self.rows))} of the rows have no value ({missing:,} of {self.rows:,})"
            limit = f"at most {percent(1 - feature.presence.min_fraction)} may have none"
        elif kind == "domain":
            values = listed_values(feature, self.schema)
            more = f" and {len(values) - 6} more" if len(values) > 8 else ""
            found = f"{ROWS} have a value that the schema does not list"
            limit = f"it lists {', '.join(values[:6] if more else values)}{more}"
        elif kind == "range":
            low, high = range_of(feature)
            found, limit = f"{ROWS} are out of range", f"the schema allows {low:g} to {high:g}"
        elif kind == "label":
            found = f"{ROWS} have an invalid label"
            limit = f"a label is {'0 or 1' if self.classes == 2 else f'0 to {self.classes - 1}'}"
            remedy = "put the labels right, or leave these rows out"
        return Finding(kind, self.split, name, found, limit, remedy)


def features_of(statistics: Statistics) -> dict[str, Column]:
    """Return the statistics by column."""
    return {".".join(column.path.step) or column.name: column for column in statistics.datasets[0].features}


def too_far(
    measurements: Iterable[Measurement], mine: Column | None, theirs: Column | None, whose: str
) -> Iterator[tuple[Measurement, str]]:
    """Yield each measurement above its threshold, with a description."""
    for one in measurements:
        if one.value > one.threshold:
            found = f"{MEASURES.get(one.type, 'distance')} distance {one.value:.3f} from {whose}"
            yield one, found + _compared(mine, theirs)


def _compared(mine: Column | None, theirs: Column | None) -> str:
    """Compare a column with the same one elsewhere: means of numbers, or the text whose share changed most."""
    if mine is None or theirs is None:
        return ""

    def shares(column: Column) -> dict[str, float]:
        buckets = column.string_stats.rank_histogram.buckets
        total = sum(bucket.sample_count for bucket in buckets) or 1.0
        return {bucket.label: bucket.sample_count / total for bucket in buckets}

    if mine.HasField("num_stats"):
        return f" (mean {mine.num_stats.mean:.4g}, there {theirs.num_stats.mean:.4g})"
    here, there = shares(mine), shares(theirs)
    text = max({*here, *there}, key=lambda text: abs(here.get(text, 0) - there.get(text, 0)))
    return f" ({text}: {percent(here.get(text, 0))}, there {percent(there.get(text, 0))})"


def present(column: Column | None) -> int:
    """Return the number of rows with a value; 0 for a column that is not there."""
    kind = column.WhichOneof("stats") if column else None
    return int(getattr(column, kind).common_stats.num_non_missing) if kind else 0


def range_of(feature: schema_pb2.Feature) -> tuple[float, float]:
    """Return the smallest and the largest number that the schema allows."""
    domain = feature.int_domain if feature.HasField("int_domain") else feature.float_domain
    low = domain.min if domain.HasField("min") else -math.inf
    return low, domain.max if domain.HasField("max") else math.inf


def percent(share: float) -> str:
    """Return a share as text, with two digits."""
    return f"{100 * share:.1f} %" if share >= 0.0995 else f"{100 * share:.2g} %"
