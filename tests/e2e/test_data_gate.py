"""Bad months of real flights, each through local_runner.py: where the run ends, what it says, and what stays.

A model is pushed first, so that there is one to stay and data to drift away from.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.e2e.run import Run, run

pytestmark = pytest.mark.slow

Change = Callable[[pd.DataFrame], pd.DataFrame]


def celsius(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(temp=((rows["temp"] - 32) / 1.8).astype("float32"))


def unknown_origin(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(origin=rows["origin"].where(np.arange(len(rows)) % 50 != 0, "XXX"))


def nulls_in_carrier(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(carrier=rows["carrier"].where(np.arange(len(rows)) % 10 >= 3, None))


def label_of_2(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(late=rows["late"].where(np.arange(len(rows)) != 7, 2))


def renamed(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.rename(columns={"temp": "temperature"})


def arrival_delay(rows: pd.DataFrame) -> pd.DataFrame:
    spread = np.arange(len(rows)) % 14
    return rows.assign(arr_delay=(15 * rows["late"] + spread).astype("float32"))


def changed(flights: Path, to: Path, months: str, change: Change) -> Path:
    """A copy of the data set with some months changed."""
    shutil.copytree(flights, to)
    for file in to.glob(months):
        rows = change(pq.read_table(file).to_pandas())
        pq.write_table(pa.Table.from_pandas(rows, preserve_index=False), file)
    return to


@pytest.fixture(scope="module")
def own(clone: Path, first: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the clone with its run: other tests read the runs of theirs."""
    assert first.code == 0, first.text
    return Path(shutil.copytree(clone, tmp_path_factory.mktemp("data_gate") / "clone", symlinks=True))


def state(clone: Path) -> set[Path]:
    return {path for path in (clone / "output/flights/serving").rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def bad(own: Path, few_flights: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Runs the clone on changed months, and holds on to what must be so in every case."""

    def bad(months: str, change: Change) -> Run:
        data = changed(few_flights, tmp_path_factory.mktemp("bad") / "flights", months, change)
        return refused(data)

    def refused(data: Path) -> Run:
        before = state(own)
        again = run(own, "--data", data)
        assert again.code == 1, again.text
        assert "Transform" not in again.states
        assert "Traceback" not in again.text
        assert state(own) == before
        return again

    bad.refused = refused  # type: ignore[attr-defined]
    return bad


@pytest.mark.parametrize(
    ("months", "change", "sentence", "remedy"),
    [
        (
            "train/2013-03.parquet",
            unknown_origin,
            "origin in train: 9 rows have a value that the schema does not list: XXX (9 rows); it lists EWR, JFK, LGA",
            "accept it: python -m pipeline schema accept origin --schema schema/flights/schema.pbtxt --statistics",
        ),
        pytest.param(
            "test/2013-12.parquet",
            celsius,
            "from the data of the model pushed last (mean ",
            "accept it: drift_comparator { jensen_shannon_divergence { threshold: ",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "eval/2013-09.parquet",
            nulls_in_carrier,
            "carrier in eval: 15.2 % of the rows have no value (123 of 808); at most 0 % may have none",
            "accept it: python -m pipeline schema accept carrier",
            marks=pytest.mark.long,
        ),
        (
            "*/*.parquet",
            arrival_delay,
            "arr_delay in train: this column alone predicts the label with an AUC of 1.0000 (",
            "leave the column out: Data(leave_out=('arr_delay',))",
        ),
    ],
    ids=["unknown origin", "degrees Celsius", "gaps in carrier", "arrival delay"],
)
def test_the_run_ends_before_transform_with_a_sentence_and_what_would_accept_it(
    own, bad, months, change, sentence, remedy
):
    again = bad(months, change)
    assert again.states["ExampleValidator"] == "ran"
    assert again.states["DataGate"] == "failed"
    assert sentence in again.text
    assert remedy in again.text
    verdict = json.loads((own / "output/flights/verdict.json").read_text())
    assert verdict["exit_code"] == 1
    assert sentence in verdict["failed"][0]
    # What was found is an artifact that stays, as TFX's tools expect it.
    anomalies = own / again.text.split("anomalies: ")[1].splitlines()[0]
    assert (anomalies / "Split-train/SchemaDiff.pb").is_file()
    assert json.loads((anomalies / "findings.json").read_text())


def test_a_month_that_is_in_train_and_in_test_ends_the_run(bad, few_flights, tmp_path):
    data = tmp_path / "flights"
    shutil.copytree(few_flights, data)
    shutil.copy(data / "train/2013-01.parquet", data / "test/2013-13.parquet")
    again = bad.refused(data)
    assert again.states["DataGate"] == "failed"
    assert "rows of test: 33." in again.text
    assert "are in train too; at most 1 % may" in again.text


@pytest.mark.parametrize(
    ("months", "change", "sentence"),
    [
        (
            "train/2013-05.parquet",
            label_of_2,
            "train/2013-05.parquet, row 8: the label 'late' is 2; expected on time, late, 0 or 1",
        ),
        ("train/2013-05.parquet", renamed, "temperature"),
    ],
    ids=["label of 2", "renamed column"],
)
def test_what_no_file_may_be_like_ends_the_run_before_anything_else(bad, months, change, sentence):
    again = bad(months, change)
    assert "StatisticsGen" not in again.states
    assert sentence in again.text
    assert "2013-05.parquet" in again.text
