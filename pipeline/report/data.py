"""Show the data of a run: distributions by split, missing values, findings and drift."""

import math
from collections.abc import Mapping, Sequence

from tensorflow_metadata.proto.v0 import anomalies_pb2, statistics_pb2
from tensorflow_metadata.proto.v0.statistics_pb2 import FeatureNameStatistics as Feature
from tfx.types import artifact_utils

from pipeline import filesystem
from pipeline.components.artifacts import read_findings
from pipeline.components.data_gate import ANOMALIES
from pipeline.quality.findings import Finding
from pipeline.quality.statistics import features_of
from pipeline.report import charts
from pipeline.report.blocks import Block, Figure, Figures, Table, Text, short
from pipeline.report.finished_run import FinishedRun
from pipeline.settings.image_data import facts

# A chart takes a tenth of a second; the other features are in the table.
MOST_CHARTS, VALUES = 24, 8
MOST_FINDINGS = 100


def section(run: FinishedRun, importance: Mapping[str, Sequence[float]]) -> list[Block]:
    """Return tables and charts of the data, the features that matter most first."""
    if not run.statistics:
        return [Text("The run has not come as far as describing the data.")]
    by_split = {split: features_of(statistics) for split, statistics in run.statistics.items()}
    features = list(dict.fromkeys(name for of_split in by_split.values() for name in of_split))
    anomalies = run.folder_of("ExampleValidator", "anomalies")
    findings = read_findings(anomalies) if anomalies else []
    blocks: list[Block] = [_anomalies(findings)] if anomalies else []
    blocks += _drift(run)
    rank = {name: place for place, name in enumerate(importance)}
    wrong = {finding.feature for finding in findings}
    features.sort(key=lambda name: (name != run.config.label.name, name not in wrong, rank.get(name, 1e9)))
    constant = {name: value for name in features if (value := _constant(name, by_split)) is not None}
    varied = [name for name in features if name not in constant]
    images = run.config.data.images
    charted = [name for name in varied if not images or name not in (images.column, facts(images.column)[0])]
    figures = [figure for name in charted[:MOST_CHARTS] if (figure := _figure(name, by_split))]
    if len(charted) > MOST_CHARTS:
        blocks.append(Text(f"Charts of {len(figures)} of {len(features):,} features; the table has all.", "quiet"))
    if constant:
        texts = [f"{charts.shown(name, 40)} ({value:g})" for name, value in constant.items()]
        blocks.append(Text(f"The same number in every row: {', '.join(texts[:MOST_CHARTS])}", "quiet"))
    blocks.append(Figures(figures))
    blocks.append(_table(features, by_split))
    return blocks


def missing_share(feature: Feature) -> float:
    """Return the share of the rows without a value."""
    kind = feature.WhichOneof("stats")
    common = getattr(feature, kind).common_stats if kind else statistics_pb2.CommonStatistics()
    rows = common.num_missing + common.num_non_missing
    return common.num_missing / rows if rows else 1.0


def _constant(name: str, by_split: Mapping[str, Mapping[str, Feature]]) -> float | None:
    """Return a feature's number if it is the same in every row; None for several numbers, or text."""
    statistics = [features[name].num_stats for features in by_split.values() if name in features]
    values = {value for numbers in statistics if numbers.histograms for value in (numbers.min, numbers.max)}
    return values.pop() if len(values) == 1 else None


def _anomalies(findings: Sequence[Finding]) -> Block:
    if not findings:
        return Text("No anomalies: the data is as the schema and the checks of the data want it.", "good")
    shown = findings[:MOST_FINDINGS]
    rows = [(finding.severity, finding.kind, charts.shown(str(finding), 600), finding.remedy) for finding in shown]
    more = f", the first {MOST_FINDINGS} of {len(findings):,}" if len(findings) > MOST_FINDINGS else ""
    return Table(("Value", "Kind", "Found", "What to do"), rows, f"Anomalies{more}")


def _drift(run: FinishedRun) -> list[Block]:
    artifact = run.artifact("ExampleValidator", "anomalies")
    if artifact is None:
        return []
    measured: list[tuple[float, tuple[str, ...]]] = []
    for split in artifact_utils.decode_split_names(artifact.split_names):
        content = filesystem.read_bytes(f"{artifact_utils.get_split_uri([artifact], split)}/{ANOMALIES}")
        anomalies = anomalies_pb2.Anomalies.FromString(content)
        for info in anomalies.drift_skew_info:
            kinds = (("the train split", info.skew_measurements), ("the pushed model's data", info.drift_measurements))
            for against, measurements in kinds:
                for measurement in measurements:
                    value, threshold = measurement.value, measurement.threshold
                    kind = anomalies_pb2.DriftSkewInfo.Measurement.Type.Name(measurement.type).replace("_", " ").lower()
                    limit = f"{threshold:.3g}" if threshold else "-"
                    row = (".".join(info.path.step), split, against, f"{value:.4f}", limit, kind)
                    measured.append((-value / threshold if threshold else 0.0, row))
    if not measured:
        return [Text("No drift was measured: the schema has no skew_comparator and no drift_comparator.", "quiet")]
    measured.sort(key=lambda pair: pair[0])
    header = ("Feature", "Split", "Against", "Distance", "Limit", "Kind")
    return [Table(header, [row for _, row in measured], "Drift, nearest to its limit first", len(measured) > 10)]


def _figure(name: str, by_split: Mapping[str, Mapping[str, Feature]]) -> Figure | None:
    of_split = {split: features[name] for split, features in by_split.items() if name in features}
    missing = ", ".join(f"{split} {100 * missing_share(feature):.1f} %" for split, feature in of_split.items())
    note = f"missing: {missing}" if any(map(missing_share, of_split.values())) else ""
    shown = charts.shown(name, 40)
    alt = f"Distribution of {shown} by split"
    numbers = {split: _histogram(feature) for split, feature in of_split.items()}
    numbers = {split: buckets for split, buckets in numbers.items() if buckets}
    if numbers:
        buckets = [(split, short(a), short(b), f"{n:,.0f}") for split, bs in numbers.items() for a, b, n in bs]
        return Figure(charts.densities(numbers, alt), shown, Table(("Split", "From", "To", "Rows"), buckets), note)
    texts = {split: _values(feature) for split, feature in of_split.items()}
    values = list(next((of_train for of_train in texts.values() if of_train), {}))[:VALUES]
    if not values:
        return None
    by_name = {split: [of_text.get(value, 0.0) for value in values] for split, of_text in texts.items()}
    rows = [
        (charts.shown(value), *(f"{100 * shares[place]:.2f} %" for shares in by_name.values()))
        for place, value in enumerate(values)
    ]
    kinds = max(feature.string_stats.unique for feature in of_split.values())
    if kinds > len(values):
        note = f"{len(values)} of {kinds:,} values; {note}".removesuffix("; ")
    return Figure(charts.shares(values, by_name, alt), shown, Table(("Value", *by_name), rows), note)


def _histogram(feature: Feature) -> list[tuple[float, float, float]]:
    """Return finite buckets of equal width (low, high, rows); none for a feature that is not a number."""
    for histogram in feature.num_stats.histograms:
        if histogram.type == statistics_pb2.Histogram.STANDARD:
            buckets = [(bucket.low_value, bucket.high_value, bucket.sample_count) for bucket in histogram.buckets]
            return [bucket for bucket in buckets if math.isfinite(bucket[0]) and math.isfinite(bucket[1])]
    return []


def _values(feature: Feature) -> dict[str, float]:
    common = feature.string_stats.common_stats
    rows = common.num_missing + common.num_non_missing or 1
    buckets = feature.string_stats.rank_histogram.buckets[:VALUES]
    return {bucket.label: bucket.sample_count / rows for bucket in buckets}


def _table(features: Sequence[str], by_split: Mapping[str, Mapping[str, Feature]]) -> Table:
    rows = []
    for name in features:
        for split, of_split in by_split.items():
            if name not in of_split:
                rows.append((charts.shown(name), split, "", "", "", "", "not there"))
                continue
            feature = of_split[name]
            common = (charts.shown(name), split, f"{100 * missing_share(feature):.2f} %")
            if feature.WhichOneof("stats") == "num_stats":
                numbers = feature.num_stats
                middle = (short(numbers.mean), short(numbers.std_dev))
                rows.append((*common, *middle, f"{short(numbers.min)} to {short(numbers.max)}", ""))
            elif feature.HasField("bytes_stats"):
                sizes = feature.bytes_stats
                least, most = f"{sizes.min_num_bytes:,.0f}", f"{sizes.max_num_bytes:,.0f}"
                rows.append((*common, f"{sizes.avg_num_bytes:,.0f}", "", f"{least} to {most}", "encoded images, bytes"))
            else:
                top = ", ".join(charts.shown(value, 20) for value in list(_values(feature))[:3])
                rows.append((*common, "", "", "", f"{feature.string_stats.unique:,} values: {top}"))
    return Table(("Feature", "Split", "Missing", "Mean", "Deviation", "Range", "Values"), rows, "All features", True)
