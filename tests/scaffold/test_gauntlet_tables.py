"""python -m pipeline new on the gauntlet's small tables: what it writes compiles, what it refuses it says why."""

import pytest

from tests.e2e.gauntlet import Outcome, new_only
from tests.e2e.gauntlet_tables import TABLES

pytestmark = pytest.mark.slow
SMALL = [name for name, table in TABLES.items() if not table.slow]
# One of each kind of label and of trap; the others are for `make test`.
FEW = [
    *("iris", "linnerud", "penguins", "label_words", "label_numbers", "label_skewed", "label_with_gaps"),
    *("names_keywords", "names_signs", "names_quotes", "header_twice", "spreadsheet", "semicolons", "tract_codes"),
    *("money", "dates", "missing_words", "infinities", "useless_columns", "leak", "hostile_label", "hostile_pages"),
    "parquet_types",
]


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """The outcome of each table; made in one process, so that TFX is imported once."""
    return _outcomes(FEW, tmp_path_factory)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """The same for all other small tables."""
    return _outcomes([name for name in SMALL if name not in FEW], tmp_path_factory)


@pytest.mark.parametrize("name", FEW)
def test_a_newcomers_table_is_taken_or_refused_in_one_sentence(name: str, few: dict[str, Outcome]):
    assert few[name].as_expected, str(few[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SMALL if name not in FEW])
def test_so_is_every_other_one(name: str, others: dict[str, Outcome]):
    assert others[name].as_expected, str(others[name])


def _outcomes(names: list[str], folders: pytest.TempPathFactory) -> dict[str, Outcome]:
    tables = [TABLES[name] for name in names]
    return {outcome.table.name: outcome for outcome in new_only(tables, folders.mktemp("gauntlet"))}
