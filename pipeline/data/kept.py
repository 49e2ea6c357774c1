"""Keep results of parts of a step's input for later runs, as when a window of spans moves on.

A result is in a folder named by everything it depends on; it is valid only if the list of its files next to it matches
their contents.
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
    """Return the folder of a result of a kind; ``made_of`` is everything it depends on, by ``repr``."""
    return f"{root}/{kind}/{hashlib.sha256(repr(made_of).encode()).hexdigest()[:32]}"


def is_whole(folder: str) -> bool:
    """Return whether a result exists unchanged."""
    listed = f"{folder}.json"
    return filesystem.exists(listed) and filesystem.read_bytes(listed) == _list_of(folder)


def seal(folder: str) -> None:
    """List the files of a written result, which makes it valid."""
    filesystem.write(f"{folder}.json", _list_of(folder))


def write_value(folder: str, value: Any) -> None:
    """Write a Python value to a result."""
    # As Beam passes values between workers. Who may write here may write the wheels with the pipeline's code, too.
    filesystem.write(f"{folder}/{VALUE}", pickle.dumps(value))


def read_value(folder: str) -> Any:
    """Return what ``write_value`` wrote."""
    return pickle.loads(filesystem.read_bytes(f"{folder}/{VALUE}"))


def prune(root: str, kind: str, used: Iterable[str]) -> None:
    """Delete results that a run has not used; in a bucket, which other runs share, a rule has to do it."""
    if filesystem.is_remote(root):
        return
    names = {Path(folder).name for folder in used}
    for path in Path(root, kind).glob("*"):
        if path.name.removesuffix(".json") not in names:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _list_of(folder: str) -> bytes:
    return json.dumps(filesystem.digests(folder), sort_keys=True).encode()
