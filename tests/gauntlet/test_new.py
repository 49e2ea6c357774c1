"""python -m pipeline new on the gauntlet's small tables: what it writes compiles, what it refuses it says why."""

from pathlib import Path

import pytest

from pipeline.__main__ import main
from tests.e2e.run import Run
from tests.gauntlet.commands import check_text, judge_new
from tests.gauntlet.tables import MARKER, TABLES, Table

pytestmark = pytest.mark.slow
# Tables that `new` does not treat as expected yet; `make gauntlet` counts them as failures.
OPEN = {
    "points_for_thousands": "1.234 next to 950 is read as a decimal, and no note names the doubt",
    "durations_as_text": "durations such as '1h 20m' are read as sentences",
    "leak_by_gaps": "a column whose gaps tell the label is taken for one that names groups",
    "label_with_unit": "the message on a label in 'kg' does not name a row",
    "excel_sep_line": "the message on Excel's line 'sep=,' also blames pandas, and does not show the line",
}


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(table, id=name, marks=[pytest.mark.xfail(reason=OPEN[name], strict=True)] if name in OPEN else [])
        for name, table in TABLES.items()
        if not (table.slow or table.module is not None)
    ],
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
