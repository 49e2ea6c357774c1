"""Bad data is named, with file and row, before anything heavy is imported and with nothing pushed."""

import decimal
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data.location import check_data, find_files, prepare
from pipeline.errors import UserError
from pipeline.settings.config import Data, Label, PipelineConfig
from pipeline.settings.gates import Evaluation, Gate
from pipeline.settings.target import only_run_in

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def data(few_flights: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(few_flights, tmp_path / "data"))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """An output folder with a model pushed before."""
    model = tmp_path / "output/serving/flights/1/saved_model.pb"
    model.parent.mkdir(parents=True)
    model.write_text("pushed before")
    return tmp_path / "output"


# Runs a program and tells which heavy packages it has imported.
WATCHED = """
import runpy, sys
del sys.argv[0]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    heavy = {"apache_beam", "keras", "tensorflow", "tfx"} & sys.modules.keys()
    if heavy:
        print("imported:", *heavy, file=sys.stderr)
"""


def refused(output: Path, *arguments: str | Path) -> str:
    """Return what local_runner.py says; check that it fails early, in one line, and keeps the pushed model."""
    process = subprocess.run(
        [sys.executable, "-c", WATCHED, "local_runner.py", "--output", str(output), *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 1, process.stdout + process.stderr
    assert process.stderr.startswith("local_runner.py: ")
    assert len(process.stderr.splitlines()) == 1
    assert process.stdout == ""
    if output.is_dir():
        assert [path.read_text() for path in output.glob("serving/**/saved_model.pb")] == ["pushed before"]
    return process.stderr


def with_label(file: Path, values: list) -> None:
    table = pq.read_table(file)
    column = table.schema.get_field_index("late")
    array = pa.array(values + [0] * (table.num_rows - len(values)))
    pq.write_table(table.set_column(column, "late", array), file)


def test_a_missing_folder(data, output):
    assert f"no data at {data / 'nothing'}" in refused(output, "--data", data / "nothing")


def test_an_empty_folder(tmp_path, output):
    (tmp_path / "empty").mkdir()
    assert "no files for the train split" in refused(output, "--data", tmp_path / "empty")


def test_a_split_without_files(data, output):
    shutil.rmtree(data / "test")
    assert "no files for the test split" in refused(output, "--data", data)


def test_files_of_two_formats(data):
    (data / "train/more.csv").write_text("late\n1\n")
    with pytest.raises(
        UserError, match=r'(?s)csv.*parquet.*; name the files to read with data.files, such as "\*.csv"'
    ):
        find_files(Data(str(data), splits={"train": "train/*", "eval": "eval/*", "test": "test/*"}))
    edited = find_files(Data(str(data), splits={"train": "train/*.parquet", "eval": "eval/*", "test": "test/*"}))
    assert edited.format == "parquet"


@pytest.mark.slow
def test_a_parquet_file_that_is_none(data, output):
    (data / "train/2013-02.parquet").write_text("a,b\n1,2\n")
    message = refused(output, "--data", data)
    assert "train/2013-02.parquet is not a Parquet file, whatever its name says" in message


def test_a_csv_file_that_is_none(data, output, tmp_path):
    shutil.copy(data / "train/2013-01.parquet", tmp_path / "flights.csv")
    message = refused(output, "--data", tmp_path / "flights.csv")
    assert "flights.csv is not a CSV file with a header, whatever its name says" in message


def test_a_file_of_another_kind(output, tmp_path):
    (tmp_path / "flights.xlsx").write_bytes(b"PK")
    message = refused(output, "--data", tmp_path / "flights.xlsx")
    assert "found flights.xlsx; export the spreadsheet as CSV, each sheet separately; expected .csv (also" in message


def test_a_csv_file_with_another_sign_between_its_columns(output, tmp_path):
    (tmp_path / "flights.csv").write_text("carrier\tlate\nUA\t1\n")
    message = refused(output, "--data", tmp_path / "flights.csv")
    assert "has no column 'late', the label; it has carrier\\tlate. Its header has tabs between the columns" in message


@pytest.mark.slow
def test_a_label_that_is_not_there(data, output):
    file = data / "eval/2013-09.parquet"
    table = pq.read_table(file)
    pq.write_table(table.drop_columns(["late"]), file)
    message = refused(output, "--data", data)
    assert "eval/2013-09.parquet has no column 'late', the label; it has " in message
    assert "carrier, " in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 1, 2], "train/2013-03.parquet, row 3: the label 'late' is 2; expected on time, late, 0 or 1 in every"),
        ([0, None], "train/2013-03.parquet, row 2: the label 'late' is missing"),
        ([0.5, 1.0], "train/2013-03.parquet, row 1: the label 'late' is 0.5; expected on time, late, 0 or 1"),
        (["yes", "no"], None),
    ],
)
def test_a_label_that_is_none_of_the_classes(data, output, values, message):
    file = data / "train/2013-03.parquet"
    if message is None:
        table = pq.read_table(file)
        values = ["yes"] * table.num_rows
        message = "train/2013-03.parquet, row 1: the label 'late' is yes; expected on time, late, 0 or 1 in every row"
    with_label(file, values)
    assert message in refused(output, "--data", data)


@pytest.mark.slow
def test_a_csv_label_that_is_none_of_the_classes(output, tmp_path):
    (tmp_path / "some.csv").write_text("late,x\n0,1\n7,1\n")
    message = refused(output, "--data", tmp_path / "some.csv")
    assert "some.csv, row 2: the label 'late' is 7" in message


def test_a_module_with_a_syntax_error(data, output, tmp_path):
    module = tmp_path / "broken.py"
    module.write_text("def preprocessing_fn(inputs):\n    return inputs\n\n\ndef run_fn(fn_args)\n    pass\n")
    message = refused(output, "--data", data, "--module", module)
    assert "broken.py, line 5: expected ':': 'def run_fn(fn_args)'" in message


def test_a_module_without_run_fn(data, output, tmp_path):
    module = tmp_path / "half.py"
    module.write_text("def preprocessing_fn(inputs):\n    return inputs\n")
    assert "half.py does not define run_fn" in refused(output, "--data", data, "--module", module)


def test_an_output_folder_that_cannot_be_written(data, tmp_path):
    (tmp_path / "file").write_text("in the way")
    message = refused(tmp_path / "file", "--data", data)
    assert "cannot write to the output folder" in message
    assert "choose another with --output" in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "make"),
    [
        *((name, Path.touch) for name in ("artifacts", "logs", "runs")),
        *((name, Path.mkdir) for name in (".lock", "verdict.json", "metadata.sqlite")),
    ],
)
def test_something_in_the_way_of_what_a_run_writes_is_named_before_anything_runs(data, output, name, make):
    output.mkdir(exist_ok=True)
    make(output / name)
    message = refused(output, "--data", data)
    found, expected = ("file", "folder") if make is Path.touch else ("folder", "file")
    assert f"{output / name} is a {found}, and a run has a {expected} there; move it away" in message


@pytest.mark.slow
@pytest.mark.parametrize("name", ["[a]", "what?", "every*", "back\\slash"])
def test_an_output_folder_that_tensorflow_takes_for_a_pattern_is_refused(data, tmp_path, name):
    assert "which TensorFlow takes for a pattern" in refused(tmp_path / name, "--data", data)


def test_a_second_run_in_the_same_output_folder(data, output):
    with only_run_in(output):
        message = refused(output, "--data", data)
    assert "is using" in message
    assert "wait until it has ended or choose another folder with --output" in message


def test_decimals_are_numbers_to_predict(tmp_path):
    prices = pa.array([decimal.Decimal("1.25"), decimal.Decimal("-3.50")] * 20)
    pq.write_table(pa.table({"price": prices, "x": pa.array(range(40))}), tmp_path / "some.parquet")
    check_data(
        PipelineConfig(
            name="some",
            data=Data(str(tmp_path / "some.parquet")),
            label=Label("price", classes=()),
            module="models/some.py",
            evaluation=Evaluation(gates=(Gate("rmse", ceiling=1.0),)),
        )
    )


def test_what_a_script_that_makes_the_data_prints_is_not_the_commands_output(tmp_path, capfd):
    script = tmp_path / "make_data.py"
    script.write_text("import sys; print('made', *sys.argv[1:])")
    data = Data(str(tmp_path / "none"), prepare=str(script))
    gate = Evaluation(gates=(Gate("auc", floor=0.5),))
    prepare(PipelineConfig("some", data, Label("late"), "models/some.py", evaluation=gate))
    output, errors = capfd.readouterr()
    assert (output, errors) == ("", f"made --output {tmp_path / 'none'}\n")
