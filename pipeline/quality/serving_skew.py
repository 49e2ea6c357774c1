"""Compare the requests to a served model with its training data, by the limits of the schema."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tensorflow_data_validation.statistics import stats_impl
from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline import filesystem
from pipeline.model.inputs import Input
from pipeline.quality import findings, predictions
from pipeline.quality.request_rows import RequestRows
from pipeline.quality.statistics import (
    Remedies,
    Statistics,
    features_of,
    image_column,
    options_for,
    percent,
    validate,
)
from pipeline.quality.wrong_values import LEAST_KNOWN, Known, in_another_notation, with_values
from pipeline.settings.config import Label, PipelineConfig
from pipeline.settings.image_data import facts
from pipeline.settings.names import SERVING
from pipeline.settings.notations import listed_values, notation_of
from pipeline.settings.repository import shown

SPLIT = "serving"
_TYPES = {
    schema_pb2.INT: ("integers", pa.list_(pa.int64())),
    schema_pb2.FLOAT: ("floats", pa.list_(pa.float32())),
    schema_pb2.BYTES: ("text", pa.list_(pa.large_binary())),
}


def report(
    requests: RequestRows,
    schema: schema_pb2.Schema,
    train: Statistics,
    config: PipelineConfig,
    remedies: Remedies,
    folder: str,
    of_test: Statistics | None,
) -> tuple[list[str], bool]:
    """Compare requests with the training data; return the lines of the report, and whether a limit is crossed.

    Args:
        requests: Of one version of the model.
        schema: With skew_comparators as limits.
        train: Statistics of the train split of that version.
        config: Of the pipeline.
        remedies: For the findings.
        folder: Receives statistics and findings.
        of_test: Statistics of the predictions for the test split; None where they were not kept.
    """
    label, checks = config.label.name, config.data_checks
    of_requests = _schema_of_requests(schema, config.label)
    table = _as_table(requests.instances, of_requests)
    statistics = statistics_of(table)
    _, found = validate({SPLIT: statistics}, of_requests, label, checks, remedies, {}, train=train, environment=SERVING)
    drifted, note = _prediction_drift(requests, of_test, config)
    found = [*with_values(found, [table], schema), *in_another_notation(SPLIT, [table], schema), *drifted]
    found += _unknown(table, of_requests, train, remedies)
    found = findings.with_severity(found, checks.severity, schema)
    filesystem.write(f"{folder}/Split-{SPLIT}/FeatureStats.pb", statistics.SerializeToString())
    filesystem.write(f"{folder}/{findings.FILE}", findings.to_json(found) + "\n")
    rows = f"{len(requests.instances):,} rows of version {requests.version}, {requests.first} to {requests.last}"
    rows += f", {requests.others:,} rows of other versions skipped" if requests.others else ""
    rows += f", {requests.broken:,} lines that are not rows" if requests.broken else ""
    lines = [rows, *note]
    for finding in found:
        word = "crossed" if finding.severity == "stop" else "warning"
        lines += [f"  {word}  {finding}", f"           {finding.remedy}"]
    stops = list(dict.fromkeys(finding.feature for finding in found if finding.severity == "stop"))
    lines.append(f"crossed: {', '.join(stops)}" if stops else "within the limits of the schema")
    if not any(feature.HasField("skew_comparator") for feature in of_requests.feature):
        lines.append(
            "note: no column has a skew_comparator in the schema, so no column's distribution was compared, only "
            "types, ranges, listed values and predictions; docs/gates.md has an example"
        )
    return [*lines, f"statistics and findings: {shown(folder)}"], bool(stops)


def _unknown(
    table: pa.Table, schema: schema_pb2.Schema, train: Statistics, remedies: Remedies
) -> Iterator[findings.Finding]:
    """Yield a finding for each column of text without a domain of which hardly a value was in training."""
    of_train = features_of(train)
    for feature in schema.feature:
        column = of_train.get(feature.name)
        unjudged = feature.type != schema_pb2.BYTES or feature.lifecycle_stage == schema_pb2.DISABLED
        if column is None or unjudged or listed_values(feature, schema) or notation_of(feature):
            continue
        values = [bucket.label for bucket in column.string_stats.rank_histogram.buckets]
        if not 0 < column.string_stats.unique <= len(values):
            continue  # only the most frequent ones were kept
        known = Known(values)
        known.add(pc.list_flatten(table.column(feature.name)).to_numpy())
        if known.are_few:
            limit = f"at least {percent(LEAST_KNOWN)} are expected to be known"
            yield findings.Finding("moved", SPLIT, feature.name, str(known), limit, remedies.accept(feature.name))


def _prediction_drift(
    requests: RequestRows, of_test: Statistics | None, config: PipelineConfig
) -> tuple[list[findings.Finding], list[str]]:
    """Return the findings about the predictions, and a line that says why they were not judged."""
    classes = config.label.classes
    if of_test is None:
        return [], ["  predictions are not judged: none of the test split were kept when this version was pushed"]
    values = predictions.values_of(predictions.from_json(requests.predictions, classes, config.evaluation.logits))
    if len(values) < max(1, len(requests.instances) / 2):
        return [], [f"  predictions are not judged: the log has them of {len(values):,} rows only"]
    mine = predictions.statistics_of(values, classes)
    return list(predictions.drift(mine, of_test, config.data_checks, SPLIT)), []


def _schema_of_requests(schema: schema_pb2.Schema, label: Label) -> schema_pb2.Schema:
    """Return the schema of logged requests: without label and weight, and with facts about images in place of these."""
    of_requests = schema_pb2.Schema()
    of_requests.CopyFrom(schema)
    image = image_column(schema)
    path, folder, *known = facts(image) if image else ("", "")
    for feature in schema.feature:
        if feature.name in (label.name, label.weight, image, path, folder):
            of_requests.feature.remove(feature)
    for feature in of_requests.feature:
        if feature.name in known:
            del feature.not_in_environment[:]
    return of_requests


def statistics_of(table: pa.Table, image: str | None = None) -> Statistics:
    """Return the statistics of a table of lists, as StatisticsGen makes them, with its column of encoded images."""
    (batch,) = table.combine_chunks().to_batches()
    with np.errstate(invalid="ignore"):  # the mean of infinite numbers
        return stats_impl.generate_statistics_in_memory(batch, options_for(image))


def _as_table(instances: Sequence[Mapping[str, Any]], schema: schema_pb2.Schema) -> pa.Table:
    """Return instances from JSON as columns of lists; values of a wrong type, which only other servers log, as null."""
    columns = {}
    for feature in schema.feature:
        kind, type_ = _TYPES[feature.type]
        column = Input(feature.name, kind, False, np.dtype(np.float32), known=tuple(listed_values(feature, schema)))
        values = [_values(instance.get(feature.name), column) for instance in instances]
        columns[feature.name] = pa.array(values, type_)
    return pa.table(columns)


def _values(value: Any, column: Input) -> list[Any] | None:
    try:
        return [column.convert(item) for item in (value if isinstance(value, list) else [value])]
    except ValueError:
        return None
