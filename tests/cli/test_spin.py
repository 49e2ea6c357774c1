"""The description of a feature in ``spin``: numbers with gaps, lists of different lengths, and text."""

import math

import pyarrow as pa
import pytest

from pipeline.cli.spin import _feature


def described(rows: list, kind: pa.DataType) -> dict:
    return _feature(pa.array(rows, pa.large_list(kind)))


def test_missing_numbers_are_counted_and_left_out_of_statistics():
    found = described([[1.0, math.nan], [3.0, 0.0]], pa.float32())
    assert (found["type"], found["values"]) == ("float32", "2")
    assert found["mean"] == pytest.approx(4 / 3)
    assert (found["min"], found["max"], found["zero"], found["nan"]) == (0.0, 3.0, 0.25, 0.25)
    nothing = described([[math.nan]], pa.float32())
    assert math.isnan(nothing["mean"])
    assert nothing["nan"] == 1.0


def test_lists_of_different_lengths_have_a_range_of_lengths():
    found = described([[5, 6], None, [5]], pa.int64())
    assert (found["type"], found["values"], found["distinct"]) == ("int64", "0 to 2", 2)
    assert list(found["row 1"]) == [5, 6]


def test_text_has_no_statistics_of_numbers():
    found = described([[b"a" * 30], [b"\xff"]], pa.large_binary())
    assert found["type"] == "text"
    assert math.isnan(found["mean"])
    assert list(found["row 1"]) == [b"a" * 30]
    assert found["distinct"] == 2
