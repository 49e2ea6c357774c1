"""List the files that a step has written on its artifacts, and find changes before they are used.

TFX reuses every file in the folder of an artifact, also incomplete, foreign or damaged ones. In a run on this machine
the files are compared with the list by size and time of change, and by SHA-256 where the time differs.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ml_metadata.metadata_store import MetadataStore
from tfx import types

from pipeline import filesystem
from pipeline.settings.names import shortened

PROPERTY = "files"


def list_files(artifacts: Iterable[types.Artifact], store: MetadataStore) -> None:
    """List size, time of change and SHA-256 of the new files of artifacts on this machine, in the metadata store."""
    listed = [artifact for artifact in artifacts if not filesystem.is_remote(artifact.uri)]
    for artifact in listed:
        files = {name: (*_status(path), filesystem.digest(path)) for name, path in _files(artifact).items()}
        artifact.set_string_custom_property(PROPERTY, json.dumps(files, sort_keys=True))
    if listed:
        store.put_artifacts([artifact.mlmd_artifact for artifact in listed])


def changes(artifact: types.Artifact, thorough: bool = False) -> str:
    """Return how the files of an artifact differ from its list; "" if they do not, or if it has no list.

    With ``thorough`` the contents of all files are compared, also if the time of change is equal.
    """
    if not artifact.has_custom_property(PROPERTY):
        return ""
    written, found = json.loads(artifact.get_string_custom_property(PROPERTY)), _files(artifact)
    both = sorted(written.keys() & found.keys())
    by_kind = {
        "missing": sorted(written.keys() - found.keys()),
        "changed": [name for name in both if _differs(found[name], written[name], thorough)],
        "new": sorted(found.keys() - written.keys()),
    }
    differences = [
        f"{shortened(names, 3)} {'is' if len(names) == 1 else 'are'} {kind}" for kind, names in by_kind.items() if names
    ]
    return f"{'; '.join(differences)} in {artifact.uri}" if differences else ""


def _files(artifact: types.Artifact) -> dict[str, Path]:
    """Return the files of an artifact by relative path; the address of a value is a file."""
    path = Path(artifact.uri)
    folder = path.parent if path.is_file() else path
    return {str(file.relative_to(folder)): file for file in sorted(folder.rglob("*")) if file.is_file()}


def _status(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _differs(path: Path, written: Sequence[Any], thorough: bool) -> bool:
    size, changed, sha256 = written
    if not thorough and _status(path) == (size, changed):
        return False
    return path.stat().st_size != size or filesystem.digest(path) != sha256
