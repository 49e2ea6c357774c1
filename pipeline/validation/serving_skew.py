"""What was asked of a served model, against what it was trained on, by the schema's limits."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import tensorflow_data_validation as tfdv
from tensorflow_data_validation.statistics import stats_impl
from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline.settings.gates import DataChecks
from pipeline.validation.findings import Finding, with_severity
from pipeline.validation.statistics import SERVING, Remedies, Statistics, validate
from pipeline.validation.wrong_values import with_values

SPLIT = "serving"
_TYPES = {
    schema_pb2.INT: pa.list_(pa.int64()),
    schema_pb2.FLOAT: pa.list_(pa.float32()),
    schema_pb2.BYTES: pa.list_(pa.large_binary()),
}


def without_label(schema: schema_pb2.Schema, label: str) -> schema_pb2.Schema:
    """The schema of what is asked."""
    asked = schema_pb2.Schema()
    asked.CopyFrom(schema)
    del asked.feature[:]
    asked.feature.extend(feature for feature in schema.feature if feature.name != label)
    return asked


def as_table(instances: Sequence[Mapping[str, Any]], schema: schema_pb2.Schema) -> pa.Table:
    """Instances as JSON has them → columns of lists, as TensorFlow Data Validation reads them.

    A value of another type than the schema's counts as missing: the server refuses such instances, and other logs may
    have them.
    """
    columns = {}
    for feature in schema.feature:
        type_ = _TYPES[feature.type]
        values = [_values(instance.get(feature.name), type_.value_type) for instance in instances]
        columns[feature.name] = pa.array(values, type_)
    return pa.table(columns)


def statistics_of(table: pa.Table) -> Statistics:
    """Statistics as StatisticsGen makes them."""
    (batch,) = table.combine_chunks().to_batches()
    return stats_impl.generate_statistics_in_memory(batch, tfdv.StatsOptions())


def judged(
    instances: Sequence[Mapping[str, Any]],
    schema: schema_pb2.Schema,
    train: Statistics,
    label: str,
    checks: DataChecks,
    remedies: Remedies,
) -> tuple[Statistics, list[Finding]]:
    """Statistics of what is asked, and the findings; see ``findings``."""
    schema = without_label(schema, label)
    table = as_table(instances, schema)
    statistics = statistics_of(table)
    return statistics, findings(table, statistics, train, schema, label, checks, remedies)


def findings(
    asked: pa.Table,
    statistics: Statistics,
    train: Statistics,
    schema: schema_pb2.Schema,
    label: str,
    checks: DataChecks,
    remedies: Remedies,
) -> list[Finding]:
    """Where what is asked departs from the schema, or lies further from the training data than it allows.

    Args:
        asked: The rows.
        statistics: Of them.
        train: Of the train split of the model that was asked.
        schema: Without the label; its skew_comparators are the limits.
        label: Column that is not asked for.
        checks: Severities.
        remedies: Where findings are accepted.

    Returns:
        What stops first.
    """
    _, found = validate({SPLIT: statistics}, schema, label, checks, remedies, {}, train=train, environment=SERVING)
    found = with_severity(with_values(found, [asked], schema), checks.severity, schema)
    return sorted(found, key=lambda finding: finding.severity != "stop")


def _values(value: Any, type_: pa.DataType) -> list[Any] | None:
    if value is None:
        return None
    made = [_value(one, type_) for one in (value if isinstance(value, list) else [value])]
    return None if any(one is None for one in made) else made


def _value(value: Any, type_: pa.DataType) -> Any:
    if pa.types.is_large_binary(type_):
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and isinstance(value.get("b64"), str):
            try:
                return base64.b64decode(value["b64"], validate=True)
            except (binascii.Error, ValueError):
                return None
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        return None
    if pa.types.is_integer(type_):
        return int(value) if float(value).is_integer() and abs(value) < 2**63 else None
    return float(value)
