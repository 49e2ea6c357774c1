"""Keep the statistics of the data that pushed models were trained on, and compare the next data with them.

``<root>/<version>/`` has ``<split>.pb``, ``predictions.pb`` of the test split and, written last, ``manifest.json``.
These are plain files: TFX's resolvers would find the newest artifact, whether its model was pushed or not, and a newer
one would make an unchanged pipeline run again.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow_data_validation as tfdv
from google.protobuf.message import DecodeError
from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline import filesystem
from pipeline.errors import UserError, first_line
from pipeline.quality.findings import Finding
from pipeline.quality.statistics import (
    Remedies,
    Statistics,
    features_of,
    image_column,
    percent,
    present,
    too_far,
)
from pipeline.settings.gates import DataChecks
from pipeline.settings.image_data import facts

MANIFEST = "manifest.json"
PREDICTIONS = "predictions"  # kept as if they were a split
# Of both data sets: distances between fewer rows are chance.
LEAST_ROWS = 100


def write(
    root: str,
    version: str,
    statistics: Mapping[str, Statistics],
    manifest: Mapping[str, Any],
    predictions: Statistics | None = None,
) -> None:
    """Keep the statistics by split, and those of predictions, of a pushed version."""
    folder = f"{root}/{version}"
    for name, kept in {**statistics, PREDICTIONS: predictions}.items():
        if kept is not None:
            filesystem.write(f"{folder}/{name}.pb", kept.SerializeToString())
    filesystem.write(f"{folder}/{MANIFEST}", json.dumps({**manifest, "splits": list(statistics)}, indent=2))


def versions(root: str) -> list[str]:
    """Return the versions whose statistics were kept, oldest first."""
    found = [file.split("/")[-2] for file in filesystem.find_files(root, f"*/{MANIFEST}")]
    return sorted(found, key=lambda version: (len(version), version))


def read_newest(root: str) -> dict[str, Statistics]:
    """Read the statistics by split of the version pushed last; empty if no version exists."""
    if not (kept := versions(root)):
        return {}
    folder = f"{root}/{kept[-1]}"
    try:
        splits = list(json.loads(filesystem.read_bytes(f"{folder}/{MANIFEST}"))["splits"])
        unknown = [str(split) for split in splits if not filesystem.exists(f"{folder}/{split}.pb")]
        if unknown:
            raise ValueError(f"it names a split {unknown[0]!r} that has no file")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(_damaged(f"{folder}/{MANIFEST}", error)) from error
    return {split: _read(f"{folder}/{split}.pb") for split in splits}


def read(root: str, version: str, name: str) -> Statistics | None:
    """Read the statistics of a split, or of ``PREDICTIONS``, of a pushed version; None where they were not kept."""
    folder = f"{root}/{version}"
    kept = filesystem.exists(f"{folder}/{MANIFEST}") and filesystem.exists(f"{folder}/{name}.pb")
    return _read(f"{folder}/{name}.pb") if kept else None


def _read(path: str) -> Statistics:
    try:
        return Statistics.FromString(filesystem.read_bytes(path))
    except (OSError, DecodeError) as error:
        raise UserError(_damaged(path, error)) from error


def _damaged(path: str, error: Exception) -> str:
    return (
        f"{path} does not hold the statistics of a pushed model's data: it is damaged or cut short "
        f"({first_line(error)[:200]}); copy it back, or delete its folder: then nothing is compared with that version"
    )


def moved(
    statistics: Statistics,
    earlier: Statistics | None,
    version: str,
    schema: schema_pb2.Schema,
    checks: DataChecks,
    remedies: Remedies,
) -> Iterator[Finding]:
    """Yield a finding for each column of train without a drift_comparator that has moved past ``checks.max_moved``.

    For example, a number in another unit, or a category or values that are missing now. A finding names the version of
    ``earlier``, because a cached step repeats it after the next push.
    """
    if earlier is None:
        return
    rows, before = (float(several.datasets[0].num_examples) for several in (statistics, earlier))
    if min(rows, before) < LEAST_ROWS:
        return
    judged = _with_limits(schema, checks.max_moved)
    here, there = features_of(statistics), features_of(earlier)
    limit = f"a schema without drift_comparator warns past {checks.max_moved:g}"
    whose = f"the data of the pushed version {version}"
    tag = 'annotation { tag: "moved: ignore" }'

    def finding(name: str, found: str) -> Finding:
        remedy = f"say how far it may move: a drift_comparator, or {tag}, of {name} in {remedies.schema}"
        return Finding("moved", "train", name, found, limit, remedy if remedies.schema else remedies.accept(name))

    for name in judged:
        missing, was_missing = 1 - present(here.get(name)) / rows, 1 - present(there.get(name)) / before
        if abs(missing - was_missing) > checks.max_moved:
            yield finding(name, f"{percent(missing)} of the rows have no value, {percent(was_missing)} in {whose}")
    limits = schema_pb2.Schema(feature=judged.values())
    for info in tfdv.validate_statistics(statistics, limits, previous_statistics=earlier).drift_skew_info:
        name = ".".join(info.path.step)
        for _, found in too_far(info.drift_measurements, here.get(name), there.get(name), whose):
            yield finding(name, found)


def _with_limits(schema: schema_pb2.Schema, limit: float) -> dict[str, schema_pb2.Feature]:
    """Return each column without a configured drift limit, with ``limit`` as its limit."""
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
