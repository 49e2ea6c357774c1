"""One clone with one finished run, shared by the tests that look at different sides of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.run import Run, copy_repository, run


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory, few_flights: Path) -> Path:
    """A clone of this repository with a few flights as its data."""
    clone = copy_repository(tmp_path_factory.mktemp("clone"))
    shutil.copytree(few_flights, clone / "data/flights")
    return clone


@pytest.fixture(scope="session")
def first(clone: Path) -> Run:
    """The first run in the clone."""
    return run(clone)
