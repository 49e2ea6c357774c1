"""Tables of answers in files: CSV without lists, numbers with the fewest digits, JSON that any reader takes."""

import contextlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import UserError
from pipeline.serving.table_writer import TableWriter, shortest

PROBABILITIES = pa.FixedSizeListArray.from_arrays(pa.array([0.1, 0.9, 0.25, 0.75], pa.float32()), 2)


def written(file: Path, table: pa.Table, **names: list[str]) -> list[str]:
    with contextlib.closing(TableWriter(file, names)) as writer:
        writer.write(table.slice(0, 1))
        writer.write(table.slice(1))
    return file.read_text().splitlines()


def test_csv_has_a_column_for_each_value_of_a_list(tmp_path):
    table = pa.table({"id": ["a", "b"], "probabilities": PROBABILITIES})
    assert written(tmp_path / "numbered.csv", table) == [
        '"id","probabilities_0","probabilities_1"',
        '"a",0.1,0.9',
        '"b",0.25,0.75',
    ]
    named = written(tmp_path / "named.csv", table, probabilities=["no, never", "yes"])
    assert named[0] == '"id","probabilities_no, never","probabilities_yes"'
    # Names that are not as many as the values name nothing.
    assert "probabilities_1" in written(tmp_path / "short.csv", table, probabilities=["one"])[0]


def test_other_nested_columns_are_json_in_csv(tmp_path):
    table = pa.table(
        {
            "words": [["a", 'b"'], None],
            "numbers": pa.array([[0.1], [0.2, float("nan")]], pa.list_(pa.float32())),
            "raw": [b"z\xc3\xbc", None],
        }
    )
    assert written(tmp_path / "x.csv", table) == [
        '"words","numbers","raw"',
        '"[""a"",""b\\""""]","[0.1]","zü"',
        ',"[0.2,null]",',
    ]


def test_two_columns_of_one_name_in_csv_are_refused(tmp_path):
    table = pa.table({"probabilities_0": [1, 2], "probabilities": PROBABILITIES})
    with pytest.raises(UserError, match="two columns of one name, .* write to a .parquet file, .*: probabilities_0$"):
        written(tmp_path / "x.csv", table)


def test_json_lines_keep_lists_have_few_digits_and_no_nan(tmp_path):
    values = pa.array([0.42673251032829285, float("nan")], pa.float32())
    lines = written(tmp_path / "x.jsonl", pa.table({"p": values, "all": PROBABILITIES}))
    assert lines == ['{"p":0.4267325,"all":[0.1,0.9]}', '{"p":null,"all":[0.25,0.75]}']


def test_the_shortest_number_is_the_same_float32():
    values = np.random.default_rng(0).random(10_000).astype(np.float32).reshape(-1, 2) * np.float32(1e3)
    short = shortest(pa.array(values.ravel())).to_numpy()
    assert (short.astype(np.float32) == values.ravel()).all()
    assert max(len(repr(number)) for number in short.tolist()) <= 11
    assert shortest(pa.array([0.42673251, 1e-30, 3.4e38], pa.float32())).to_pylist() == [0.4267325, 1e-30, 3.4e38]
