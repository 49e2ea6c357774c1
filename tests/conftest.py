"""Real flights for tests: the prepared data set, a thin sample of it, and one run of the pipeline over that sample."""

import fcntl
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import hypothesis
import pyarrow.parquet as pq
import pytest

from pipeline.processes import collect_rarely
from tests.e2e.run import Run, copy_repository, run
from tests.scripts import load_script

# In the background of a shell, or under nohup, these are ignored, and so in every process that a test starts: none
# would end as it does for a user. What has a handler here is as usual there.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)

# The same examples in every run, or a rare one fails some other change; other ones: HOSTILE_CASES=5000 pytest ...
hypothesis.settings.register_profile("same", derandomize="HOSTILE_CASES" not in os.environ)
hypothesis.settings.load_profile("same")

# Beside each token that a test asks for, google-auth asks Google in a thread of its own where it may be used, which it
# cannot be told to leave; what it says of the network that is not there would be in the log of any test after that.
logging.getLogger("urllib3").setLevel(logging.ERROR)


# Runs until the process that started it is gone.
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(1_000_000))"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --busy: no test may depend on the speed of the machine."""
    parser.addoption(
        "--busy", type=int, default=0, metavar="N", help="run N endless single-threaded processes next to the tests"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Start the processes of --busy, once for all processes of the tests."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        for _ in range(config.getoption("busy")):
            process = subprocess.Popen([sys.executable, "-c", BUSY])
            config.add_cleanup(process.wait)
            config.add_cleanup(process.kill)  # cleanups run in reverse order


# Files that take minutes, the longest first: one that begins last keeps a process busy when the other has nothing left.
LONGEST_FIRST = (
    "vertex/rehearsal/test_rehearsal.py",
    "e2e/test_stock_module.py",
    "e2e",
    "gauntlet",
    "faults",
    "training",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let long files begin first; the order within a file stays."""

    def place(item: pytest.Item) -> int:
        tests = Path(__file__).parent
        places = [place for place, name in enumerate(LONGEST_FIRST) if item.path.is_relative_to(tests / name)]
        return min(places, default=len(LONGEST_FIRST))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Look for garbage among new objects only: through all that is imported it took a tenth of the fast tests' time."""
    collect_rarely()


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that the first test process to ask for it makes, for all processes of these tests."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # each worker has a folder of its own there
    folder, is_made = base / name, base / f"{name}.made"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            is_made.touch()
    return folder


@pytest.fixture(scope="session")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole data set, prepared anew."""
    return once(tmp_path_factory, "flights", load_script("data/prepare_flights.py").prepare)


@pytest.fixture(scope="session")
def few_flights(flights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 400 flights of every month, evenly taken, in the same files."""

    def make(folder: Path) -> None:
        for file in sorted(flights.glob("*/*.parquet")):
            table = pq.read_table(file)
            sample = folder / file.relative_to(flights)
            sample.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table.take(list(range(0, table.num_rows, table.num_rows // 400))), sample)

    return once(tmp_path_factory, "few_flights", make)


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory, few_flights: Path) -> Path:
    """A clone of this repository with a few flights as its data, and with one run; who changes it makes their own."""

    def make(folder: Path) -> None:
        done = run(copy_repository(folder / "clone", few_flights))
        (folder / "first.json").write_text(json.dumps(asdict(done)))

    return once(tmp_path_factory, "first_run", make) / "clone"


@pytest.fixture(scope="session")
def first(clone: Path) -> Run:
    """The first run in the clone."""
    return Run(**json.loads((clone.parent / "first.json").read_text()))
