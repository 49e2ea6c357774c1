"""Folders "column=value", as Hive, Spark and pyarrow write them, hold columns; files that are not read are listed."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq
import pytest

from pipeline.components.arrow_example_gen import ExampleGenSettings, fingerprint_of_files
from pipeline.data.files import find, partitions_of
from pipeline.data.location import check_data, find_files, notes
from pipeline.errors import UserError
from pipeline.scaffold.table import look
from pipeline.settings.config import Data, HashSplit, Label, PipelineConfig, TimeSplit
from pipeline.settings.gates import Evaluation, Gate
from tests.components.example_gen import records, run, values

ROWS = 40
# Values of two levels of folders, as their names have them.
FOLDERS = [("north", "01"), ("so%20uth%2Fx", "2"), ("__HIVE_DEFAULT_PARTITION__", "12")]
REGIONS = {None, b"north", b"so uth/x"}


def write(folder: Path, ending: str, folders: list[tuple[str, str]] = FOLDERS, column: str = "region") -> Path:
    """Write a file in each folder, whose rows follow the last level; return the folder above all."""
    for region, month in folders:
        file = folder / f"{column}={region}/month={month}/part-0{ending}"
        file.parent.mkdir(parents=True)
        table = pa.table({"x": range(ROWS), "late": [["no", "yes"][row % 2] for row in range(ROWS)]})
        if ending == ".parquet":
            pq.write_table(table, file)
        else:
            file.write_text("x,late\n" + "".join(f"{row},{['no', 'yes'][row % 2]}\n" for row in range(ROWS)))
    (folder / "_SUCCESS").touch()
    (folder / ".part-0.parquet.crc").touch()
    return folder


def config_of(data: Data, label: Label | None = None) -> PipelineConfig:
    gate = Evaluation(gates=(Gate("auc", floor=0.5),))
    return PipelineConfig("some", data, label or Label("late", ("no", "yes")), "models/some.py", evaluation=gate)


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".parquet", ".csv"])
@pytest.mark.parametrize("files", ["*", "**/*"])
def test_partitions_are_columns_of_the_examples_with_the_types_of_pyarrow(tmp_path, ending, files):
    folder = write(tmp_path / "data", ending)
    data = Data(str(folder), files=files if files == "*" else f"**/*{ending}")
    run(data, tmp_path / "out")
    found = [values(one) for one in records(tmp_path / "out")]
    assert len(found) == 3 * ROWS
    assert {one["region"] and one["region"][0] for one in found} == REGIONS
    assert {one["month"][0] for one in found} == {1, 2, 12}
    assert {one["month"][0] for one in found if not one["region"]} == {12}
    schema = pa_dataset.dataset(folder, format=ending[1:], partitioning="hive").schema
    assert (schema.field("region").type, schema.field("month").type) == (pa.string(), pa.int32())
    assert check_data(config_of(data)) == ["columns from the names of folders: region (text), month (integers)"]


def test_names_and_values_are_read_as_pyarrow_reads_them(tmp_path):
    file = write(tmp_path, ".parquet", [("a%2Bb=c", "x")], "re%20gion") / "re%20gion=a%2Bb=c/month=x/part-0.parquet"
    row = pa_dataset.dataset(tmp_path, partitioning="hive").to_table().to_pylist()[0]
    assert partitions_of(str(file), str(tmp_path)) == {"re gion": "a+b=c", "month": "x"}
    assert {name: row[name] for name in ("re gion", "month")} == {"re gion": "a+b=c", "month": "x"}


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
def test_new_describes_the_columns_of_partitions(tmp_path, ending):
    folder = write(tmp_path, ending, [("north", "1"), ("south", "2"), ("north", "3")])
    table = look(Data(str(folder)), "late", None)
    assert {column.name: column.type for column in table.columns} == {
        "x": "integers",
        "region": "text",
        "month": "integers",
    }
    assert table.rows.column("region").to_pylist().count([b"north"]) == 2 * ROWS


@pytest.mark.slow
def test_a_partition_can_be_the_label_and_can_decide_the_split(tmp_path):
    folder = write(tmp_path / "data", ".parquet", [(region, str(month)) for month in range(1, 7) for region in "ab"])
    data = Data(str(folder), split_by=TimeSplit("month", {"train": 4, "eval": 1, "test": 1}))
    label = Label("region", ("a", "b"))
    check_data(config_of(data, label))
    with pytest.raises(UserError, match="the label 'region' is b; expected a"):
        check_data(config_of(data, Label("region", ("a", "c"))))
    run(data, tmp_path / "time", label=label)
    assert {values(one)["month"][0] for one in records(tmp_path / "time", "test")} == {6}
    assert {values(one)["region"][0] for one in records(tmp_path / "time", "test")} == {0, 1}
    run(Data(str(folder), split_by=HashSplit("month")), tmp_path / "hash")
    months = [{values(one)["month"][0] for one in records(tmp_path / "hash", split)} for split in ("train", "test")]
    assert months[0].isdisjoint(months[1])


@pytest.mark.slow
def test_partitions_below_spans_and_below_folders_of_splits(tmp_path):
    for span in (1, 2):
        write(tmp_path / f"data/day={span}", ".parquet")
    run(Data(str(tmp_path / "data"), files="day={SPAN}/*", last_spans=1), tmp_path / "spans")
    assert {values(one)["day"][0] for one in records(tmp_path / "spans")} == {2}
    assert {values(one)["month"][0] for one in records(tmp_path / "spans")} == {1, 2, 12}
    for split in ("train", "eval", "test"):
        write(tmp_path / "split" / split, ".csv")
    splits = {split: f"{split}/*" for split in ("train", "eval", "test")}
    run(Data(str(tmp_path / "split"), splits=splits), tmp_path / "splits")
    assert len(records(tmp_path / "splits", "eval")) == 3 * ROWS
    assert values(records(tmp_path / "splits")[0]).keys() == {"x", "late", "region", "month"}


@pytest.mark.slow
def test_a_schema_decides_the_type_of_a_partition(tmp_path):
    data = Data(str(write(tmp_path / "data", ".parquet")))
    run(data, tmp_path / "text", types={"month": "text"})
    assert {values(one)["month"][0] for one in records(tmp_path / "text")} == {b"01", b"2", b"12"}
    with pytest.raises(UserError, match="the folder's column 'region' is 'north'; expected an integer, as the schema"):
        run(data, tmp_path / "numbers", types={"region": "integers"})


@pytest.mark.slow
def test_a_column_of_the_file_counts_and_not_its_namesake_among_the_folders(tmp_path):
    data = Data(str(write(tmp_path / "data", ".csv", [("1", "1")], "x")))
    run(data, tmp_path / "out")
    assert {values(one)["x"][0] for one in records(tmp_path / "out")} == set(range(ROWS))
    assert notes(data) == [
        "columns from the names of folders: month (integers)",
        "x in the names of folders: the files have such a column, which is read instead",
    ]


@pytest.mark.slow
def test_files_of_other_partitions_are_refused(tmp_path):
    folder = write(tmp_path / "data", ".parquet", [("a", "1")])
    write(folder, ".parquet", [("b", "1")], "country")
    with pytest.raises(UserError, match=r"different columns: .* has 'country' more and .* has 'region' more"):
        run(Data(str(folder)), tmp_path / "out")


def test_another_value_of_a_partition_or_file_at_any_depth_changes_the_fingerprint(tmp_path):
    folder = write(tmp_path / "data", ".parquet")

    def fingerprint(files: str) -> str:
        settings = json.dumps({"patterns": {"all": files}})
        return fingerprint_of_files({"input_base": str(folder), "settings": settings})

    assert ExampleGenSettings({}).images is None
    before = [fingerprint(files) for files in ("*", "**/*.parquet", "*/*/*")]
    assert before == [fingerprint(files) for files in ("*", "**/*.parquet", "*/*/*")]
    (folder / "region=north").rename(folder / "region=south")
    assert all(one != fingerprint(files) for one, files in zip(before, ("*", "**/*.parquet", "*/*/*"), strict=True))


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    for name in ("a.csv", "B.CSV", "c.xlsx", "d.csv.zip", "old/e.csv", "_f.csv", ".g", "_tmp/h.csv", "_SUCCESS"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x,late\n1,no\n2,yes\n")
    (tmp_path / "empty.csv").touch()
    return tmp_path


def test_files_that_no_pattern_matches_and_empty_files_are_listed(mixed):
    data = Data(str(mixed), files="*.csv")
    assert check_data(config_of(data)) == [
        f"empty files: 1, {mixed}/empty.csv",
        f"files of {mixed} that are not read: 6, B.CSV, _f.csv, _tmp/h.csv, c.xlsx, d.csv.zip, old/e.csv; "
        "data.files='*.csv' names those that are",
    ]
    assert check_data(config_of(Data(str(mixed / "a.csv")))) == []


def test_a_link_to_a_folder_is_read_or_listed(mixed, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / "i.csv").write_text("x,late\n1,no\n2,yes\n")
    (mixed / "link").symlink_to(other)
    assert "old/e.csv" not in (note := notes(Data(str(mixed), files="**/*.csv"))[1])
    assert ", link; data.files" in note
    assert find(str(mixed), {"all": "link/*"}).all == (f"{mixed}/link/i.csv",)


def test_tables_in_hidden_folders_are_no_data_unless_the_pattern_names_the_folder(mixed):
    def names(pattern: str) -> list[str]:
        return [os.path.relpath(file, mixed) for file in find(str(mixed), {"all": pattern}).all]

    assert names("**/*.csv") == ["a.csv", "empty.csv", "old/e.csv"]
    assert names("_tmp/*.csv") == ["_tmp/h.csv"]


def test_tables_that_lie_deeper_are_named_where_nothing_matches(mixed):
    with pytest.raises(UserError, match=r"nothing matches .*/x/\*; expected .*\. Found B.CSV: name such files with da"):
        find_files(Data(str(mixed), files="x/*"))
