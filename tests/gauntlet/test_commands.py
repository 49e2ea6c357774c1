"""One of the gauntlet's tables, and in `make long` two more; `make gauntlet` takes all."""

from pathlib import Path

import pytest

from tests.gauntlet.commands import run_table
from tests.gauntlet.tables import TABLES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "name",
    ["hostile_names", *(pytest.param(name, marks=pytest.mark.long) for name in ("diabetes", "parquet_types"))],
)
def test_a_newcomers_table_is_pushed_and_answered_alike_by_predict_and_serve(name: str, tmp_path: Path):
    outcome = run_table(TABLES[name], tmp_path)
    assert outcome.as_expected, str(outcome)
    assert outcome.outcome == "pushed"
