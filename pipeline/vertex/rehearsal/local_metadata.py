"""Vertex ML Metadata in one JSON file: artifacts by name, queries of resolvers, and the cache."""

import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tfx.dsl.io import fileio

from pipeline import filesystem
from pipeline.errors import UserError

# As the executors get it (RuntimeArtifact): name, uri, type, metadata.
Artifact = dict[str, Any]
STORE = "projects/rehearsal/locations/local/metadataStores/default/artifacts"


class LocalMetadata:
    """A metadata store of one pipeline; its file is created when something is added."""

    def __init__(self, file: Path):
        self._file = file
        try:
            content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        except ValueError as error:
            raise UserError(
                f"{file} is damaged ({error}); delete it, and the next rehearsal runs every task"
            ) from error
        self._artifacts: dict[str, Artifact] = content.get("artifacts", {})
        self._created: dict[str, float] = content.get("created", {})
        self._cache: dict[str, dict[str, list[str]]] = content.get("cache", {})
        self._next = len(self._artifacts) + 1

    def new(self, uri: str | Path, schema: str | None = None, metadata: Mapping[str, Any] | None = None) -> Artifact:
        """Return an artifact under a name that no other has; it is kept by ``add``."""
        self._next += 1
        kind = {"type": {"instanceSchema": schema}} if schema else {}
        return {"name": f"{STORE}/{self._next}", "uri": str(uri), **kind, "metadata": dict(metadata or {})}

    def add(self, outputs: Mapping[str, list[Artifact]], cache_key: str | None = None) -> None:
        """Keep the outputs of a task, and the key under which the cache finds them."""
        for artifacts in outputs.values():
            for artifact in artifacts:
                self._artifacts.setdefault(artifact["name"], artifact)
                self._created.setdefault(artifact["name"], time.time())
        if cache_key:
            names = {key: [artifact["name"] for artifact in artifacts] for key, artifacts in outputs.items()}
            self._cache[cache_key] = names
        content = {"artifacts": self._artifacts, "created": self._created, "cache": self._cache}
        filesystem.write(self._file, json.dumps(content, indent=1))

    def cached(self, key: str) -> dict[str, list[Artifact]] | None:
        """Return the outputs of a task that ran with this key; None if none did or its files are gone."""
        if key not in self._cache:
            return None
        outputs = {output: [self._artifacts[name] for name in names] for output, names in self._cache[key].items()}
        uris = [artifact["uri"] for artifacts in outputs.values() for artifact in artifacts]
        return outputs if all(map(fileio.exists, uris)) else None

    def created(self, artifact: Artifact) -> float:
        """Return when an artifact was kept, in seconds since the epoch."""
        return self._created[artifact["name"]]

    def imported(self, uri: str, schema: str) -> Artifact | None:
        """Return an artifact that was imported before from the same place."""
        wanted = (uri, {"instanceSchema": schema})
        matching = (artifact for artifact in self._artifacts.values() if (artifact["uri"], artifact["type"]) == wanted)
        return next(matching, None)

    def latest(self, query: str) -> Artifact | None:
        """Return the newest artifact that meets a filter such as 'schema_title="tfx.Model" AND state=LIVE'."""
        conditions = []
        for condition in query.split(" AND "):
            field, equals, value = (part.strip() for part in condition.partition("="))
            if not equals or not re.fullmatch(r"schema_title|state|name|metadata\.\w+\.\w+_value", field):
                raise UserError(f"the rehearsal cannot answer the condition {condition!r} of the query {query!r}")
            conditions.append((field, value.strip('"')))
        matching = [
            artifact for artifact in self._artifacts.values() if all(_meets(artifact, *pair) for pair in conditions)
        ]
        return max(matching, key=self.created, default=None)


def _meets(artifact: Artifact, field: str, value: str) -> bool:
    if field == "state":
        return value == "LIVE"
    if field == "schema_title":
        return bool(yaml.safe_load(artifact["type"]["instanceSchema"])["title"] == value)
    if field == "name":
        return bool(artifact["name"] == value)
    _, key, kind = field.split(".")
    content = artifact["metadata"].get(key)
    if kind == "number_value":
        return isinstance(content, (int, float)) and content == float(value)
    return bool(content == value)
