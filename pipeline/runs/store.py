"""Read the runs from a metadata store: their steps, states and artifacts."""

import contextlib
import datetime
import re
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml_metadata import errors
from ml_metadata.metadata_store import MetadataStore
from ml_metadata.proto import metadata_store_pb2
from ml_metadata.proto.metadata_store_pb2 import Artifact, Event, Execution

from pipeline.errors import UserError
from pipeline.runs.record import RUN_CONTEXT, Record, of_context

FILE = "metadata.sqlite"
# Prefix of the names of contexts that are not runs: rows were read to take a sample of them.
SAMPLED = "sampled-"


@dataclass(frozen=True)
class Run:
    """A run in the store."""

    name: str  # such as "2026-11-21T09-47-15"
    started: datetime.datetime  # local time
    record: Record  # empty if the run is running or was interrupted
    executions: Mapping[str, Execution]  # by node of the graph
    makers: Mapping[str, Execution]  # of cached steps the executions that made the artifacts, which have the settings
    outputs: Mapping[str, Mapping[str, list[Artifact]]]  # by node, then by output name

    @property
    def verdict(self) -> str:
        """Return the outcome in a word or two."""
        if self.record.exit_code is not None:
            return self.record.verdict
        return "unfinished" if "Verdict" not in self.executions else "not recorded"

    @property
    def seconds(self) -> float:
        """Return the duration in seconds; for an unfinished run, until its last update."""
        if self.record.exit_code is not None:
            return self.record.seconds
        times = (execution.last_update_time_since_epoch for execution in self.executions.values())
        return max(0.0, max(times, default=0) / 1000 - self.started.timestamp())

    @property
    def seconds_of_steps(self) -> dict[str, float]:
        """Return the seconds by step; for a cached step, the seconds of the execution that made its artifacts."""
        return {node: seconds_of(maker) for node, maker in self.makers.items() if self.state(node) in ("ran", "cached")}

    def artifact(self, node: str, output: str) -> Artifact | None:
        """Return the first artifact of an output; None if the output has no artifact."""
        return next(iter(self.outputs.get(node, {}).get(output, [])), None)

    def state(self, node: str) -> str:
        """Return the outcome of a step in a word or two."""
        if node in self.record.steps:
            return self.record.steps[node]
        state = self.executions[node].last_known_state
        words = {Execution.COMPLETE: "ran", Execution.CACHED: "cached", Execution.RUNNING: "unfinished"}
        return words.get(state, Execution.State.Name(state).lower())

    def settings(self, node: str) -> dict[str, Any]:
        """Return the parameters of a step."""
        properties = self.makers[node].custom_properties if node in self.makers else {}
        return {name: getattr(value, str(value.WhichOneof("value"))) for name, value in properties.items()}


def seconds_of(execution: Execution) -> float:
    """Return the seconds of an execution from its start to its last update."""
    return float(execution.last_update_time_since_epoch - execution.create_time_since_epoch) / 1000


def numbered_folders(artifacts: Path) -> list[Path]:
    """Return the folders that executions have written, <step>/<output>/<number>."""
    # Folders whose name begins with "_" do not belong to a step: the versions in them are numbered by the clock.
    return [path for path in sorted(artifacts.glob("[!_]*/[!.]*/*")) if re.fullmatch(r"\d{1,15}", path.name)]


@contextlib.contextmanager
def opened(output: Path, *, write: bool = False) -> Iterator[MetadataStore]:
    """Open the metadata store below an output folder, which must exist; raise a UserError if it is damaged."""
    file = output / FILE
    _roll_back(file)
    config = metadata_store_pb2.ConnectionConfig()
    config.sqlite.filename_uri = str(file)
    mode = metadata_store_pb2.SqliteMetadataSourceConfig
    config.sqlite.connection_mode = mode.READWRITE if write else mode.READONLY
    try:
        store = MetadataStore(config)
        store.get_context_types()
    except (RuntimeError, errors.StatusError) as error:
        first = str(error).partition(" query: ")[0].partition("\n")[0][:200]
        raise UserError(
            f"{file} cannot be read as a metadata store: {first}. Put back a copy of the file, or move it away: "
            "the next run then starts a new one and executes every step; models pushed before stay where they are"
        ) from error
    yield store


def records(output: Path) -> list[Record]:
    """Return the records of all runs below an output folder that have ended, the oldest first."""
    if not (output / FILE).is_file():
        return []
    with opened(output) as metadata:
        contexts = sorted(metadata.get_contexts_by_type(RUN_CONTEXT), key=lambda context: context.id)
    return [record for context in contexts if (record := of_context(context)).exit_code is not None]


def _roll_back(file: Path) -> None:
    """Roll back a half-written transaction of a killed run: a connection that only reads cannot, and fails.

    SQLite does it (https://www.sqlite.org/atomiccommit.html#_rollback) unless the lock of a running writer is held.
    """
    if file.with_name(f"{file.name}-journal").exists():
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(file)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()


def check(output: Path) -> None:
    """Raise a UserError when there is a store and it is damaged."""
    if (output / FILE).is_file() and (output / FILE).stat().st_size:
        with opened(output):
            pass


def runs(output: Path) -> list[Run]:
    """Return all runs below an output folder, the oldest first."""
    if not (output / FILE).is_file():
        return []
    with opened(output) as metadata:
        return runs_of(metadata)


def runs_of(store: MetadataStore) -> list[Run]:
    """Return all runs, the oldest first."""
    contexts = [one for one in store.get_contexts_by_type(RUN_CONTEXT) if not one.name.startswith(SAMPLED)]
    return [_run(store, context) for context in sorted(contexts, key=lambda context: context.id)]


def find(runs: list[Run], name: str | None, place: int = -1) -> Run:
    """Return a run by its name or the beginning of it, which must be unique; without a name, by its place."""
    if name is None:
        return runs[place]
    named = [run for run in runs if run.name == name] or [run for run in runs if run.name.startswith(name)]
    if len(named) != 1:
        last = ", ".join(run.name for run in (named or runs)[-5:])
        raise UserError(f"{len(named) or 'no'} runs are named {name!r}; the last ones: {last}")
    return named[0]


def _run(store: MetadataStore, context: metadata_store_pb2.Context) -> Run:
    executions, makers, outputs = {}, {}, {}
    for execution in sorted(store.get_executions_by_context(context.id), key=lambda execution: execution.id):
        contexts = store.get_contexts_by_execution(execution.id)
        for node in (of_node.name.partition(".")[2] for of_node in contexts if of_node.type == "node"):
            executions[node] = execution
            outputs[node] = _outputs(store, execution.id)
            makers[node] = _maker(store, execution, outputs[node])
    started = datetime.datetime.fromtimestamp(context.create_time_since_epoch / 1000)
    record = of_context(context)
    # Two steps may have run at the same time: the record has them in the order of the graph.
    ordered = {node: executions[node] for node in (*record.steps, *executions) if node in executions}
    return Run(context.name, started, record, ordered, makers, outputs)


def _outputs(store: MetadataStore, execution: int) -> dict[str, list[Artifact]]:
    events = store.get_events_by_execution_ids([execution])
    events = [event for event in events if event.type == Event.OUTPUT and event.path.steps]
    artifacts = store.get_artifacts_by_id([event.artifact_id for event in events])
    by_id = {artifact.id: artifact for artifact in artifacts}
    outputs: dict[str, list[Artifact]] = {}
    for event in events:
        outputs.setdefault(event.path.steps[0].key, []).append(by_id[event.artifact_id])
    return outputs


def _maker(store: MetadataStore, execution: Execution, outputs: Mapping[str, list[Artifact]]) -> Execution:
    if execution.last_known_state != Execution.CACHED or not outputs:
        return execution
    artifacts = [artifact.id for of_output in outputs.values() for artifact in of_output]
    events = store.get_events_by_artifact_ids(artifacts)
    made_by = min(event.execution_id for event in events if event.type == Event.OUTPUT)
    (maker,) = store.get_executions_by_id([made_by])
    return maker
