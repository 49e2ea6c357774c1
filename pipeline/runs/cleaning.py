"""Plan and carry out the deletion of old artifacts that no kept run, pushed model or cache entry needs."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ml_metadata.metadata_store import MetadataStore
from ml_metadata.proto.metadata_store_pb2 import Artifact, Event

from pipeline.runs.store import runs_of

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
    executions = [execution.id for run in kept for execution in run.executions.values()]
    needed = {event.artifact_id for event in store.get_events_by_execution_ids(executions)} if executions else set()
    artifacts = {artifact.id: artifact for artifact in store.get_artifacts()}
    pushed = {
        id_: destination
        for id_, artifact in artifacts.items()
        if artifact.type == "PushedModel" and _exists(destination := _text(artifact, "pushed_destination"))
    }
    blessings = [
        id_
        for id_, artifact in artifacts.items()
        if artifact.type == "ModelBlessing"
        and artifact.custom_properties["blessed"].int_value
        and artifact.state == Artifact.LIVE
    ]
    needed |= _judged_by(store, [*pushed, *blessings[-1:]])
    needed |= set([id_ for id_, artifact in artifacts.items() if artifact.type == "HyperParameters"][-1:])

    root = output / "artifacts"
    still_used = {_folder(artifacts[id_]) for id_ in needed if id_ in artifacts}
    unneeded = [
        artifact
        for id_, artifact in artifacts.items()
        if id_ not in needed and _is_of_a_step(_folder(artifact), root) and _folder(artifact) not in still_used
    ]
    folders: dict[str, list[Path]] = {}
    for folder in dict.fromkeys(map(_folder, unneeded)):
        if folder.exists():
            folders.setdefault("/".join(folder.relative_to(root).parts[:2]), []).append(folder)
    for run in runs:
        if run not in kept and not _exists(run.record.pushed_to):
            for kind, path in (("reports", output / "runs" / run.name), ("logs", output / "logs" / f"{run.name}.log")):
                if path.exists():
                    folders.setdefault(kind, []).append(path)
    by_kind = {kind: (len(paths), sum(map(_size, paths))) for kind, paths in sorted(folders.items())}
    live = [artifact for artifact in unneeded if artifact.state != Artifact.DELETED]
    return Plan(output, live, folders, by_kind, [run.name for run in kept], sorted(set(pushed.values())))


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


def _judged_by(store: MetadataStore, artifacts: Sequence[int]) -> set[int]:
    """Return artifacts, the inputs of their makers except the data, and the other outputs of both."""
    found = set(artifacts)
    for _ in range(2):
        events = store.get_events_by_artifact_ids(list(found)) if found else []
        makers = {event.execution_id for event in events if event.type == Event.OUTPUT}
        events = store.get_events_by_execution_ids(list(makers)) if makers else []
        made = store.get_artifacts_by_id(list({event.artifact_id for event in events}))
        found |= {artifact.id for artifact in made if artifact.type not in ("Examples", "ExampleStatistics")}
    return found


def _exists(folder: str | None) -> bool:
    """Return whether a model that was pushed still exists; one that was not pushed has no folder."""
    return bool(folder) and Path(str(folder)).is_dir()


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
