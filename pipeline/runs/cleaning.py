"""Plan and carry out the deletion of old artifacts that no kept run, pushed model or cache entry needs."""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ml_metadata.metadata_store import MetadataStore
from ml_metadata.proto.metadata_store_pb2 import Artifact, Event

from pipeline.errors import UserError
from pipeline.runs.store import Run, numbered_folders, runs_of

# Next to the artifacts: folders are moved there before they are deleted.
TRASH = "trash"


@dataclass(frozen=True)
class Plan:
    """Folders and artifacts to delete."""

    output: Path  # without links
    artifacts: Sequence[Artifact]  # of the store, to be marked as deleted
    folders: Mapping[str, Sequence[Path]]  # by kind: "ExampleGen/examples", "reports", ...
    by_kind: Mapping[str, tuple[int, int]]  # number and bytes of the folders and files
    kept: Sequence[str]  # names of the runs that stay whole
    versions: Sequence[str]  # pushed models that still exist
    left_alone: Mapping[Path, Path]  # unneeded paths that lead elsewhere than their addresses say, and where

    @property
    def size(self) -> int:
        """Return the total number of bytes."""
        return sum(size for _, size in self.by_kind.values())


def plan(store: MetadataStore, output: Path, keep: int) -> Plan:
    """Return a plan that deletes whatever neither the newest runs nor a pushed model needs.

    A run needs everything that its steps read or wrote. A model that is still pushed, and the last blessed model, need
    the artifacts of their training and evaluation, but not the data. The last hyperparameters stay for ``--tuning
    reuse``, and the report of a run stays with its pushed model. Folders without an artifact are leftovers of killed
    steps. Checkpoints are deleted if they are older than the runs that stay.

    Paths with ".." and links out of the folders of a run are left alone.
    """
    given, output = output, output.resolve()
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
    still_used = {_real(_folder(artifacts[id_])) for id_ in needed if id_ in artifacts}
    unneeded = [
        artifact
        for id_, artifact in artifacts.items()
        if id_ not in needed
        and _is_below(_folder(artifact), given, output)
        and _real(_folder(artifact)) not in still_used
    ]
    # What to delete, and where it must be.
    candidates = [
        ("/".join(folder.parts[-3:-1]), folder, root.joinpath(*folder.parts[-3:])) for folder in map(_folder, unneeded)
    ]
    candidates += [(kind, path, path) for kind, path in _of_no_run(root, artifacts.values(), kept)]
    for run in runs:
        if run not in kept and not _exists(run.record.pushed_to):
            for kind, folder, name in (("reports", "runs", run.name), ("logs", "logs", f"{run.name}.log")):
                candidates.append((kind, output / folder / name, output / folder / Path(name).name))
    folders: dict[str, list[Path]] = {}
    left_alone = {}
    for kind, path, place in dict.fromkeys(candidates):
        if not os.path.lexists(path):
            continue
        if (real := _real(path)) == place and not path.is_symlink() and place.parent != output:
            folders.setdefault(kind, []).append(real)
        else:
            left_alone[path] = real
    by_kind = {kind: (len(paths), sum(map(_size, paths))) for kind, paths in sorted(folders.items())}
    live = [
        artifact for artifact in unneeded if artifact.state != Artifact.DELETED and _folder(artifact) not in left_alone
    ]
    names = [run.name for run in kept]
    return Plan(output, live, folders, by_kind, names, sorted(set(pushed.values())), left_alone)


def carry_out(store: MetadataStore, plan: Plan) -> None:
    """Carry out a plan; the same command completes one that was interrupted."""
    trash = plan.output / TRASH
    if os.path.lexists(trash) and (trash.is_symlink() or not trash.is_dir()):
        raise UserError(f"{trash} is not a folder of this pipeline; move it away: deleted files are moved there first")
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
    return bool(folder) and Path(str(folder)).is_dir()


def _is_below(folder: Path, *outputs: Path) -> bool:
    """Return whether a path is a step's output; the names of other folders begin with "_"."""
    for root in (output.absolute() / "artifacts" for output in outputs):
        if folder.is_relative_to(root):
            parts = folder.relative_to(root).parts
            return len(parts) == 3 and not parts[0].startswith("_")
    return False


def _of_no_run(root: Path, artifacts: Iterable[Artifact], kept: Sequence[Run]) -> Iterator[tuple[str, Path]]:
    """Yield the leftovers of killed steps, each with its kind."""
    known = {_real(_folder(artifact)) for artifact in artifacts}
    # TFX leaves an empty folder of every execution there.
    working = [path for path in root.glob("[!_]*/.system/*/*") if any(file.is_file() for file in path.rglob("*"))]
    for path in [*numbered_folders(root), *working]:
        if _real(path) not in known:
            yield "of no run", path
    oldest = min((run.started.timestamp() for run in kept), default=0)
    for path in root.glob("[!_]*/checkpoints/*"):
        if path.lstat().st_mtime < oldest:
            yield "checkpoints", path


def _folder(artifact: Artifact) -> Path:
    """Return the folder of an artifact; a value's address is a file in it."""
    path = Path(artifact.uri)
    return path.parent if path.name == "value" else path


def _real(path: Path) -> Path:
    """Return a path without links; ``Path.resolve`` raises an error for a link to itself."""
    return Path(os.path.realpath(path))


def _text(artifact: Artifact, name: str) -> str:
    # Indexing would add an empty value, which the store cannot write.
    return artifact.custom_properties[name].string_value if name in artifact.custom_properties else ""


def _size(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.lstat().st_size for file in files if not file.is_dir())
