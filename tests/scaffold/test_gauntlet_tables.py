"""python -m pipeline new on every small table of the gauntlet: what it writes compiles, what it refuses it says why."""

from __future__ import annotations

import pytest

from tests.e2e.gauntlet import Outcome, new_only
from tests.e2e.gauntlet_tables import TABLES

SMALL = [table for table in TABLES.values() if not table.slow]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """What came of each table; made in one process, so that TFX is imported once."""
    return {outcome.table.name: outcome for outcome in new_only(SMALL, tmp_path_factory.mktemp("gauntlet"))}


@pytest.mark.parametrize("name", [table.name for table in SMALL])
def test_a_newcomers_table_is_taken_or_refused_in_one_sentence(name, outcomes):
    assert outcomes[name].as_expected, str(outcomes[name])
