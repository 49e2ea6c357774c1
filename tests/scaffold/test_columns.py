"""Pipelines that ``new`` makes of columns and labels, and the data that it refuses."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data import shard_files, shards
from pipeline.data.examples import serialize
from pipeline.data.tfrecord_files import read_records
from pipeline.errors import UserError
from pipeline.scaffold import files
from pipeline.scaffold.columns import Column
from pipeline.scaffold.table import Table, check_leaks, look
from pipeline.settings.checks import read_settings
from pipeline.settings.config import SPLITS, Data, PipelineConfig

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
        (
            lambda frame: frame.rename(columns={"bought": "a;b"})[["a;b"]],
            "b",
            "at least one to predict it by. Its header has semicolons between the columns: write the file with commas",
        ),
        (
            lambda frame: frame.rename(columns={"size": 'row;"size', "bought": 'in cm";bought'}),
            "bought",
            "the label. Its header has semicolons between the columns: write the file with commas. It has row;",
        ),
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
        (
            lambda frame: frame.assign(bought=[f"{row},50 €" for row in range(400)]),
            "bought",
            "or numbers. These are amounts, which are read of other columns only: write the label as 1234.5",
        ),
        (lambda frame: frame.head(20), "bought", "has 20 rows; expected at least 50"),
        (lambda frame: frame.assign(size=1), "bought", "has no column to predict 'bought' by: size: 1 in every row"),
    ],
)
def test_data_that_cannot_make_a_model_is_refused_with_what_to_do(frame, tmp_path, change, label, message):
    with pytest.raises(UserError) as error:
        table_of(change(frame), tmp_path, label)
    assert message in str(error.value)


@pytest.mark.slow
def test_three_hundred_columns_and_one_of_a_hundred_thousand_values_are_looked_at(tmp_path):
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(ROWS, 300)), columns=[f"x{number}" for number in range(300)])
    frame["bought"] = random.choice(["yes", "no"], ROWS)
    assert len(table_of(frame, tmp_path).features) == 300
    many = pd.DataFrame({"user": [f"u{number}" for number in range(100_000)], "x": random.normal(size=100_000)})
    many["bought"] = random.choice(["yes", "no"], 100_000)
    assert [column.name for column in table_of(many, tmp_path).features] == ["x"]


NOT_TOO_FEW = 400


def columns_of(frame: pd.DataFrame, folder: Path, format: str = "csv") -> dict[str, Column]:
    random = np.random.default_rng(5)
    frame = frame.assign(bought=random.choice(["yes", "no"], len(frame)), other=random.normal(size=len(frame)))
    columns = {column.name: column for column in table_of(frame, folder, format=format).columns}
    assert columns.pop("other").role == "number"
    return columns


def repeated(*values: object) -> list[object]:
    return [values[row % len(values)] for row in range(NOT_TOO_FEW)]


def test_codes_with_leading_zeros_stay_text(tmp_path):
    columns = columns_of(pd.DataFrame({"plz": repeated("01067", "10115", "80331"), "n": range(NOT_TOO_FEW)}), tmp_path)
    assert (columns["plz"].type, columns["plz"].role) == ("text", "category")


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_large_whole_numbers_with_gaps_keep_their_digits(tmp_path, format):
    tracts = [17031081403.0 + row % 229 for row in range(NOT_TOO_FEW)]
    frame = pd.DataFrame({"pickup": [*tracts[:-5], *[np.nan] * 5], "bought": repeated("yes", "no")})
    table = table_of(frame, tmp_path, format=format)
    (column,) = table.columns
    assert (column.type, column.distinct, column.origin) == ("integers", 229, 17031081403)
    assert table.rows.column("pickup").to_pylist()[:2] == [[17031081403], [17031081404]]


def test_numbers_that_32_bits_cannot_tell_apart_are_left_out_with_the_reason(tmp_path):
    frame = pd.DataFrame({"t": [1_700_000_000.25 + row / 8 for row in range(NOT_TOO_FEW)], "x": range(NOT_TOO_FEW)})
    frame["y"] = frame["x"] * 0.1
    left_out = columns_of(frame, tmp_path)["t"].left_out
    assert left_out is not None
    assert "as 32-bit numbers, 400 different values such as 1700000000.25 would become 1" in left_out


def test_infinite_numbers_are_counted_and_no_warning_of_numpy_is_shown(tmp_path, recwarn):
    frame = pd.DataFrame({"x": repeated(np.inf, -np.inf, 1.5, 2.5, 4.0)})
    assert (
        columns_of(frame, tmp_path)["x"].note == "160 of 400 values are infinite and count as missing, first in row 1"
    )
    assert not [warning for warning in recwarn if issubclass(warning.category, RuntimeWarning)]


def test_a_number_that_no_example_can_hold_is_refused_with_its_row(tmp_path):
    frame = pd.DataFrame({"x": [1.5, 1e300, *[2.5] * (NOT_TOO_FEW - 2)], "bought": repeated("yes", "no")})
    with pytest.raises(UserError, match=r"some.csv, row 2: column 'x': found '1e\+300', expected a number up to 3.4e"):
        table_of(frame, tmp_path)


def test_pixels_are_numbers_and_a_few_columns_of_few_values_are_codes(tmp_path):
    random = np.random.default_rng(0)
    pixels = pd.DataFrame(random.integers(0, 17, (NOT_TOO_FEW, 64)), columns=[f"p{number}" for number in range(64)])
    roles = {name: column.role for name, column in columns_of(pixels.assign(zip=repeated(1, 2, 3)), tmp_path).items()}
    assert {name for name, role in roles.items() if role == "code"} == {"zip"}
    assert {column.role for column in columns_of(pixels[["p1", "p2"]], tmp_path).values()} == {"code"}


def test_a_header_that_is_a_row_a_missing_label_and_a_spreadsheet_are_said_so(tmp_path):
    (tmp_path / "some.csv").write_text("".join(f"{row}.5,{row % 7},{row % 2 + 2}\n" for row in range(1, 100)))
    with pytest.raises(UserError, match="no column 'bought', the label. Its first line looks like a row"):
        look(Data(str(tmp_path / "some.csv")), "bought", None)
    (tmp_path / "some.csv").write_text("".join(f"1,1,{row % 2}\n" for row in range(100)))
    with pytest.raises(UserError, match="occurs twice in the header.*Its first line looks like a row"):
        look(Data(str(tmp_path / "some.csv")), "bought", None)
    (tmp_path / "some.xlsx").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"found some.xlsx; export the spreadsheet as CSV"):
        look(Data(str(tmp_path / "some.xlsx")), "bought", None)


def test_small_data_is_dealt_so_that_eval_and_test_are_not_tiny(frame, tmp_path):
    table = table_of(frame.head(150), tmp_path)
    assert dict(table.shares) == {"train": 6, "eval": 2, "test": 2}
    assert np.bincount(table.places).min() >= 15
    big = pd.concat([frame] * 5, ignore_index=True).assign(size=np.random.default_rng(0).normal(size=5 * ROWS))
    assert dict(table_of(big, tmp_path).shares) == {"train": 8, "eval": 1, "test": 1}


def test_the_splits_are_those_of_the_run(frame, tmp_path):
    """ExampleGen itself deals the rows: the same ones to the same splits."""
    frame["none"] = None
    frame["tract"] = [17031081403.0 + row if row % 3 else None for row in range(ROWS)]
    table = table_of(frame, tmp_path)
    types = {column.name: column.type for column in table.columns if column.type != "nothing"} | {"bought": "text"}
    job = shards.Job(
        files=(("all", str(tmp_path / "some.csv")),),
        format="csv",
        output_splits=SPLITS,
        uri=str(tmp_path / "examples"),
        shares=tuple(table.shares.values()),
        types=types,
        label="bought",
        classes=table.label.numbers,
    )
    for shard in shards.plan(job, [shards.scan(file, job) for file in job.files]):
        assert shard_files.write(shard, job).problem is None
    for split in SPLITS:
        (file,) = (tmp_path / f"examples/Split-{split}").iterdir()
        written = {bytes(record) for block in read_records(str(file), 1000) for record in block}
        mine = set(serialize(table.split(split)))
        assert written == mine
        assert len(mine) > 50


def test_rows_that_are_all_alike_cannot_be_dealt_and_it_says_why(tmp_path):
    frame = pd.DataFrame({"x": repeated(1, 2, 3), "bought": repeated("yes", "no")})
    with pytest.raises(
        UserError, match="400 rows, of which 6 are different, and equal rows go to one split, are too few"
    ):
        table_of(frame, tmp_path)


def test_bytes_that_are_no_text_are_left_out_and_numbers_beyond_an_example_are_refused(tmp_path):
    images = [bytes([255, row % 256, 0]) for row in range(NOT_TOO_FEW)]
    column = columns_of(pd.DataFrame({"image": images}), tmp_path, "parquet")["image"]
    assert column.left_out == "bytes that are no text; say in the module file what to make of them"
    huge = pd.DataFrame({"id": np.array([2**64 - 1 - row for row in range(NOT_TOO_FEW)], np.uint64)})
    with pytest.raises(UserError, match="column 'id': .*correct it, or leave the column out"):
        columns_of(huge, tmp_path, "parquet")


def test_a_number_that_is_nan_in_a_parquet_file_is_a_missing_one(tmp_path):
    table = pa.table({"x": pa.array([1.0, float("nan")] * 200), "bought": repeated("yes", "no", "no")})
    table = table.append_column("other", pa.array(np.random.default_rng(0).normal(size=NOT_TOO_FEW)))
    pq.write_table(table, tmp_path / "some.parquet")
    column = look(Data(str(tmp_path / "some.parquet")), "bought", None).columns[0]
    assert (column.name, column.type, column.note) == ("x", "floats", "")


def test_a_column_to_keep_that_is_not_there_is_refused_with_the_nearest(frame, tmp_path):
    with pytest.raises(UserError, match="no column 'sise' to keep; did you mean 'size'"):
        check_leaks(table_of(frame, tmp_path), ["sise"])
    with pytest.raises(UserError, match="the column 'bought' is the label"):
        check_leaks(table_of(frame, tmp_path), ["bought"])


def sentences(rows: int) -> list[str]:
    random = np.random.default_rng(2)
    words = ["the", "plane", "was", "late", "because", "of", "snow", "wind", "and", "rain", "crew", "calm", "gate"]
    return [" ".join(random.choice(words, 4 + row % 10)).capitalize() + "." for row in range(rows)]


def test_text_of_several_words_that_occur_again_is_sentences_with_room_for_nearly_all(frame, tmp_path):
    frame["remark"] = sentences(ROWS)
    frame["name"] = [f"customer number {row}" for row in range(ROWS)]
    frame["token"] = [f"{row}a {row}b {row}c {row}d" for row in range(ROWS)]
    frame["town"] = (["New York City, New York", "Los Angeles, California"] * ROWS)[:ROWS]
    columns = {column.name: column for column in table_of(frame, tmp_path).columns}
    assert (columns["remark"].role, columns["remark"].places, columns["remark"].left_out) == ("text", 16, None)
    assert columns["name"].role == "text"
    assert columns["token"].left_out == "400 different texts in 400 rows, too many to learn from each"
    assert columns["town"].role == "category"


@pytest.mark.parametrize(
    ("words", "end"),
    [
        (["飞机", "今天", "晚点", "因为", "大雪", "天气", "很好", "准时", "到达", "机组"], "。"),
        (["ひこうき", "は", "きょう", "ユキ", "で", "遅れ", "ました", "時間", "通り"], "。"),
        (["เครื่องบิน", "วันนี้", "ล่าช้า", "เพราะ", "หิมะ", "อากาศ", "ดี"], ""),
    ],
)
def test_sentences_without_spaces_are_read_by_their_characters_and_short_names_are_not(frame, tmp_path, words, end):
    random = np.random.default_rng(4)
    frame["remark"] = ["".join(random.choice(words, 4 + row % 5)) + end for row in range(ROWS)]
    frame["mixed"] = [f"{remark} Boeing{row % 7}" for row, remark in enumerate(frame["remark"])]
    family, given = "王李张刘陈杨赵黄周吴", "伟芳娜敏静丽强磊军洋勇艳杰娟涛明超秀霞平"
    frame["name"] = [family[row % 10] + given[row // 20] for row in range(ROWS)]
    columns = {column.name: column for column in table_of(frame, tmp_path).columns}
    assert (columns["remark"].role, columns["mixed"].role) == ("text", "text")
    usual = np.quantile([len(text) - len(end) for text in frame["remark"]], 0.95)
    assert usual < columns["remark"].places <= max(8, 2 * usual + 2)
    assert columns["name"].role != "text"


def test_several_values_in_a_row_are_sequences_and_decimals_numbers_where_each_row_has_as_many(frame, tmp_path):
    random = np.random.default_rng(3)
    frame["ids"] = [list(random.integers(0, 30, row % 7)) for row in range(ROWS)]
    frame["tags"] = [list(random.choice(["a", "b", "c"], 20)) for _ in range(ROWS)]
    frame["vector"] = [list(random.normal(size=4)) for _ in range(ROWS)]
    frame["ragged"] = [list(random.normal(size=1 + row % 3)) for row in range(ROWS)]
    frame["sessions"] = [[f"{row}", f"{row}-"] for row in range(ROWS)]
    frame["same"] = [[1, 1]] * ROWS
    table = table_of(frame, tmp_path, format="parquet")
    columns = {column.name: column for column in table.columns}
    assert {name: column.role for name, column in columns.items() if not column.left_out} == {
        "size": "number",
        "ids": "sequence",
        "tags": "sequence",
        "vector": "number",
    }
    assert (columns["ids"].places, columns["tags"].places) == (8, 32)
    assert columns["ragged"].left_out.startswith("several decimals in a row, not as many in each")
    assert columns["sessions"].left_out == "800 different values in lists of 800, too many to learn each"
    assert columns["same"].left_out == "the same values in every row"
    lines = dict(files.summary(table))
    assert lines["sequences"] == "ids, tags"
    assert lines["numbers"] == "size, vector"


def test_rows_that_repeat_the_header_are_left_out_with_a_note_and_the_run_may_leave_them_out(frame, tmp_path):
    text = frame.to_csv(index=False)
    (tmp_path / "some.csv").write_text(text + "\n" + text)
    table = look(Data(str(tmp_path / "some.csv")), "bought", None)
    assert table.label.classes == ("no", "yes")
    assert table.rows.num_rows == 2 * ROWS
    note = f"1 row repeats the header, the first in {tmp_path}/some.csv, row 401; max_bad_rows leaves them out"
    assert ("note", note) in list(files.summary(table))
    assert "        max_bad_rows=0.002,\n" in files.config_text("some", "some.csv", table)


@pytest.mark.parametrize("kind", ["structs", "uint64", "two types"])
def test_a_column_to_leave_out_is_neither_read_nor_in_the_schema(frame, tmp_path, kind):
    (tmp_path / "data").mkdir()
    columns = {
        "structs": [{"x": 1}] * ROWS,
        "uint64": pa.array([2**64 - 1] * ROWS, pa.uint64()),
        "two types": ["x"] * ROWS,
    }
    written = pa.Table.from_pandas(frame)
    pq.write_table(written.append_column("odd", pa.array(columns[kind])), tmp_path / "data/1.parquet")
    pq.write_table(written.append_column("odd", pa.array(range(ROWS))), tmp_path / "data/2.parquet")
    with pytest.raises(UserError, match="--leave-out odd"):
        look(Data(str(tmp_path / "data")), "bought", None)
    table = look(Data(str(tmp_path / "data"), leave_out=("odd",)), "bought", None)
    assert table.rows.column_names == ["bought", "size"]
    assert ("left out", "odd (as requested)") in list(files.summary(table))
    assert '        leave_out=("odd",),\n' in files.config_text("some", "data", table)
    assert "odd" not in files.schema_text(table, ())


@pytest.mark.parametrize(
    ("leave_out", "message"),
    [
        ("sizes", "no column 'sizes', which data.leave_out names; it has bought, size; did you mean 'size'"),
        (" Size ", "did you mean 'size'"),
        ("bought", "the column 'bought' is the label, and cannot be left out"),
    ],
)
def test_a_column_to_leave_out_that_cannot_be_is_refused(frame, tmp_path, leave_out, message):
    frame.to_csv(tmp_path / "some.csv", index=False)
    with pytest.raises(UserError, match=message):
        look(Data(str(tmp_path / "some.csv"), leave_out=(leave_out,)), "bought", None)


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("# from the shop", "Its line 2 looks like the header: delete the lines before it"),
        ("# from the shop, 2026\n#\n", "Its line 4 looks like the header: delete the lines before it"),
        ("Report of May\n", "Its line 3 looks like the header: delete the lines before it"),
        ("sep=;", "Its line 2 looks like the header: delete the lines before it"),
        ("sep=,", "Its first line looks like a comment or a title: delete the lines before the header"),
        ("# of the shop,,", "has no name.* Its first line looks like a comment or a title: delete the lines before"),
    ],
)
def test_lines_before_the_header_are_named(frame, tmp_path, before, message):
    (tmp_path / "some.csv").write_text(f"{before}\n{frame.to_csv(index=False)}")
    with pytest.raises(UserError, match=message):
        look(Data(str(tmp_path / "some.csv")), "bought", None)


@pytest.mark.parametrize("label", ["bought ", "Bought", "bougth"])
def test_a_label_that_is_nearly_the_name_of_a_column_is_refused_with_it(frame, tmp_path, label):
    frame.to_csv(tmp_path / "some.csv", index=False)
    with pytest.raises(UserError, match="the label; did you mean 'bought'"):
        look(Data(str(tmp_path / "some.csv")), label, None)


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_spellings_of_a_class_are_one_class_with_a_note_and_in_the_config(frame, tmp_path, format):
    frame["bought"] = (["yes", "no", "Yes", "NO", "yes ", "no", "yes", "no"] * ROWS)[:ROWS]
    table = table_of(frame, tmp_path, format=format)
    assert (table.label.classes, table.label.spellings) == (("no", "yes"), {"NO": "no", "Yes": "yes"})
    assert table.values.tolist() == [1, 0] * (ROWS // 2)
    (note,) = [line for kind, line in files.summary(table) if kind == "note"]
    assert "'Yes' (50 rows), 'yes ' (50 rows) read as 'yes'" in note
    assert "'NO' (50 rows) read as 'no'" in note
    (tmp_path / "config.py").write_text(files.config_text("some", "some.csv", table))
    assert read_settings(tmp_path / "config.py", "CONFIG", PipelineConfig).label == table.label


def test_a_few_rows_of_another_spelling_are_no_rare_class_and_letters_are_different_classes(frame, tmp_path):
    frame["bought"] = ["YES", *frame["bought"][1:]]
    assert table_of(frame, tmp_path).label.classes == ("no", "yes")
    frame["bought"] = ["yes", "Yes"] * (ROWS // 2)
    with pytest.raises(UserError, match="the label 'bought' is 'Yes' or 'yes' in all of 400 rows"):
        table_of(frame, tmp_path)
    frame["bought"] = ([*"aAbBcC"] * ROWS)[:ROWS]
    assert table_of(frame, tmp_path).label.classes == ("A", "B", "C", "a", "b", "c")
