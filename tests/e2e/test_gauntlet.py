"""One of the gauntlet's tables, and in `make long` two more; benchmarks/gauntlet.py takes all."""

from pathlib import Path

import pytest

from tests.e2e.gauntlet import run_table, tables

pytestmark = pytest.mark.slow
FIRST = "hostile_names"


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(table, id=table.name, marks=[] if table.name == FIRST else pytest.mark.long)
        for table in tables(["diabetes", "parquet_types", FIRST])
    ],
)
def test_a_newcomers_table_is_pushed_and_answered_alike_by_predict_and_serve(table, tmp_path: Path):
    outcome = run_table(table, tmp_path)
    assert outcome.as_expected, str(outcome)
    assert outcome.outcome == "pushed"
