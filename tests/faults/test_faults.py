"""A few faults of different kinds; benchmarks/faults.py tries them all."""

import pytest

from tests.faults.kinds import faults
from tests.faults.workplace import Workplace

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = Workplace(tmp_path_factory.mktemp("faults"))
    place.prepare()
    return place


@pytest.mark.parametrize(
    "name",
    [
        "kill: Trainer begins",
        "SIGTERM: Tuner",
        "file: Transform, transformed_examples/Split-test/transformed_examples-00000-of-00001.gz truncated",
        "store: moved away",
        "pushed version: variables/variables.data-00000-of-00001 changed",
    ],
)
def test_the_next_run_is_right(workplace, name):
    (fault,) = (fault for fault in faults(workplace) if str(fault) == name)
    workplace.restore(fault.moment)
    fault.strike(workplace)
    if fault.kind != "pushed version":
        workplace.check_versions()
    fault.judge(workplace)
