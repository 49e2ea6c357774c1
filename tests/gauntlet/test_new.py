"""python -m pipeline new on the gauntlet's small tables: what it writes compiles, what it refuses it says why."""

from pathlib import Path

import pytest

from pipeline.__main__ import main
from tests.e2e.run import Run
from tests.gauntlet.commands import check_text, judge_new
from tests.gauntlet.tables import MARKER, TABLES, Table

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "table",
    [pytest.param(table, id=name) for name, table in TABLES.items() if not (table.slow or table.module is not None)],
)
def test_a_newcomers_table_is_accepted_or_refused_in_one_sentence(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    # What `new` takes for a clone: in its folder it writes.
    (tmp_path / "configs").mkdir()
    (tmp_path / "local_runner.py").touch()
    monkeypatch.chdir(tmp_path)
    MARKER.unlink(missing_ok=True)
    code = main(["new", table.name, "--data", str(table.write(tmp_path)), "--label", table.label, *table.options])
    made = Run(code, "".join(capsys.readouterr()))
    check_text(made.text, "the output of new", table.not_on_terminal)
    judge_new(table, made, tmp_path)
    assert not MARKER.exists(), "hostile text ran"
