"""What the data looks like: distributions by split, what is missing, what is wrong, what has drifted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorflow_metadata.proto.v0 import anomalies_pb2, statistics_pb2
from tensorflow_metadata.proto.v0.statistics_pb2 import FeatureNameStatistics as Feature
from tfx.dsl.io import fileio
from tfx.types import artifact_utils

from pipeline.components.data_gate import ANOMALIES, read_findings, read_statistics
from pipeline.report import charts
from pipeline.report.blocks import Block, Figure, Figures, Table, Text, short
from pipeline.report.run import FinishedRun
from pipeline.validation.findings import Finding

# Nobody looks through more charts, and each takes a tenth of a second; the other features stand in the table.
MOST_CHARTS, VALUES = 24, 8
MOST_FINDINGS = 100


def section(run: FinishedRun, importance: Mapping[str, Sequence[float]]) -> list[Block]:
    """The data of a run; charts of the features that matter most first."""
    artifact = run.artifact("StatisticsGen", "statistics")
    if artifact is None:
        return [Text("The run has not come as far as describing the data.")]
    datasets = {split: one.datasets[0] for split, one in read_statistics(artifact).items()}
    by_split = {split: {_name(one): one for one in data.features} for split, data in datasets.items()}
    features = list(dict.fromkeys(name for of_split in by_split.values() for name in of_split))
    blocks: list[Block] = [
        Table(("Split", "Rows"), [(split, f"{data.num_examples:,}") for split, data in datasets.items()], "Splits")
    ]
    found = _findings(run)
    if found is not None:
        blocks.append(_anomalies(found))
    blocks += _drift(run)
    rank = {name: place for place, name in enumerate(importance)}
    wrong = {one.feature for one in found or ()}
    ordered = sorted(features, key=lambda one: (one != run.config.label.name, one not in wrong, rank.get(one, 1e9)))
    drawn = [figure for name in ordered[:MOST_CHARTS] if (figure := _figure(name, by_split))]
    if len(features) > MOST_CHARTS:
        blocks.append(Text(f"Charts of {len(drawn)} of {len(features):,} features; the table has all.", "quiet"))
    blocks.append(Figures(drawn))
    blocks.append(_table(features, by_split))
    return blocks


def _name(feature: Feature) -> str:
    return feature.name or ".".join(feature.path.step)


def _stats(feature: Feature) -> statistics_pb2.CommonStatistics:
    kind = feature.WhichOneof("stats")
    return getattr(feature, kind).common_stats if kind else statistics_pb2.CommonStatistics()


def missing_share(feature: Feature) -> float:
    """Share of the rows without a value."""
    common = _stats(feature)
    rows = common.num_missing + common.num_non_missing
    return common.num_missing / rows if rows else 1.0


def _findings(run: FinishedRun) -> list[Finding] | None:
    anomalies = run.folder_of("ExampleValidator", "anomalies")
    return read_findings(anomalies) if anomalies else None


def _anomalies(found: Sequence[Finding]) -> Block:
    if not found:
        return Text("No anomalies: the data is as the schema and the checks of the data want it.", "good")
    rows = [(one.severity, one.kind, charts.shown(str(one), 600), one.remedy) for one in found[:MOST_FINDINGS]]
    more = f", the first {MOST_FINDINGS} of {len(found):,}" if len(found) > MOST_FINDINGS else ""
    return Table(("Comes to", "Kind", "Found", "What to do"), rows, f"Anomalies{more}")


def _drift(run: FinishedRun) -> list[Block]:
    """How far splits lie from train, and from the data of the model pushed last."""
    artifact = run.artifact("ExampleValidator", "anomalies")
    if artifact is None:
        return []
    measured: list[tuple[float, tuple[str, ...]]] = []
    for split in artifact_utils.decode_split_names(artifact.split_names):
        with fileio.open(f"{artifact_utils.get_split_uri([artifact], split)}/{ANOMALIES}", "rb") as file:
            anomalies = anomalies_pb2.Anomalies.FromString(file.read())
        for info in anomalies.drift_skew_info:
            kinds = (("the train split", info.skew_measurements), ("the pushed model's data", info.drift_measurements))
            for against, values in kinds:
                for one in values:
                    kind = anomalies_pb2.DriftSkewInfo.Measurement.Type.Name(one.type).replace("_", " ").lower()
                    limit = f"{one.threshold:.3g}" if one.threshold else "-"
                    row = (".".join(info.path.step), split, against, f"{one.value:.4f}", limit, kind)
                    measured.append((-one.value / one.threshold if one.threshold else 0.0, row))
    if not measured:
        return [Text("No drift was measured: the schema has no skew_comparator and no drift_comparator.", "quiet")]
    measured.sort(key=lambda one: one[0])
    header = ("Feature", "Split", "Against", "Distance", "Limit", "Kind")
    return [Table(header, [row for _, row in measured], "Drift, nearest to its limit first", len(measured) > 10)]


def _figure(name: str, by_split: Mapping[str, Mapping[str, Feature]]) -> Figure | None:
    of_split = {split: features[name] for split, features in by_split.items() if name in features}
    missing = ", ".join(f"{split} {100 * missing_share(one):.1f} %" for split, one in of_split.items())
    shown = charts.shown(name, 40)
    caption = f"{shown} (missing: {missing})" if any(map(missing_share, of_split.values())) else shown
    alt = f"Distribution of {shown} by split"
    numbers = {split: _histogram(one) for split, one in of_split.items()}
    numbers = {split: buckets for split, buckets in numbers.items() if buckets}
    if numbers:
        buckets = [(split, short(a), short(b), f"{n:,.0f}") for split, bs in numbers.items() for a, b, n in bs]
        return Figure(charts.densities(numbers, alt), caption, Table(("Split", "From", "To", "Rows"), buckets))
    texts = {split: _values(one) for split, one in of_split.items()}
    values = list(next((of_train for of_train in texts.values() if of_train), {}))[:VALUES]
    if not values:
        return None
    by_name = {split: [of_text.get(value, 0.0) for value in values] for split, of_text in texts.items()}
    rows = [
        (charts.shown(value), *(f"{100 * shares[place]:.2f} %" for shares in by_name.values()))
        for place, value in enumerate(values)
    ]
    kinds = max(one.string_stats.unique for one in of_split.values())
    if kinds > len(values):
        caption += f", {len(values)} of {kinds:,} values"
    return Figure(charts.shares(values, by_name, alt), caption, Table(("Value", *by_name), rows))


def _histogram(feature: Feature) -> list[tuple[float, float, float]]:
    """Buckets of equal width (low, high, rows); empty of a feature that is no number."""
    for histogram in feature.num_stats.histograms:
        if histogram.type == statistics_pb2.Histogram.STANDARD:
            return [(one.low_value, one.high_value, one.sample_count) for one in histogram.buckets]
    return []


def _values(feature: Feature) -> dict[str, float]:
    """Share of the rows by value, the most frequent first."""
    common = feature.string_stats.common_stats
    rows = common.num_missing + common.num_non_missing or 1
    return {one.label: one.sample_count / rows for one in feature.string_stats.rank_histogram.buckets[:VALUES]}


def _table(features: Sequence[str], by_split: Mapping[str, Mapping[str, Feature]]) -> Table:
    rows = []
    for name in features:
        for split, of_split in by_split.items():
            if name not in of_split:
                rows.append((charts.shown(name), split, "", "", "", "", "not there"))
                continue
            one = of_split[name]
            common = (charts.shown(name), split, f"{100 * missing_share(one):.2f} %")
            if one.WhichOneof("stats") == "num_stats":
                numbers = one.num_stats
                middle = (short(numbers.mean), short(numbers.std_dev))
                rows.append((*common, *middle, f"{short(numbers.min)} to {short(numbers.max)}", ""))
            else:
                top = ", ".join(charts.shown(value, 20) for value in list(_values(one))[:3])
                rows.append((*common, "", "", "", f"{one.string_stats.unique:,} values: {top}"))
    return Table(("Feature", "Split", "Missing", "Mean", "Deviation", "Range", "Values"), rows, "All features", True)
