"""Files that are damaged, differ or hold what they should not: refused with file, row and column, never read amiss."""

import csv
import decimal
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from pipeline.data import shard_files, shards, tfrecord_files
from pipeline.data.location import find_files
from pipeline.data.table import Unit
from pipeline.errors import UserError
from pipeline.settings.config import Data, HashSplit, TimeSplit
from tests.components.example_gen import records, run, values


@pytest.fixture
def problem(tmp_path: Path) -> Callable[..., str]:
    """Return a function for ExampleGen's message about files, "" when it takes them; without Beam, a mere carrier."""

    def problem(path: Path, data: Data | None = None, types: dict[str, str] | None = None) -> str:
        data = data or Data(str(path))
        found = find_files(data)
        job = shards.Job(
            files=tuple((split, file) for split, several in found.by_split.items() for file in several),
            format=found.format,
            output_splits=tuple(data.split_by.shares),
            shares=tuple(data.split_by.shares.values()),
            hash_column=data.split_by.column if isinstance(data.split_by, HashSplit) else None,
            time_column=data.split_by.column if isinstance(data.split_by, TimeSplit) else None,
            types=types or {},
            max_bad_rows=data.max_bad_rows,
            leave_out=data.leave_out,
            folder=str(path),
            uri=str(tmp_path / "examples"),
        )
        scans = [shards.scan(one, job) for one in job.files]
        written = [shard_files.write(shard, job) for shard in shards.plan(job, scans)]
        return " / ".join(shard_files.finish(job, scans, written)["problems"])

    return problem


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def rows(number: int = 200) -> str:
    return "".join(f"{i},x{i}\n" for i in range(number))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("200\n", "some.csv, row 201: found 1 fields, expected 2"),
        ("200,x,y\n", "some.csv, row 201: found 3 fields, expected 2"),
        ('200,"x\n', "some.csv, row 201: found a quote that is never closed; expected one more quote"),
        ("no,x\n", "some.csv, row 201: column 'a': found 'no', expected an integer"),
    ],
)
def test_a_bad_row_is_refused_with_its_file_and_row(folder, problem, bad, message):
    (folder / "some.csv").write_text("a,b\n" + rows() + bad)
    said = problem(folder, types={"a": "integers"})
    assert said.startswith(f"{folder}/{message}")
    assert "1 of 201 rows are bad, 0.50%, and data.max_bad_rows allows 0.00%" in said


def test_a_share_of_bad_rows_may_be_allowed_and_they_are_counted_and_kept(folder, tmp_path):
    (folder / "some.csv").write_text('a,b\n0,x,y\n"1,x\n' + rows() + "no,é\n")
    data = Data(str(folder), max_bad_rows=0.02)
    examples = run(data, tmp_path / "out", types={"a": "integers"})
    assert examples.get_int_custom_property("bad_rows") == 3
    assert json.loads((tmp_path / "out/summary.json").read_text())["bad_rows"] == 3
    assert sorted(values(one)["a"][0] for one in records(tmp_path / "out")) == list(range(200))
    (file,) = (tmp_path / "out/bad_rows").iterdir()
    with file.open(newline="", encoding="utf-8") as stream:
        kept = list(csv.DictReader(stream))
    assert [(one["row"], one["text"]) for one in kept] == [("1", "0,x,y"), ("2", '"1,x'), ("203", "no,é")]
    assert kept[0]["file"] == str(folder / "some.csv")
    assert kept[2]["reason"] == "column 'a': found 'no', expected an integer"


def test_more_than_the_allowed_share_is_refused(folder, problem):
    (folder / "some.csv").write_text("a,b\n" + rows(98) + "1\n2\n")
    said = problem(folder, Data(str(folder), max_bad_rows=0.01))
    assert "2 of 100 rows are bad, 2.00%, and data.max_bad_rows allows 1.00%" in said


def test_headers_that_differ_are_refused_with_both_files_and_another_order_is_not(folder, problem):
    (folder / "1.csv").write_text("a,b\n" + rows())
    (folder / "2.csv").write_text("b,a\n" + "".join(f"x{i},{i}\n" for i in range(200)))
    assert problem(folder) == ""
    (folder / "3.csv").write_text("a,c\n" + rows())
    assert problem(folder) == (
        f"{folder}/1.csv and {folder}/3.csv have different columns: {folder}/1.csv has 'b' more and {folder}/3.csv has "
        "'c' more; expected the same columns in every file, or leave these columns out: Data(leave_out=('b', 'c')), or "
        "new --leave-out b --leave-out c"
    )


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".tfrecord"])
def test_a_column_of_different_types_in_two_files_is_refused_with_both_files(folder, problem, ending):
    for number, column in enumerate([list(range(200)), [None] * 200, [f"x{i}" for i in range(200)]]):
        write(folder / f"{number}{ending}", column)
    said = problem(folder)
    assert f"the column 'a' holds integers in {folder}/0{ending} and text in {folder}/2{ending}" in said


def write(file: Path, column: list) -> None:
    if file.suffix == ".csv":
        file.write_text("a,b\n" + "".join(f"{'' if value is None else value},1\n" for value in column))
    elif file.suffix == ".parquet":
        pq.write_table(pa.table({"a": column, "b": [1] * len(column)}), file)
    else:
        with tf.io.TFRecordWriter(str(file)) as writer:
            for value in column:
                feature = tf.train.Feature()
                if isinstance(value, int):
                    feature.int64_list.value.append(value)
                elif value:
                    feature.bytes_list.value.append(value.encode())
                writer.write(tf.train.Example(features=tf.train.Features(feature={"a": feature})).SerializeToString())


def test_integers_in_one_csv_file_and_decimals_in_another_are_floats(folder, problem, tmp_path):
    write(folder / "1.csv", list(range(200)))
    write(folder / "2.csv", [0.5] * 200)
    assert problem(folder) == ""
    assert {type(values(one)["a"][0]) for one in records(tmp_path / "examples")} == {float}


def test_a_truncated_gzip_is_refused(folder, problem):
    content = gzip.compress(("a,b\n" + rows(5000)).encode())
    (folder / "some.csv.gz").write_bytes(content[:-2000])
    assert problem(folder).startswith(f"{folder}/some.csv.gz is damaged or cut short: Compressed file ended before")


def test_a_parquet_file_cut_short_or_spoilt_is_refused(folder, problem):
    file = folder / "some.parquet"
    pq.write_table(pa.table({"a": list(range(5000))}), file, row_group_size=1000, compression="snappy")
    content = file.read_bytes()
    file.write_bytes(content[:-1000])
    assert problem(folder).startswith(f"{file} is not a Parquet file, whatever its name says, or is cut short: ")
    file.write_bytes(content[:100] + b"\xff" * 200 + content[300:])
    assert problem(folder).startswith(f"{file} is damaged after row ")


def test_a_tfrecord_with_a_wrong_checksum_or_cut_short_is_refused_with_its_row(folder, problem):
    file = folder / "some.tfrecord"
    write(file, list(range(200)))
    content = file.read_bytes()
    size = len(content) // 200
    file.write_bytes(content[: 150 * size] + b"\xff" * 4 + content[150 * size + 4 :])
    said = problem(folder)
    assert "damaged or cut short" in said
    assert "expected TFRecords with right checksums" in said
    file.write_bytes(content[:-3])
    assert problem(folder).startswith(f"{file}, row 200: damaged or cut short")


def number(value: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


EXAMPLE = tf.train.Example(features=tf.train.Features(feature={"a": number(7)})).SerializeToString()
SEQUENCE = tf.train.SequenceExample(
    context=tf.train.Features(feature={"a": number(7)}),
    feature_lists=tf.train.FeatureLists(feature_list={"steps": tf.train.FeatureList(feature=[number(1), number(2)])}),
).SerializeToString()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"\xff\xff not an example", "found a record that begins with b'\\xff\\xff not an example' and is no tf.Exam"),
        (b'{"a": 1, "b": 2}', 'found a record that begins with b\'{"a": 1, "b": 2}\' and is no tf.Example'),
        (b"1,2,3,4,5,6,7,8,9", "found a record that begins with b'1,2,3"),
        (SEQUENCE, "found a tf.SequenceExample with the feature lists 'steps', of which nothing would be read; expec"),
        (SEQUENCE[len(EXAMPLE) :], "found a tf.SequenceExample with the feature lists 'steps'"),
        (bytes([0x0A, len(EXAMPLE)]) + EXAMPLE, "found a tf.Example in field 1 of another message; expected the tf.E"),
        (bytes([0x12, len(EXAMPLE)]) + EXAMPLE, "found a tf.Example in field 2 of another message"),
        (
            EXAMPLE + b"\x2a\x01x",
            "or has fields that tf.Example does not have; expected the bytes of tf.train.Example(",
        ),
        (b"\x0a" + bytes([EXAMPLE[1] + 3]) + EXAMPLE[2:] + b"\x22\x01x", "or has fields that tf.Example does not have"),
    ],
)
@pytest.mark.parametrize("before", [0, 3])
def test_a_record_of_which_something_would_be_lost_is_refused_with_its_number(folder, problem, record, message, before):
    with tf.io.TFRecordWriter(str(folder / "some.tfrecord")) as writer:
        for one in (*[EXAMPLE] * before, record, EXAMPLE):
            writer.write(one)
    assert f"some.tfrecord, row {before + 1}: " in problem(folder)
    assert message in problem(folder)


def test_a_sequence_after_many_examples_is_refused_and_an_example_without_features_is_a_row(folder, problem):
    file = folder / "some.tfrecord"
    with tf.io.TFRecordWriter(str(file)) as writer:
        for one in (*[EXAMPLE] * 500, b"", b"\x0a\x00"):
            writer.write(one)
        writer.flush()
        assert [len(rows.numbers) for rows in tfrecord_files.read(Unit(str(file), "tfrecord"))] == [502]
        writer.write(SEQUENCE)
    assert "some.tfrecord, row 503: found a tf.SequenceExample" in problem(folder)


def test_a_feature_of_two_types_in_one_tfrecord_file_is_refused(folder, problem):
    floats = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0]))
    with tf.io.TFRecordWriter(str(folder / "some.tfrecord")) as writer:
        writer.write(EXAMPLE)
        writer.write(tf.train.Example(features=tf.train.Features(feature={"a": floats})).SerializeToString())
    assert "rows 1 and 2: the tf.Examples do not fit together: " in problem(folder)
    assert 'for feature "a"; expected one type of each feature in every record' in problem(folder)


def test_an_empty_file_among_others_is_taken_and_a_split_without_rows_is_not(folder, problem):
    (folder / "1.csv").write_text("")
    (folder / "2.csv").write_text("a,b\n")
    (folder / "3.csv").write_text("a,b\n" + rows())
    assert problem(folder) == ""
    (folder / "3.csv").write_text("a,b\n1,x\n")
    assert "split has no rows: 1 rows in all" in problem(folder)


def test_two_parquet_columns_of_one_name_are_refused(folder, problem):
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), folder / "some.parquet")
    assert "some.parquet: the column name 'a' occurs twice" in problem(folder)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        # Refused before any row is read.
        (pa.array([{"x": 1}] * 200), "column 'a': of type struct<x: int64>; expected integers, floats"),
        (pa.array([[1, None]] * 200), "between rows 1 and 200, column 'a': a list holds a null"),
        (pa.array([2**64 - 1] * 200, pa.uint64()), "between rows 1 and 200, column 'a': a value is beyond the largest"),
    ],
)
def test_a_value_that_an_example_cannot_hold_is_named(folder, problem, column, message):
    pq.write_table(pa.table({"a": column}), folder / "some.parquet")
    assert f"{folder}/some.parquet, {message}" in problem(folder)


PLAIN = pa.array(["a", None] * 50)
UUID = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)] * 100, pa.binary(16)))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (PLAIN.dictionary_encode(), [b"a"]),
        (PLAIN.cast(pa.large_string()), [b"a"]),
        (PLAIN.cast(pa.large_binary()), [b"a"]),
        (pa.array([b"ab", None] * 50, pa.binary(2)), [b"ab"]),
        (pa.array([7, None] * 50).dictionary_encode(), [7]),
        (pa.array([decimal.Decimal("1.25"), None] * 50, pa.decimal256(40, 2)), [1.25]),
        (pa.array([1.5, None] * 50).cast(pa.float16()), [1.5]),
        (pa.array([0, None] * 50, pa.timestamp("ns", "Asia/Tokyo")), [0]),
        (pa.array([1_000, None] * 50, pa.duration("ns")), [1]),
        (pa.array([5, None] * 50, pa.time32("s")), [5_000_000]),
        (pa.array([["a", "b"], None] * 50, pa.large_list(pa.large_string())), [b"a", b"b"]),
        (pa.array([[[1]], None] * 50), "column 'a': of type list<element: list<element: int64>>; expected integers"),
        (pa.array([[("k", 1)], None] * 50, pa.map_(pa.string(), pa.int64())), "column 'a': of type map<string, int64"),
        (pa.array([[{"x": 1}], None] * 50), "column 'a': of type list<element: struct<x: int64>>; expected integers"),
        (UUID, "column 'a': of type extension<arrow.uuid>; expected integers"),
    ],
)
def test_a_parquet_column_is_read_or_refused_with_its_name(folder, problem, tmp_path, column, expected):
    pq.write_table(pa.table({"a": column, "b": range(100)}), folder / "some.parquet")
    if isinstance(expected, str):
        assert f"{folder}/some.parquet, {expected}" in problem(folder)
        return
    assert problem(folder) == ""
    found = [values(one)["a"] for one in records(tmp_path / "examples")]
    assert found.count(expected) == found.count(None) == 50


@pytest.mark.parametrize(
    ("split_by", "message"),
    [
        (HashSplit("c"), "no column 'c', by which rows are assigned to splits"),
        (HashSplit("a"), "the column 'a', by which rows are assigned to splits, has no value"),
        (HashSplit("f"), "the column 'f', by which rows are assigned to splits, holds floats"),
        (TimeSplit("c"), "has no column 'c', by whose order rows are assigned to splits"),
        (TimeSplit("a"), "some.csv, row 1: no time in the column 'a'"),
        (TimeSplit("b"), "column 'b': failed to parse string: 'x'"),
    ],
)
def test_a_column_that_cannot_decide_a_split_is_named(folder, problem, split_by, message):
    (folder / "some.csv").write_text("a,b,f\n,x,0.5\n" + "".join(f"{i},x,1.5\n" for i in range(100)))
    assert message.lower() in problem(folder, Data(str(folder), split_by=split_by)).lower()


def test_the_executor_raises_the_problem_as_one_line(folder, tmp_path):
    (folder / "some.csv").write_text("a,b\n1\n" + rows())
    with pytest.raises(UserError, match=r"^.*/some.csv, row 1: found 1 fields, expected 2\. 1 of 201 rows are bad"):
        run(Data(str(folder)), tmp_path / "out")


NOT_FOR_AN_EXAMPLE = {
    "structs": pa.array([{"x": i} for i in range(200)]),
    "maps": pa.array([[("x", i)] for i in range(200)], pa.map_(pa.string(), pa.int64())),
    "lists of lists": pa.array([[[i]] for i in range(200)]),
    "lists with nulls": pa.array([[i, None] for i in range(200)]),
    "uint64": pa.array([2**64 - 1 - i for i in range(200)], pa.uint64()),
}


@pytest.mark.parametrize("kind", list(NOT_FOR_AN_EXAMPLE))
def test_a_column_that_no_example_can_hold_is_refused_and_may_be_left_out(folder, problem, kind):
    table = pa.table({"a": range(200), "odd one": NOT_FOR_AN_EXAMPLE[kind]})
    pq.write_table(table, folder / "some.parquet")
    remedy = "leave the column out: Data(leave_out=('odd one',)), or new --leave-out 'odd one'"
    assert problem(folder).endswith(remedy)
    assert problem(folder, Data(str(folder), leave_out=("odd one",))) == ""


def test_columns_that_differ_between_files_may_be_left_out(folder, problem):
    (folder / "one.csv").write_text("a,b\n" + rows())
    (folder / "two.csv").write_text("a,c\n" + rows())
    assert problem(folder, Data(str(folder), leave_out=("b", "c"))) == ""
    (folder / "two.csv").write_text("a,b\n" + "".join(f"x{i},{i}\n" for i in range(200)))
    assert "two.csv; expected one type in every file" in problem(folder)
    assert problem(folder, Data(str(folder), leave_out=("b",))).endswith("new --leave-out a")
    assert "wrong" not in problem(folder, Data(str(folder), leave_out=("a",)), {"b": "text"})


@pytest.mark.parametrize("format", ["csv", "tfrecord"])
def test_examples_lack_a_column_that_is_left_out_and_one_that_no_file_has_is_named(folder, problem, tmp_path, format):
    (folder / "some.csv").write_text("a,b\n" + rows())
    if format == "tfrecord":
        run(Data(str(folder)), tmp_path / "first")
        folder = tmp_path / "first"
    pattern = "*" if format == "csv" else "Split-*/*"
    run(Data(str(folder), files=pattern, leave_out=("b",)), tmp_path / "out")
    assert {name for one in records(tmp_path / "out") for name in values(one)} == {"a"}
    assert "has no column 'A', which data.leave_out names; it has a, b; did you mean 'a'?" in problem(
        folder, Data(str(folder), files=pattern, leave_out=("A",))
    )


def test_a_repeated_header_is_a_bad_row_in_any_file_and_may_be_left_out(folder, problem):
    (folder / "a.csv").write_text("a,b\n" + rows())
    with gzip.open(folder / "b.csv.gz", "wt") as stream:
        stream.write("a,b\n" + rows(50) + "\n" + "a,b\n" + rows(50))
    said = problem(folder)
    assert said.startswith(f"{folder}/b.csv.gz, row 51: repeats the header")
    assert "1 of 301 rows are bad" in said
    assert problem(folder, Data(str(folder), max_bad_rows=0.01)) == ""
