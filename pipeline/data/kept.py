"""Keep what a step has made of a part of its input, so that a later run takes it instead of making it again.

A window of spans moves on by one span, and what depends on the other spans alone is the same as before. A result lies
in a folder named by all that it is made of, and counts only when a list of its files stands beside it and their
contents are as listed.
"""

import hashlib
import json
import pickle
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline import filesystem

VALUE = "value.pickle"


def folder_of(root: str, kind: str, *made_of: object) -> str:
    """Return the folder of a result.

    Args:
        root: Folder of all that is kept.
        kind: What it is, in a word.
        made_of: Everything that the result depends on; what has the same ``repr`` is the same.
    """
    return f"{root}/{kind}/{hashlib.sha256(repr(made_of).encode()).hexdigest()[:32]}"


def is_whole(folder: str) -> bool:
    """Return whether a result is there, and as it was written."""
    listed = f"{folder}.json"
    return filesystem.exists(listed) and filesystem.read_bytes(listed) == _list_of(folder)


def seal(folder: str) -> None:
    """List the files of a result that has been written; only then it counts."""
    filesystem.write(f"{folder}.json", _list_of(folder))


def write_value(folder: str, value: Any) -> None:
    """Write a value of Python's beside the files of a result."""
    # As Beam passes values between workers. Who may write here may write the wheels with the pipeline's code, too.
    filesystem.write(f"{folder}/{VALUE}", pickle.dumps(value))


def read_value(folder: str) -> Any:
    """Return what ``write_value`` has written."""
    return pickle.loads(filesystem.read_bytes(f"{folder}/{VALUE}"))


def prune(root: str, kind: str, used: Iterable[str]) -> None:
    """Delete the results of a kind that a run has not used, on this machine.

    In a bucket another run may be at work, and a rule of the bucket deletes what is old.
    """
    if filesystem.is_remote(root):
        return
    names = {Path(folder).name for folder in used}
    for path in Path(root, kind).glob("*"):
        if path.name.removesuffix(".json") not in names:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _list_of(folder: str) -> bytes:
    return json.dumps(filesystem.digests(folder), sort_keys=True).encode()
