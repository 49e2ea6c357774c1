"""A few faults of different kinds; `make faults` tries them all."""

import pytest

from tests.faults.kinds import faults
from tests.faults.workplace import Workplace

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = Workplace(tmp_path_factory.mktemp("faults"))
    place.prepare()
    return place


@pytest.mark.parametrize(
    ("begins", "ends"),
    [
        ("kill: Trainer begins", ""),
        ("SIGTERM: Tuner", ""),
        ("file: Transform, transformed_examples/Split-", " truncated"),
        ("store: moved away", ""),
        ("pushed version: variables/variables.data", " changed"),
    ],
)
def test_the_next_run_is_right(workplace, begins, ends):
    # Which split's file it is that is truncated follows from the number of files before it.
    fault = next(fault for fault in faults(workplace) if str(fault).startswith(begins) and str(fault).endswith(ends))
    # It raises Broken, with the reason, when a model, a metric or a version is not as it must be.
    assert "Traceback" not in fault.attempt(workplace).text
