"""Classes in words become their numbers."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from pipeline.data import labels
from pipeline.data.table import Rows, Unit
from pipeline.errors import UserError
from pipeline.settings.config import Data, Label
from tests.components.example_gen import records, run, values

SPECIES = Label("species", ("Adelie", "Chinstrap", "Gentoo"))
STARS = Label("stars", ("1", "2", "3"))


@pytest.mark.parametrize(
    ("label", "column", "expected", "wrong"),
    [
        (SPECIES, ["Gentoo", " Adelie ", None, "Emperor"], [2, 0, None, None], [3]),
        (SPECIES, ["2", "0", "3"], [2, 0, None], [2]),
        (SPECIES, [2, 0, 7], [2, 0, 7], []),
        (SPECIES, [2.0, 0.5, None], [2, None, None], [1]),
        (STARS, [3, 1, 0], [2, 0, None], [2]),
        (STARS, ["3", "1", "0"], [2, 0, None], [2]),
        (Label("paid", ("no", "yes")), [True, False], [1, 0], []),
        (Label("paid", ("no", "yes")), ["true", "No ", "1", "maybe", None], [1, 0, 1, None, None], [3]),
        (Label("paid", ("False", "True")), ["TRUE", "false", "f"], [1, 0, 0], []),
        (Label("paid", ("False", "True")), [1.0, 0.0, None], [1, 0, None], []),
        (Label("paid"), ["1.0", "True", "0"], [1, 1, 0], []),
        (Label("place", ("N", "S", "Y")), ["true"], [None], [0]),
        (
            Label("paid", ("no", "yes"), spellings={"Yes": "yes", "J": "yes"}),
            ["Yes ", "J", "YES", "1"],
            [1, 1, 1, 1],
            [],
        ),
        (Label("paid", spellings={"yes": "1", "no": "0"}), ["yes", "no", "1"], [1, 0, 1], []),
        (SPECIES, pd.Categorical(["Gentoo", "Adelie"]), [2, 0], []),
    ],
)
def test_a_word_is_its_place_among_the_classes(label, column, expected, wrong):
    coded, is_wrong = labels.encode(pa.array(column), label.numbers)
    assert coded.to_pylist() == expected
    assert np.flatnonzero(is_wrong).tolist() == wrong


def test_a_csv_row_with_another_word_is_a_bad_one_and_a_parquet_row_ends_the_reading():
    rows = Rows(pa.table({"species": ["Adelie", "Emperor", "Gentoo"]}), np.array([7, 8, 9]))
    read = labels.with_numbers(rows, "species", SPECIES.numbers, Unit("some.csv", "csv"))
    assert read.table.column("species").to_pylist() == [0, 2]
    assert read.numbers.tolist() == [7, 9]
    message = "row 8: the label 'species' is 'Emperor'; expected Adelie, Chinstrap, Gentoo, 0, 1 or 2"
    assert str(read.bad[0]) == f"some.csv, {message}"
    with pytest.raises(UserError, match=f"some.parquet, {message}"):
        labels.with_numbers(rows, "species", SPECIES.numbers, Unit("some.parquet", "parquet"))


def test_another_spelling_of_a_class_is_refused_with_the_remedy():
    rows = Rows(pa.table({"species": ["adelie"]}), np.array([7]))
    read = labels.with_numbers(rows, "species", SPECIES.numbers, Unit("some.csv", "csv"))
    assert read.bad[0].reason.endswith("; if it means 'Adelie': Label(..., spellings={'adelie': 'Adelie'})")


def test_examples_hold_the_numbers(tmp_path):
    frame = pd.DataFrame({"species": ["Adelie", "Gentoo"] * 50, "mass": range(100)})
    frame.to_csv(tmp_path / "some.csv", index=False)
    examples = run(Data(str(tmp_path / "some.csv")), tmp_path / "examples", {"species": "text"}, SPECIES)
    found = {values(record)["mass"][0]: values(record)["species"] for record in records(examples.uri)}
    assert found == {mass: [0 if mass % 2 == 0 else 2] for mass in range(100)}
