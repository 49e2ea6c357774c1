"""Find the clone that a command works on, and show paths as whoever stands in a folder reads them."""

import os
from pathlib import Path

# The folder that holds the package ``pipeline``: a clone, or site-packages in the image of the Vertex tasks.
REPOSITORY = Path(__file__).resolve().parents[2]


def find_root() -> Path:
    """Return the nearest folder at or above the working folder that is a clone, else the one of this file."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "configs").is_dir() and (folder / "local_runner.py").is_file():
            return folder
    return REPOSITORY


def shown(path: str | Path) -> str:
    """Return a path relative to the working folder where it lies below it, else absolute; an address as it is."""
    if "://" in str(path):
        return str(path)
    absolute = Path(os.path.abspath(path))
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)


def in_repository(path: str) -> str:
    """Return a path as a person types it: from the repository's folder, where it lies below it."""
    inside = Path(path).is_relative_to(REPOSITORY)
    return str(Path(path).relative_to(REPOSITORY)) if inside else path


def runner() -> str:
    """Return the command that runs the pipeline, for whoever stands in the working folder."""
    return f"python {shown(find_root() / 'local_runner.py')}"
