"""Real flights for tests: the prepared data set, a thin sample of it, and one run of the pipeline over that sample."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.e2e.run import Run, copy_repository, run
from tests.scripts import load_script


@pytest.fixture(scope="session")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole data set, prepared anew."""
    folder = tmp_path_factory.mktemp("data") / "flights"
    load_script("data/prepare_flights.py").prepare(folder)
    return folder


@pytest.fixture(scope="session")
def few_flights(flights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 400 flights of every month, evenly taken, in the same files."""
    folder = tmp_path_factory.mktemp("data") / "few_flights"
    for file in sorted(flights.glob("*/*.parquet")):
        table = pq.read_table(file)
        sample = folder / file.relative_to(flights)
        sample.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.take(list(range(0, table.num_rows, table.num_rows // 400))), sample)
    return folder


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory, few_flights: Path) -> Path:
    """A clone of this repository with a few flights as its data; who changes it takes one of their own."""
    return copy_repository(tmp_path_factory.mktemp("clone"), few_flights)


@pytest.fixture(scope="session")
def first(clone: Path) -> Run:
    """The first run in the clone."""
    return run(clone)
