"""A few of the gauntlet's tables, with a label of each kind; benchmarks/gauntlet.py takes all."""

from pathlib import Path

import pytest

from tests.e2e.gauntlet import run_table, tables

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("table", tables(["diabetes", "parquet_types", "hostile_names"]), ids=lambda table: table.name)
def test_a_newcomers_table_is_pushed_and_answered_alike_by_predict_and_serve(table, tmp_path: Path):
    outcome = run_table(table, tmp_path)
    assert outcome.as_expected, str(outcome)
    assert outcome.outcome == "pushed"
