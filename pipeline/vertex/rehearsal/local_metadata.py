"""What Vertex ML Metadata does for a pipeline, in one JSON file: artifacts by name, a resolver's query, the cache."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeline import filesystem
from pipeline.errors import UserError

# Artifacts, as the executors get them (RuntimeArtifact): name, uri, type, metadata.
Artifact = dict[str, Any]
STORE = "projects/rehearsal/locations/local/metadataStores/default/artifacts"


class LocalMetadata:
    """A metadata store of one pipeline.

    Args:
        file: Holds it; made when something is added.

    Raises:
        UserError: the file is none of this class's.
    """

    def __init__(self, file: Path):
        self._file = file
        try:
            content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        except ValueError as error:
            raise UserError(
                f"{file} is damaged ({error}); delete it, and the next rehearsal runs every task"
            ) from error
        self._artifacts: dict[str, Artifact] = content.get("artifacts", {})
        self._cache: dict[str, dict[str, list[str]]] = content.get("cache", {})
        self._next = len(self._artifacts) + 1

    def new_name(self) -> str:
        """A name that no artifact has."""
        self._next += 1
        return f"{STORE}/{self._next}"

    def add(self, artifacts: Mapping[str, list[Artifact]], cache_key: str | None = None) -> None:
        """Keeps the outputs of a task, and for which key they are the outcome."""
        now = time.time()
        for several in artifacts.values():
            for artifact in several:
                self._artifacts.setdefault(artifact["name"], {**artifact, "created": now})
        if cache_key:
            self._cache[cache_key] = {key: [one["name"] for one in several] for key, several in artifacts.items()}
        filesystem.write(self._file, json.dumps({"artifacts": self._artifacts, "cache": self._cache}, indent=1))

    def cached(self, key: str) -> dict[str, list[Artifact]] | None:
        """The outputs of a task that ran with this key; None if there was none or its files are gone."""
        names = self._cache.get(key)
        if names is None:
            return None
        outputs = {output: [self._artifacts[name] for name in several] for output, several in names.items()}
        there = all(Path(one["uri"]).exists() for several in outputs.values() for one in several)
        return outputs if there else None

    def made(self, name: str) -> float:
        """When an artifact was kept, in seconds since the epoch."""
        return float(self._artifacts[name]["created"])

    def imported(self, uri: str, schema: str) -> Artifact | None:
        """An artifact that was imported before from the same place."""
        return next(
            (one for one in self._artifacts.values() if (one["uri"], one["type"]) == (uri, _type(schema))), None
        )

    def latest(self, query: str) -> Artifact | None:
        """The newest artifact that meets a resolver's filter, such as 'schema_title="tfx.Model" AND state=LIVE'.

        Raises:
            UserError: the filter has a condition that is not known here.
        """
        wanted = []
        for condition in query.split(" AND "):
            field, equals, value = condition.partition("=")
            if not equals or not re.fullmatch(r"schema_title|state|name|metadata\.\w+\.\w+_value", field.strip()):
                raise UserError(f"the rehearsal cannot answer the condition {condition!r} of the query {query!r}")
            wanted.append((field.strip(), value.strip().strip('"')))
        found = [one for one in self._artifacts.values() if all(_meets(one, *condition) for condition in wanted)]
        return max(found, key=lambda one: one["created"], default=None)


def _type(schema: str) -> dict[str, str]:
    return {"instanceSchema": schema}


def _meets(artifact: Artifact, field: str, value: str) -> bool:
    if field == "state":
        return value == "LIVE"
    if field == "schema_title":
        return bool(yaml.safe_load(artifact["type"]["instanceSchema"])["title"] == value)
    if field == "name":
        return bool(artifact["name"] == value)
    _, key, kind = field.split(".")
    found = artifact.get("metadata", {}).get(key)
    if kind == "number_value":
        return isinstance(found, (int, float)) and found == float(value)
    return found == value
