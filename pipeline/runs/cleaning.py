"""Plan and carry out the deletion of old artifacts that no kept run, pushed model or cache entry needs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ml_metadata.metadata_store import MetadataStore
from ml_metadata.proto.metadata_store_pb2 import Artifact, Event

from pipeline.runs.store import Run, runs_of

# Beside the artifacts: folders moved there belong to no step any more, and are deleted next.
TRASH = "trash"


@dataclass(frozen=True)
class Plan:
    """Folders and artifacts to delete.

    Attributes:
        output: The output folder.
        artifacts: Of the store, to be marked as deleted.
        folders: With their contents, by kind ("ExampleGen/examples", "reports", ...).
        by_kind: Number and bytes of the folders and files by kind.
        kept: Names of the runs that stay whole.
        versions: Pushed models that are still there.
    """

    output: Path
    artifacts: Sequence[Artifact]
    folders: Mapping[str, Sequence[Path]]
    by_kind: Mapping[str, tuple[int, int]]
    kept: Sequence[str]
    versions: Sequence[str]

    @property
    def size(self) -> int:
        """Return the bytes in all."""
        return sum(size for _, size in self.by_kind.values())


def plan(store: MetadataStore, output: Path, keep: int) -> Plan:
    """Return a plan that deletes what neither the newest runs nor a pushed model needs.

    A run needs all that its steps have read or written. A pushed model, while its version is in the serving folder,
    needs what it was trained into and judged by, but not the data; so does the last blessed model, which the next one
    is compared with. The last hyperparameters stay for ``--tuning reuse``, and so does the report of a run whose model
    is there.
    """
    runs = runs_of(store)
    kept = runs[-keep:]
    artifacts = {one.id: one for one in store.get_artifacts()}
    needed = _of_runs(store, kept)
    pushed = [
        one.id
        for one in artifacts.values()
        if one.type == "PushedModel" and _is_there(_text(one, "pushed_destination"))
    ]
    blessings = [
        one.id
        for one in artifacts.values()
        if one.type == "ModelBlessing" and one.custom_properties["blessed"].int_value and one.state == Artifact.LIVE
    ]
    needed |= _judged_by(store, [*pushed, *blessings[-1:]])
    needed |= set([one.id for one in artifacts.values() if one.type == "HyperParameters"][-1:])

    root = output / "artifacts"
    still_used = {_folder(artifacts[one]) for one in needed if one in artifacts}
    unneeded = [
        one
        for one in artifacts.values()
        if one.id not in needed and _is_of_a_step(_folder(one), root) and _folder(one) not in still_used
    ]
    folders: dict[str, list[Path]] = {}
    for folder in dict.fromkeys(map(_folder, unneeded)):
        if folder.exists():
            folders.setdefault("/".join(folder.relative_to(root).parts[:2]), []).append(folder)
    stay = {one.name for one in kept} | {one.name for one in runs if _is_served(one)}
    for run in runs:
        if run.name not in stay:
            for kind, path in (("reports", output / "runs" / run.name), ("logs", output / "logs" / f"{run.name}.log")):
                if path.exists():
                    folders.setdefault(kind, []).append(path)
    by_kind = {kind: (len(paths), sum(map(_size, paths))) for kind, paths in sorted(folders.items())}
    live = [one for one in unneeded if one.state != Artifact.DELETED]
    versions = [_text(artifacts[one], "pushed_destination") for one in pushed]
    return Plan(output, live, folders, by_kind, [one.name for one in kept], sorted(set(versions)))


def carry_out(store: MetadataStore, plan: Plan) -> None:
    """Carry out a plan, such that at every moment the artifacts that the store counts as live exist.

    Cut off midway, the same command ends the work: TFX takes nothing from its cache whose folder is gone.
    """
    trash = plan.output / TRASH
    trash.mkdir(exist_ok=True)
    for number, path in enumerate(path for paths in plan.folders.values() for path in paths):
        path.rename(trash / f"{number}-{path.name}")
    for artifact in plan.artifacts:
        artifact.state = Artifact.DELETED
    store.put_artifacts(list(plan.artifacts))
    shutil.rmtree(trash)


def _of_runs(store: MetadataStore, runs: Sequence[Run]) -> set[int]:
    executions = [one.id for run in runs for one in run.executions.values()]
    return {event.artifact_id for event in store.get_events_by_execution_ids(executions)} if executions else set()


def _judged_by(store: MetadataStore, artifacts: Sequence[int]) -> set[int]:
    """Return artifacts, the inputs of their makers except the data, and the other outputs of both."""
    found = set(artifacts)
    for _ in range(2):
        makers = (
            {one.execution_id for one in store.get_events_by_artifact_ids(list(found)) if one.type == Event.OUTPUT}
            if found
            else set()
        )
        events = store.get_events_by_execution_ids(list(makers)) if makers else []
        ids = {event.artifact_id for event in events}
        found |= {
            one.id for one in store.get_artifacts_by_id(list(ids)) if one.type not in ("Examples", "ExampleStatistics")
        }
    return found


def _is_there(folder: str) -> bool:
    """Return whether a model that was pushed still exists; one that was not pushed has no folder."""
    return bool(folder) and Path(folder).is_dir()


def _is_served(run: Run) -> bool:
    return bool(run.record and run.record.pushed_to and Path(run.record.pushed_to).is_dir())


def _is_of_a_step(folder: Path, root: Path) -> bool:
    """Return whether a step has written a folder: <root>/<step>/<output>/<execution>; others begin with "_"."""
    if root not in folder.parents:
        return False
    parts = folder.relative_to(root).parts
    return len(parts) == 3 and not parts[0].startswith("_")


def _folder(artifact: Artifact) -> Path:
    """Return the folder of an artifact; a value's address is a file in it."""
    path = Path(artifact.uri)
    return path.parent if path.name == "value" else path


def _text(artifact: Artifact, name: str) -> str:
    return artifact.custom_properties[name].string_value if name in artifact.custom_properties else ""


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)
