"""Statistics of the data that the model pushed last was trained on, kept where the next run finds them.

One folder a pushed model, ``<root>/<version>/``, with ``<split>.pb`` and, written last, ``manifest.json``. A folder of
files and no artifact: TFX's resolvers find the newest artifact, whether that model was pushed or not, and a newer one
would make an unchanged pipeline run again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tfx.dsl.io import fileio

from pipeline.validation.statistics import Statistics

MANIFEST = "manifest.json"


def write(root: str, version: str, statistics: Mapping[str, Statistics], manifest: Mapping[str, Any]) -> None:
    """Keeps the statistics by split of a pushed version, which is a number as text."""
    folder = f"{root}/{version}"
    fileio.makedirs(folder)
    for split, one in statistics.items():
        with fileio.open(f"{folder}/{split}.pb", "wb") as file:
            file.write(one.SerializeToString())
    with fileio.open(f"{folder}/{MANIFEST}", "w") as file:
        file.write(json.dumps({**manifest, "splits": list(statistics)}, indent=2))


def read_newest(root: str) -> dict[str, Statistics]:
    """Statistics by split of the version pushed last; empty when there is none."""
    if not fileio.exists(root):
        return {}
    versions = sorted((name.strip("/") for name in fileio.listdir(root)), key=lambda name: (len(name), name))
    for version in reversed(versions):
        folder = f"{root}/{version}"
        if fileio.exists(f"{folder}/{MANIFEST}"):
            with fileio.open(f"{folder}/{MANIFEST}") as file:
                splits = json.load(file)["splits"]
            return {split: _read(f"{folder}/{split}.pb") for split in splits}
    return {}


def read(root: str, version: str, split: str) -> Statistics | None:
    """Statistics of a split of a pushed version's data; None where they were not kept."""
    folder = f"{root}/{version}"
    return _read(f"{folder}/{split}.pb") if fileio.exists(f"{folder}/{MANIFEST}") else None


def _read(path: str) -> Statistics:
    with fileio.open(path, "rb") as file:
        return Statistics.FromString(file.read())
