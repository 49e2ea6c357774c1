"""Keep the statistics of the data that pushed models were trained on, and of their predictions, for the next run.

One folder a pushed model, ``<root>/<version>/``, with ``<split>.pb``, ``predictions.pb`` of the test split and, written
last, ``manifest.json``. A folder of
files and no artifact: TFX's resolvers find the newest artifact, whether that model was pushed or not, and a newer one
would make an unchanged pipeline run again.
"""

import json
from collections.abc import Mapping
from typing import Any

from google.protobuf.message import DecodeError

from pipeline import filesystem
from pipeline.errors import UserError, first_line
from pipeline.validation.statistics import Statistics

MANIFEST = "manifest.json"
PREDICTIONS = "predictions.pb"


def write(
    root: str,
    version: str,
    statistics: Mapping[str, Statistics],
    manifest: Mapping[str, Any],
    predictions: Statistics | None = None,
) -> None:
    """Keep the statistics by split, and those of predictions, of a pushed version, which is a number as text."""
    folder = f"{root}/{version}"
    for split, of_split in statistics.items():
        filesystem.write(f"{folder}/{split}.pb", of_split.SerializeToString())
    if predictions is not None:
        filesystem.write(f"{folder}/{PREDICTIONS}", predictions.SerializeToString())
    filesystem.write(f"{folder}/{MANIFEST}", json.dumps({**manifest, "splits": list(statistics)}, indent=2))


def versions(root: str) -> list[str]:
    """Return the versions whose statistics were kept, oldest first."""
    found = [file.split("/")[-2] for file in filesystem.find_files(root, f"*/{MANIFEST}")]
    return sorted(found, key=lambda version: (len(version), version))


def read_newest(root: str) -> dict[str, Statistics]:
    """Read the statistics by split of the version pushed last; empty when there is none.

    Raises:
        UserError: a file of them is damaged.
    """
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


def read(root: str, version: str, split: str) -> Statistics | None:
    """Read the statistics of a split of a pushed version's data; None where they were not kept."""
    folder = f"{root}/{version}"
    return _read(f"{folder}/{split}.pb") if filesystem.exists(f"{folder}/{MANIFEST}") else None


def read_predictions(root: str, version: str) -> Statistics | None:
    """Read the statistics of a pushed version's predictions for its test split; None where they were not kept."""
    path = f"{root}/{version}/{PREDICTIONS}"
    return _read(path) if filesystem.exists(path) else None


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
