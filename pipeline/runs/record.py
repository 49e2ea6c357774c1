"""Keep the record of a run in the metadata store next to TFX's own entries: command, settings and outcome."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil
from ml_metadata.metadata_store import MetadataStore
from ml_metadata.proto import metadata_store_pb2

from pipeline.packaging.fingerprints import VERSIONS_THAT_COUNT, library_fingerprint, lock_digest
from pipeline.quality.verdict import NOT_BLESSED, PUSHED
from pipeline.settings.config import PipelineConfig
from pipeline.settings.tasks import METRICS

if TYPE_CHECKING:
    from pipeline.runs.step import Step

PROPERTY = "record"
RUN_CONTEXT = "pipeline_run"
# These differ between a run and a repetition that takes every result from the cache.
FIELDS_OF_ONE_RUN = frozenset({"run", "command", "started", "seconds", "steps", "machine"})


@dataclass(frozen=True)
class Record:
    """One run; until it ends, only its name is set."""

    run: str
    command: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    started: str = ""  # local time, ISO 8601
    seconds: float = 0.0
    exit_code: int | None = None  # of the runner
    failed: tuple[str, ...] = ()  # why it failed or its model was not blessed, in sentences
    notes: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)  # over all rows of the test split
    pushed_to: str | None = None
    steps: Mapping[str, str] = field(default_factory=dict)  # state by step, in the order of the graph
    code: str = ""  # fingerprint of the library
    packages: Mapping[str, str] = field(default_factory=dict)  # versions that decide a result, and "lock"
    machine: Mapping[str, str] = field(default_factory=dict)
    artifacts: Sequence[int] = ()  # ids of the outputs of its steps, which distinguish runs with equal metrics
    cost: Mapping[str, Any] = field(default_factory=dict)  # on Vertex AI, as ``costs.estimate.to_dict`` writes it

    @property
    def main_gate(self) -> Mapping[str, Any]:
        """Return metric, floor and ceiling of the first gate over all rows; without one, a metric of the run."""
        gates = self.config["evaluation"]["gates"]
        shown = ({"metric": name} for name in METRICS if name in self.metrics)
        return next((gate for gate in gates if "floor" in gate and "by" not in gate), None) or next(shown, {})

    @property
    def verdict(self) -> str:
        """Return the outcome in a word or two."""
        if self.exit_code not in (PUSHED, NOT_BLESSED):
            return "failed"
        return "pushed" if self.pushed_to else "not blessed"


def make(
    run: str,
    command: list[str],
    config: PipelineConfig,
    started: datetime.datetime,
    exit_code: int,
    outcome: Mapping[str, Any],
    steps: Sequence[Step],
    failed: tuple[str, float] | None,
) -> Record:
    """Return the record of a run that ends now; ``outcome`` is that of verdict.json, ``failed`` a step and seconds."""
    return Record(
        run=run,
        command=shlex.join(command),
        config=dataclasses.asdict(config),
        started=started.isoformat(timespec="seconds"),
        seconds=(datetime.datetime.now() - started).total_seconds(),
        exit_code=exit_code,
        failed=tuple(outcome["failed"]),
        notes=(*outcome.get("warnings", ()), *outcome.get("notes", ())),
        metrics=dict(outcome.get("metrics", {})),
        pushed_to=outcome.get("pushed_to"),
        steps={step.name: step.state for step in steps} | ({failed[0]: "failed"} if failed else {}),
        artifacts=sorted(
            artifact.id
            for step in steps
            if step.state in ("ran", "cached")
            for found in step.outputs.values()
            for artifact in found
        ),
        code=library_fingerprint(),
        packages={**{name: importlib.metadata.version(name) for name in VERSIONS_THAT_COUNT}, "lock": lock_digest()},
        machine={
            "system": platform.platform(),
            "python": platform.python_version(),
            "processor": platform.machine(),
            "cores": str(len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()),
            "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        },
    )


def keep(store: MetadataStore, record: Record) -> None:
    """Write a record into the metadata store, if a step of the run has started."""
    context = store.get_context_by_type_and_name(RUN_CONTEXT, record.run)
    if context:
        context.custom_properties[PROPERTY].string_value = json.dumps(dataclasses.asdict(record), default=str)
        store.put_contexts([context])


def repeats(record: Record, earlier: Record) -> bool:
    """Return whether a run executed no step and has the settings, code, artifacts and outcome of an earlier one."""
    if {"ran", "failed"} & set(record.steps.values()) or not record.steps:
        return False
    ours, theirs = (
        {name: value for name, value in dataclasses.asdict(one).items() if name not in FIELDS_OF_ONE_RUN}
        for one in (record, earlier)
    )
    return json.dumps(ours, default=str, sort_keys=True) == json.dumps(theirs, default=str, sort_keys=True)


def of_context(context: metadata_store_pb2.Context) -> Record:
    """Return the record of a run; an empty one if it was interrupted."""
    text = context.custom_properties[PROPERTY].string_value if PROPERTY in context.custom_properties else ""
    if not text:
        return Record(context.name)
    read = json.loads(text)
    return Record(**{**read, **{name: tuple(read.get(name, ())) for name in ("failed", "notes")}})


def flat(values: object, name: str = "") -> dict[str, str]:
    """Return nested settings as {"training.epochs": "3"}."""
    if isinstance(values, dict) and (values or not name):
        inner = {f"{name}.{key}" if name else str(key): value for key, value in values.items()}
    elif isinstance(values, (list, tuple)) and any(isinstance(value, dict) for value in values):
        inner = {f"{name}[{place}]": value for place, value in enumerate(values)}
    else:
        return {name: ", ".join(map(str, values)) if isinstance(values, (list, tuple)) else str(values)}
    return {key: text for key_of, value in inner.items() for key, text in flat(value, key_of).items()}
