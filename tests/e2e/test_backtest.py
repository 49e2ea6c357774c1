"""`local_runner.py --backtest` on months of flights, as a user calls it."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.e2e.run import copy_repository, run, with_few_features

pytestmark = [pytest.mark.slow, pytest.mark.long]
MONTHS = """\
from dataclasses import replace
import runpy
from pathlib import Path
from pipeline.config import Data, Training, Tuning

root = Path(__file__).parent.parent
CONFIG = replace(
    runpy.run_path(str(root / "configs/small.py"))["CONFIG"],
    data=Data("data/months", files="month-{SPAN}/*.parquet", last_spans=2),
    training=Training(epochs=1, batch_size=128),
    tuning=Tuning(mode="off"),
)
"""


def test_a_backtest_measures_each_window_on_its_next_span_and_touches_nothing_else(few_flights: Path, tmp_path: Path):
    clone = with_few_features(copy_repository(tmp_path / "clone"))
    (clone / "configs/months.py").write_text(MONTHS)
    rows = {}
    for number, month in enumerate(sorted(few_flights.glob("train/*.parquet"))[:4], 1):
        place = clone / f"data/months/month-{number}/flights.parquet"
        place.parent.mkdir(parents=True)
        place.write_bytes(month.read_bytes())
        rows[number] = pq.read_metadata(month).num_rows

    done = run(clone, "--backtest", "2", config="configs/months.py")
    assert done.code == 0, done.text
    output = clone / "output/flights"
    windows = json.loads((output / "backtest/backtest.json").read_text())["windows"]
    assert [(window["learns_from"], window["tested_on"]) for window in windows] == [([1, 2], 3), ([2, 3], 4)]
    assert [window["metrics"]["example_count"] for window in windows] == [rows[3], rows[4]]
    for window in windows:
        assert {"boosting", "linear", "constant"} == window["baselines"].keys()
        for values in (window["metrics"], window["baselines"]["boosting"]):
            assert f"{values['auc']:.4f}" in done.text
    # The model of the window before, which has not seen the month after it, is asked for the same rows.
    assert not windows[0]["earlier_model"]
    assert windows[1]["earlier_model"]["example_count"] == rows[4]
    assert windows[1]["earlier_model"]["auc"] != windows[1]["metrics"]["auc"]
    assert sorted(path.name for path in output.iterdir()) == ["backtest"]
    assert not list(output.glob("backtest/serving/*"))

    again = run(clone, "--backtest", "2", config="configs/months.py")
    assert " ran " not in again.text, again.text
    assert json.loads((output / "backtest/backtest.json").read_text())["windows"] == windows
