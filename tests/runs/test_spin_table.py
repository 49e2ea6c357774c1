"""The line of a feature in ``spin``: numbers with gaps, lists of several lengths, text, and one without any value."""

import math

import pyarrow as pa
import pytest

from pipeline.runs.spin_table import _feature


def described(rows: list, kind: pa.DataType) -> dict:
    return _feature(pa.chunked_array([pa.array(rows, pa.large_list(kind))]))


def test_numbers_that_are_missing_are_counted_and_do_not_spoil_the_others():
    found = described([[1.0, math.nan], [3.0, 0.0]], pa.float32())
    assert (found["type"], found["values"]) == ("float", "2")
    assert found["mean"] == pytest.approx(4 / 3)
    assert (found["min"], found["max"], found["zero"], found["nan"]) == (0.0, 3.0, 0.25, 0.25)
    assert found["row 1"] == "1, nan"
    nothing = described([[math.nan]], pa.float32())
    assert math.isnan(nothing["mean"])
    assert nothing["nan"] == 1.0


def test_lists_of_several_lengths_and_rows_without_a_value_are_told():
    found = described([[5, 6], None, [5]], pa.int64())
    assert (found["type"], found["values"], found["distinct"]) == ("int64", "0 to 2", 2)
    assert [found[f"row {place}"] for place in (1, 2, 3)] == ["5, 6", "", "5"]


def test_text_has_no_numbers_and_a_long_one_is_cut():
    found = described([[b"a" * 30], [b"\xff"]], pa.large_binary())
    assert found["type"] == "text"
    assert "mean" not in found
    assert found["row 1"] == f"{'a' * 23}…"
    assert found["distinct"] == 2
