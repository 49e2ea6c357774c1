"""A column of weights: numbers of 0 or more, whatever the files hold them as."""

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from pipeline.data import labels
from pipeline.data.table import Rows, Unit
from pipeline.errors import UserError
from pipeline.settings.checks import ConfigError
from pipeline.settings.config import Data, Label
from tests.components.example_gen import records, run, values


def rows(column: list) -> Rows:
    return Rows(pa.table({"exposure": column, "age": range(len(column))}), np.arange(len(column)) + 7)


@pytest.mark.parametrize("column", [[2, 0, 1], [2.0, 0.0, 1.0], [[2.0], [0.0], [1.0]]])
def test_whole_numbers_floats_and_lists_of_one_are_weights(column):
    checked = labels.with_weights(rows(column), "exposure", Unit("some.tfrecord", "tfrecord"))
    assert checked.table.column("exposure").to_pylist() == [2.0, 0.0, 1.0]
    assert checked.table.column("exposure").type == pa.float64()


@pytest.mark.parametrize(
    ("value", "found"), [(None, "missing"), (-0.5, "-0.5"), (np.inf, "inf"), (np.nan, "nan"), (1e300, "1e+300")]
)
def test_a_csv_row_with_another_weight_is_a_bad_one_and_a_parquet_row_ends_the_reading(value, found):
    column = [1.0, value, 2.0]
    checked = labels.with_weights(rows(column), "exposure", Unit("some.csv", "csv"))
    assert checked.table.column("age").to_pylist() == [0, 2]
    assert checked.numbers.tolist() == [7, 9]
    message = f"row 8: the weight 'exposure' is {found}; expected a number of 0 or more in every row"
    assert str(checked.bad[0]) == f"some.csv, {message}"
    with pytest.raises(UserError, match=re.escape(f"some.parquet, {message}")):
        labels.with_weights(rows(column), "exposure", Unit("some.parquet", "parquet"))


def test_a_file_without_the_column_or_with_text_in_it_is_refused():
    with pytest.raises(UserError, match=r"some.csv has no column 'expo', the weight; it has exposure, age"):
        labels.with_weights(rows([1.0]), "expo", Unit("some.csv", "csv"))
    with pytest.raises(UserError, match=r"some.parquet: the weight 'exposure' is string; expected numbers"):
        labels.with_weights(rows(["much"]), "exposure", Unit("some.parquet", "parquet"))


@pytest.mark.slow
@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_examples_hold_floats_and_a_wrong_row_is_named(format, tmp_path):
    frame = pd.DataFrame({"late": [0, 1] * 50, "mass": range(100), "exposure": [1, 2] * 50})
    write = getattr(frame, f"to_{format}")
    write(tmp_path / f"some.{format}", index=False)
    data, label = Data(str(tmp_path / f"some.{format}")), Label("late", weight="exposure")
    examples = run(data, tmp_path / "examples", {"exposure": "floats"}, label)
    found = {values(record)["mass"][0]: values(record)["exposure"] for record in records(examples.uri)}
    assert found == {mass: [1.0 + mass % 2] for mass in range(100)}
    assert all(isinstance(value[0], float) for value in found.values())
    frame["exposure"] = frame["exposure"].where(frame["mass"] != 40, -1)
    getattr(frame, f"to_{format}")(tmp_path / f"some.{format}", index=False)
    with pytest.raises(UserError, match=r"row 41: the weight 'exposure' is -1.0; expected a number of 0 or more"):
        run(data, tmp_path / "again", {"exposure": "floats"}, label)


def test_the_weight_is_another_column_than_the_label():
    with pytest.raises(ConfigError, match=r"label.weight must be a column other than the label, or None, got 'late'"):
        Label("late", weight="late")
