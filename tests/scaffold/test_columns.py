"""What pipeline.new makes of columns and labels, and the data that it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.config import Data
from pipeline.errors import UserError
from pipeline.scaffold.table import Table, look

ROWS = 400


@pytest.fixture
def frame() -> pd.DataFrame:
    random = np.random.default_rng(0)
    return pd.DataFrame({"size": random.normal(size=ROWS), "bought": random.choice(["yes", "no"], ROWS)})


def table_of(frame: pd.DataFrame, folder: Path, label: str = "bought", task=None, format: str = "csv") -> Table:
    file = folder / f"some.{format}"
    if format == "csv":
        frame.to_csv(file, index=False)
    else:
        frame.to_parquet(file)
    return look(Data(str(file)), label, task)


@pytest.mark.parametrize("format", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        (["yes", "no"], "binary", ("no", "yes")),
        ([True, False], "binary", ("False", "True")),
        ([1, 0], "binary", ("0", "1")),
        ([2, 1], "binary", ("1", "2")),
        (["b", "c", "a"], "multiclass", ("a", "b", "c")),
        ([10, 9, 8], "multiclass", ("8", "9", "10")),
        (np.arange(50), "regression", ()),
        (np.arange(50) / 8, "regression", ()),
    ],
)
def test_the_task_comes_from_the_label(frame, tmp_path, format, values, task, classes):
    values = list(values)
    frame["bought"] = (values * ROWS)[:ROWS]
    table = table_of(frame, tmp_path, format=format)
    assert table.label.task == task
    assert table.label.classes == classes
    if classes:
        words = [table.label.classes[number] for number in table.values]
        assert words == frame["bought"].astype(str).tolist()
    else:
        assert table.values.tolist() == frame["bought"].tolist()


def test_numbers_that_could_be_classes_are_numbers_where_asked_for(frame, tmp_path):
    frame["bought"] = np.arange(ROWS) % 5
    assert table_of(frame, tmp_path).label.task == "multiclass"
    assert table_of(frame, tmp_path, task="regression").label.classes == ()


def test_columns_that_no_model_can_use_are_left_out_with_the_reason(frame, tmp_path):
    frame["same"] = 1
    frame["row"] = np.arange(ROWS)
    frame["customer_id"] = np.random.default_rng(1).permutation(ROWS) * 7
    frame["name"] = [f"customer {row}" for row in range(ROWS)]
    frame["empty"] = np.nan
    frame["rare"] = [1.5, *[np.nan] * (ROWS - 1)]
    table = table_of(frame, tmp_path)
    assert [column.name for column in table.features] == ["size"]
    reasons = {column.name: column.left_out for column in table.columns}
    assert reasons["same"] == "1 in every row"
    assert reasons["row"] == reasons["customer_id"] == "numbers the rows"
    assert reasons["name"] == "400 different texts in 400 rows, too many to learn from each"
    assert reasons["empty"] == "no row has a value"
    assert reasons["rare"] == "a value in 1 of 400 rows only"


def test_numbers_that_name_something_are_codes_also_as_the_floats_pandas_makes_of_them(frame, tmp_path):
    frame["month"] = np.arange(ROWS) % 12
    frame["area"] = [np.nan, *(np.arange(ROWS - 1) % 20)]
    table = table_of(frame, tmp_path)
    assert {column.name for column in table.features if column.role == "code"} == {"month", "area"}


@pytest.mark.parametrize(
    ("change", "label", "message"),
    [
        (lambda frame: frame[["bought"]], "bought", "has one column, 'bought'; expected the label and at least one"),
        (lambda frame: frame.rename(columns={"bought": "a;b"})[["a;b"]], "b", "write the file with commas"),
        (
            lambda frame: frame,
            "bougth",
            "has no column 'bougth', the label; did you mean 'bought'? It has size, bought",
        ),
        (lambda frame: frame.assign(bought="yes"), "bought", "the label 'bought' is 'yes' in all of 400 rows"),
        (
            lambda frame: frame.assign(bought=["yes", None, *["no"] * 398]),
            "bought",
            "missing in 1 of 400 rows, first in row 2",
        ),
        (
            lambda frame: frame.assign(bought=["maybe", *["no", "yes"] * 199, "no"]),
            "bought",
            "too few rows of 'maybe' (1); each class needs at least 20",
        ),
        (lambda frame: frame.assign(bought=[f"text {row}" for row in range(400)]), "bought", "at most 100 classes"),
        (lambda frame: frame.head(20), "bought", "has 20 rows; expected at least 50"),
        (lambda frame: frame.assign(size=1), "bought", "has no column to predict 'bought' by: size: 1 in every row"),
    ],
)
def test_data_that_cannot_make_a_model_is_refused_with_what_to_do(frame, tmp_path, change, label, message):
    with pytest.raises(UserError) as error:
        table_of(change(frame), tmp_path, label)
    assert message in str(error.value)


def test_three_hundred_columns_and_one_of_a_hundred_thousand_values_are_looked_at(tmp_path):
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(ROWS, 300)), columns=[f"x{number}" for number in range(300)])
    frame["bought"] = random.choice(["yes", "no"], ROWS)
    assert len(table_of(frame, tmp_path).features) == 300
    many = pd.DataFrame({"user": [f"u{number}" for number in range(100_000)], "x": random.normal(size=100_000)})
    many["bought"] = random.choice(["yes", "no"], 100_000)
    assert [column.name for column in table_of(many, tmp_path).features] == ["x"]
