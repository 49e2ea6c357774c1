"""Warn of columns that lie far from the data of the model pushed last, where the schema says nothing of how far.

A number that comes in another unit, a category that is gone, a column that is no longer filled: types, ranges and
listed values may all be right. A ``drift_comparator`` is a person's limit and stops the run; this is for the columns
that have none, as in a schema that ``pipeline new`` has written.
"""

from collections.abc import Iterator

import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline.settings.gates import DataChecks
from pipeline.settings.image_data import facts
from pipeline.validation.findings import Finding
from pipeline.validation.statistics import (
    MEASURES,
    Remedies,
    Statistics,
    compared,
    features_of,
    image_column,
    percent,
    present,
)

# Of both: distances between fewer rows are chance.
LEAST_ROWS = 100


def moved(
    split: str,
    statistics: Statistics,
    earlier: Statistics | None,
    version: str,
    schema: schema_pb2.Schema,
    checks: DataChecks,
    remedies: Remedies,
) -> Iterator[Finding]:
    """Yield a finding for each column without a drift_comparator that has moved past ``checks.max_moved``.

    Args:
        split: Its name.
        statistics: Of its rows.
        earlier: Of the same split when the model pushed last was trained; None where there is none.
        version: Of that model. The finding names it, for a step that is cached tells it again after the next push.
        schema: The reviewed one.
        checks: With the limit.
        remedies: Files in which findings are accepted.
    """
    if earlier is None or min(_rows(statistics), _rows(earlier)) < LEAST_ROWS:
        return
    judged = _with_limits(schema, checks.max_moved)
    here, there = features_of(statistics), features_of(earlier)
    shares = {name: present(here.get(name)) / _rows(statistics) for name in judged}
    were = {name: present(there.get(name)) / _rows(earlier) for name in judged}
    limit = f"a schema without drift_comparator warns past {checks.max_moved:g}"
    for name in judged:
        if abs(shares[name] - were[name]) > checks.max_moved:
            found = f"{percent(1 - shares[name])} of the rows have no value, "
            found += f"{percent(1 - were[name])} in the data of the pushed version {version}"
            yield Finding("moved", split, name, found, limit, _remedy(name, remedies))
    limits = schema_pb2.Schema(feature=judged.values())
    for info in tfdv.validate_statistics(statistics, limits, previous_statistics=earlier).drift_skew_info:
        name = ".".join(info.path.step)
        for measured in info.drift_measurements:
            if measured.value > measured.threshold:
                measure = MEASURES.get(measured.type, "distance")
                found = f"{measure} distance {measured.value:.3f} from the data of the pushed version {version}"
                found += compared(here.get(name), there.get(name))
                yield Finding("moved", split, name, found, limit, _remedy(name, remedies))


def _with_limits(schema: schema_pb2.Schema, limit: float) -> dict[str, schema_pb2.Feature]:
    """Return the columns that have no limit of their own, each with one."""
    image = image_column(schema)
    judged = {}
    for feature in schema.feature:
        if feature.HasField("drift_comparator") or feature.lifecycle_stage == schema_pb2.DISABLED:
            continue
        if image and (feature.name == image or feature.name in facts(image)):
            continue
        with_limit = schema_pb2.Feature(name=feature.name, type=feature.type)
        if feature.type == schema_pb2.BYTES:
            with_limit.drift_comparator.infinity_norm.threshold = limit
        else:
            with_limit.drift_comparator.jensen_shannon_divergence.threshold = limit
        judged[feature.name] = with_limit
    return judged


def _remedy(name: str, remedies: Remedies) -> str:
    if not remedies.schema:
        return remedies.accept(name)
    tag = 'annotation { tag: "moved: ignore" }'
    return f"say how far it may move: a drift_comparator, or {tag}, of {name} in {remedies.schema}"


def _rows(statistics: Statistics) -> float:
    return float(statistics.datasets[0].num_examples)
