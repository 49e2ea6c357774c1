"""Answers for files: the same for the same rows in every format, or a message and no file."""

import gzip
import io
import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from pipeline.cli import predict, predict_rows
from pipeline.cli.printing import Terminal
from pipeline.data.examples import feature
from pipeline.errors import UserError
from pipeline.model.export_format import CLASSES, INPUTS
from pipeline.model.signatures import Model, load
from pipeline.serving.app import describe
from pipeline.settings.repository import find_root
from tests.serving.conftest import DESCRIBED, ROWS, expected, save


@pytest.fixture(scope="module")
def model(small_model: Path) -> Model:
    return load(str(small_model))


def write(folder: Path, kind: str, rows: list[dict]) -> Path:
    """The rows, with a column that the model does not take, in a file of a format."""
    rows = [{**row, "late": number % 2} for number, row in enumerate(rows)]
    file = folder / f"rows.{kind}"
    if kind == "csv":
        pd.DataFrame(rows).astype({"seats": "Int64"}).to_csv(file, index=False)
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif kind == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "jsonl.gz":
        file.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    else:
        with tf.io.TFRecordWriter(str(file)) as writer:
            for row in rows:
                values = {name: value.encode() if isinstance(value, str) else value for name, value in row.items()}
                features = {
                    name: tf.train.Feature.FromString(feature(value))
                    for name, value in values.items()
                    if value is not None
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return file


def run(model: Model, data: Path, to: Path, *columns: str, max_bad_rows: float | None = None) -> list[dict]:
    predict.predict(model, predict.find_files(str(data)), to, columns, max_bad_rows=max_bad_rows)
    if to.suffix == ".parquet":
        return pq.read_table(to).to_pylist()
    if to.suffix == ".csv":
        return pd.read_csv(to).to_dict("records")
    return [json.loads(line) for line in to.read_text().splitlines()]


@pytest.mark.parametrize("kind", ["csv", "parquet", "tfrecord", "jsonl", "jsonl.gz"])
def test_the_same_rows_get_the_same_answers_from_every_format(model, tmp_path, kind):
    answers = run(model, write(tmp_path, kind, ROWS), tmp_path / "answers.parquet")
    assert [row["probability"] for row in answers] == pytest.approx([expected(row) for row in ROWS])
    assert [row["label"] for row in answers] == ["late", "on time", "late"]


@pytest.mark.parametrize("to", ["answers.csv", "answers.jsonl", "answers.parquet"])
def test_chosen_columns_stand_beside_the_answers_in_every_format(model, tmp_path, to):
    answers = run(model, write(tmp_path, "csv", ROWS), tmp_path / to, "carrier", "late")
    assert list(answers[0]) == ["carrier", "late", "label", "probability"]
    assert [row["carrier"] for row in answers] == ["UA", "Zürich", "B6"]
    assert [int(row["late"]) for row in answers] == [0, 1, 0]


@pytest.mark.parametrize(
    ("classes", "names"),
    [([], ["0", "1", "2"]), (["Adelie", "Chinstrap", "Gentoo"], ["Adelie", "Chinstrap", "Gentoo"])],
)
def test_csv_has_a_column_for_the_probability_of_each_class(tmp_path, classes, names):
    spec = {"distance": tf.TensorSpec([None], tf.int64, name="distance")}

    @tf.function(input_signature=[spec])
    def answer(rows):
        first = tf.cast(rows["distance"], tf.float32) / 10_000
        return {"probabilities": tf.stack([first, first + 0.25, 0.75 - 2 * first], axis=1)}

    folder = tmp_path / "several"
    tf.saved_model.save(tf.Module(), str(folder), signatures={"serving_default": answer})
    (folder / CLASSES).parent.mkdir(exist_ok=True)
    (folder / CLASSES).write_text(json.dumps(classes))
    loaded, data = load(str(folder)), write(tmp_path, "csv", ROWS)
    answers = run(loaded, data, tmp_path / "answers.csv", "carrier")
    assert list(answers[0]) == ["carrier", *(f"probabilities_{name}" for name in names)]
    assert answers[0][f"probabilities_{names[0]}"] == 0.14
    lists = [pytest.approx(list(row.values())[1:]) for row in answers]
    for to in ("answers.parquet", "answers.jsonl"):
        assert [row["probabilities"] for row in run(loaded, data, tmp_path / to)] == lists


def test_json_lines_have_no_more_digits_than_the_model(model, tmp_path):
    run(model, write(tmp_path, "csv", [{**ROWS[0], "temp": 0.1}]), tmp_path / "answers.jsonl")
    assert (tmp_path / "answers.jsonl").read_text() == '{"label":"late","probability":3.101}\n'


def test_the_files_of_a_folder_are_read_in_the_order_of_their_names_and_batch_by_batch(model, tmp_path, monkeypatch):
    monkeypatch.setattr(predict_rows, "BATCH_ROWS", 2)
    for name, distance in (("b", 2_000), ("a", 1_000)):
        rows = [{"carrier": "UA", "distance": distance + number} for number in range(5)]
        (tmp_path / f"{name}.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    answers = run(model, tmp_path, tmp_path.parent / f"{tmp_path.name}.csv")
    distances = [1_000, 1_001, 1_002, 1_003, 1_004, 2_000, 2_001, 2_002, 2_003, 2_004]
    assert [row["probability"] for row in answers] == pytest.approx([one / 1_000 + 0.2 for one in distances])


@pytest.mark.parametrize("kind", ["csv", "parquet", "tfrecord", "jsonl"])
def test_columns_in_the_names_of_folders_are_read_and_hidden_tables_are_listed(model, tmp_path, capsys, kind):
    for number, row in enumerate(ROWS):
        folder = tmp_path / f"data/{number}/carrier={row['carrier'].replace('ü', '%C3%BC')}/distance={row['distance']}"
        folder.mkdir(parents=True)
        write(folder, kind, [{name: value for name, value in row.items() if name not in ("carrier", "distance")}])
    (tmp_path / "data/_SUCCESS").touch()
    (tmp_path / "data/_old").mkdir()
    (tmp_path / "data/_old/rows.csv").touch()
    answers = run(model, tmp_path / "data", tmp_path / "answers.parquet", "carrier")
    assert [row["probability"] for row in answers] == pytest.approx([expected(row) for row in ROWS], rel=1e-5)
    assert [row["carrier"] for row in answers] == [row["carrier"] for row in ROWS]
    said = capsys.readouterr().err
    assert said == f"note: hidden files of {tmp_path}/data that are not read: 1, _old/rows.csv\n"
    one = tmp_path / f"data/0/carrier={ROWS[0]['carrier']}/distance={ROWS[0]['distance']}/rows.{kind}"
    answers = run(model, one, tmp_path / "answer.parquet")
    assert [row["probability"] for row in answers] == pytest.approx([expected(ROWS[0])], rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("csv", {"distance": "far"}, "row 2: column 'distance': found 'far', expected an integer"),
        ("csv", {"carrier": None}, "row 2: feature 'carrier' is missing; expected text"),
        ("parquet", {"distance": None}, "row 2: feature 'distance' is missing; expected a whole number"),
        ("jsonl", {"distance": "far"}, "line 2: feature 'distance': expected a whole number, got 'far'"),
        ("jsonl", {"temp": True}, "line 2: feature 'temp': expected a number, or null where it is missing, got true"),
    ],
)
def test_a_bad_row_is_named_and_nothing_is_written(model, tmp_path, kind, change, message):
    rows = [dict(row) for row in ROWS]
    rows[1] |= change
    data = write(tmp_path, kind, rows)
    with pytest.raises(UserError, match=message):
        run(model, data, tmp_path / "answers.parquet")
    assert list(tmp_path.iterdir()) == [data]


def test_a_missing_column_is_named(model, tmp_path):
    data = tmp_path / "rows.csv"
    data.write_text("carrier,temp\nUA,1\n")
    with pytest.raises(UserError, match="has no column 'distance', which the model needs; it has carrier, temp"):
        run(model, data, tmp_path / "answers.csv")
    with pytest.raises(UserError, match="has no column id, as --columns asks for; it has carrier, temp"):
        run(model, data, tmp_path / "answers.csv", "id")


@pytest.mark.parametrize("sign", [";", "\t"])
def test_another_sign_between_the_columns_is_said_so(model, tmp_path, sign):
    data = tmp_path / "rows.csv"
    data.write_text(f"carrier{sign}distance\nUA{sign}1\n")
    with pytest.raises(UserError, match="Its header has (semicolons|tabs) between the columns: write the file with co"):
        run(model, data, tmp_path / "answers.csv")


def test_a_long_list_of_columns_stands_at_the_end_and_is_cut(model, tmp_path):
    data = tmp_path / "rows.csv"
    data.write_text(
        ",".join(["carrier", "distance", *(f"c{number}" for number in range(1000))]) + "\n" + "1," * 1001 + "1\n"
    )
    with pytest.raises(
        UserError, match=r"^\S+ has no column id, as --columns asks for; it has carrier, .* and 972 more$"
    ):
        run(model, data, tmp_path / "answers.csv", "id")


@pytest.mark.parametrize("to", ["answers.csv", "answers.jsonl", "answers.parquet"])
@pytest.mark.parametrize(
    "data", ["none.csv", "header.csv", "none.csv.gz", "none.jsonl", "none.tfrecord", "none.parquet"]
)
def test_a_file_without_rows_gets_answers_without_rows(model, tmp_path, data, to):
    file = tmp_path / data
    file.write_text("carrier,distance\n" if data == "header.csv" else "")
    if data == "none.parquet":
        pq.write_table(pa.table({"carrier": pa.array([], pa.string()), "distance": pa.array([], pa.int64())}), file)
    assert predict.predict(model, predict.find_files(str(file)), tmp_path / to, ["carrier"])[0] == 0
    if to.endswith("parquet"):
        schema = pq.read_schema(tmp_path / to)
        assert [str(field.type) for field in schema] == ["string", "string", "float"]
    if not to.endswith("jsonl"):
        table = pq.read_table(tmp_path / to).to_pandas() if to.endswith("parquet") else pd.read_csv(tmp_path / to)
        assert list(table.columns) == ["carrier", "label", "probability"]
        assert len(table) == 0
    assert run(model, write(tmp_path, "jsonl", ROWS), tmp_path / "again.jsonl")


def test_an_empty_file_among_others_has_no_rows(model, tmp_path):
    (tmp_path / "data").mkdir()
    write(tmp_path / "data", "csv", ROWS)
    (tmp_path / "data/a.csv").write_text("")
    assert len(run(model, tmp_path / "data", tmp_path / "answers.csv")) == 3


@pytest.mark.parametrize("kind", ["csv", "parquet", "tfrecord", "jsonl"])
def test_rows_without_a_value_that_the_model_needs_have_no_answer_up_to_a_share(model, tmp_path, kind):
    data = write(tmp_path, kind, [{**ROWS[0], "distance": None}, *ROWS, {**ROWS[0], "carrier": None}])
    with pytest.raises(UserError, match=r"(row|line) 1: feature 'distance' is missing.* --max-bad-rows 0.01$"):
        run(model, data, tmp_path / "answers.parquet")
    with pytest.raises(UserError, match=r"2 of 5 rows cannot be answered, 40.00%, and --max-bad-rows allows 30.00%"):
        run(model, data, tmp_path / "answers.parquet", max_bad_rows=0.3)
    assert list(tmp_path.iterdir()) == [data]
    answers = run(model, data, tmp_path / "answers.parquet", "late", max_bad_rows=0.4)
    assert [row["probability"] for row in answers] == [None, *map(pytest.approx, map(expected, ROWS)), None]
    assert answers[0]["label"] is None
    assert "1: feature 'distance' is missing" in answers[0]["refused"]
    assert [row["refused"] is None for row in answers] == [False, True, True, True, False]
    late = {"csv": ["0", "1"], "tfrecord": [[0], [1]]}.get(kind, [0, 1])
    assert [row["late"] for row in answers] == (late * 3)[:5]


def test_rows_that_cannot_be_read_have_no_answer_and_keep_their_place(model, tmp_path):
    data = tmp_path / "rows.csv"
    data.write_text("carrier,distance\nUA\ncarrier,distance\nUA,1000\nUA,far\n")
    with pytest.raises(UserError, match="row 1: found 1 fields, expected 2; correct it, for every row needs its ans"):
        run(model, data, tmp_path / "answers.parquet")
    answers = run(model, data, tmp_path / "answers.parquet", "distance", max_bad_rows=0.8)
    assert [row["probability"] for row in answers] == [None, None, pytest.approx(1.2), None]
    assert [row["distance"] for row in answers] == [None, None, 1000, None]
    assert answers[1]["refused"] == "row 2: repeats the header, as in files that were put one after another"
    assert answers[3]["refused"] == "row 4: column 'distance': found 'far', expected an integer"


def test_lines_that_are_no_json_have_no_answer_up_to_a_share(model, tmp_path):
    data = tmp_path / "rows.jsonl"
    data.write_text("{not json\n" + json.dumps(ROWS[0]) + "\n3\n")
    answers = run(model, data, tmp_path / "answers.jsonl", "carrier", max_bad_rows=0.7)
    assert [row["carrier"] for row in answers] == [None, "UA", None]
    assert answers[0]["refused"].startswith("line 1: no JSON")
    assert answers[2]["refused"] == "line 3: expected an object of features and their values, got 3"


def test_none_of_the_rows_can_be_answered(model, tmp_path):
    data = write(tmp_path, "csv", [{**ROWS[0], "carrier": None}])
    with pytest.raises(UserError, match="none of 1 rows can be answered; the first: .*row 1: feature 'carrier' is mis"):
        run(model, data, tmp_path / "answers.csv", max_bad_rows=1.0)


def test_the_share_of_rows_without_an_answer_is_the_configs_unless_given(tmp_path):
    text = (find_root() / "configs/flights.py").read_text()
    config = tmp_path / "config.py"
    config.write_text(text + "\nCONFIG = replace(CONFIG, data=replace(CONFIG.data, max_bad_rows=0.02))\n")
    config.write_text("from dataclasses import replace\n" + config.read_text())
    given = ["--data", "some.csv", "--to", "answers.csv"]

    def share(*arguments: str) -> float | None:
        return predict.allowed_share(predict.parse_arguments([*given, *arguments]))

    assert share("--config", str(config)) == 0.02
    assert share("--config", str(config), "--max-bad-rows", "0.5") == 0.5
    assert share("--model", "some") is None
    with pytest.raises(UserError, match="--max-bad-rows must be between 0 and 1, got 2.0; for 2 % write 0.02"):
        share("--max-bad-rows", "2")


def test_a_place_that_cannot_be_written_is_refused(model, tmp_path):
    data = tmp_path / "rows.csv"
    data.write_text("carrier,distance\nUA,1\n")
    with pytest.raises(
        UserError, match="cannot write .*rows.csv/answers.csv from .*rows.csv: .*(exists|Not a directory)"
    ):
        run(model, data, data / "answers.csv")
    assert list(tmp_path.iterdir()) == [data]


def test_a_line_that_is_no_json_is_named(model, tmp_path):
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps(ROWS[0]) + "\n\n{not json\n")
    with pytest.raises(UserError, match="line 3: no JSON"):
        run(model, data, tmp_path / "answers.csv")


@pytest.mark.parametrize(
    ("data", "message"),
    [("nowhere", "no data at"), ("bigquery://p.d.t", "export the rows to Parquet"), (__file__, "expected .csv")],
)
def test_data_that_cannot_be_read_is_refused_with_what_can(data, message):
    with pytest.raises(UserError, match=message):
        predict.find_files(data)


def test_a_terminal_shows_the_rows_so_far(model, tmp_path, monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(predict, "Terminal", lambda stderr: Terminal(file=shown, force_terminal=stderr))
    run(model, write(tmp_path, "csv", ROWS), tmp_path / "answers.parquet")
    assert "3 rows" in shown.getvalue()


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_text_in_another_notation_than_the_models_is_answered_and_named(tmp_path, capsys, kind):
    folder = save(tmp_path / "model")
    described = {**DESCRIBED, "carrier": {"type": "text", "required": True, "notation": "%d.%m.%Y"}}
    (folder / INPUTS).write_text(json.dumps(described))
    texts = ["29.02.2024", "2024-02-29", "2/29/24", "2024-02-29", " ", "NA"]
    data = write(tmp_path, kind, [{**ROWS[0], "carrier": text} for text in texts])
    model = load(str(folder))
    assert len(run(model, data, tmp_path / "answers.csv")) == len(texts)
    assert "the notation is %d.%m.%Y" in json.dumps(describe("flights", model, 1))
    note = " ".join(capsys.readouterr().err.split())
    assert note == (
        "note: column 'carrier': 3 of 6 rows have text in another notation, which counts as missing: "
        "'2024-02-29', '2/29/24'; the notation is %d.%m.%Y"
    )


def test_a_notation_that_is_unknown_is_a_damaged_model(tmp_path):
    folder = save(tmp_path / "model")
    described = {**DESCRIBED, "carrier": {"type": "text", "required": True, "notation": "%d %B"}}
    (folder / INPUTS).write_text(json.dumps(described))
    with pytest.raises(UserError, match="inputs.json is damaged: 'carrier' has a \"notation\" that is unknown"):
        load(str(folder))


def test_a_model_of_another_make_is_asked_serialized_examples(tmp_path):
    spec = {"distance": tf.io.FixedLenFeature([1], tf.int64)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def answer(examples):
        return {"kilometres": tf.cast(tf.io.parse_example(examples, spec)["distance"][:, 0], tf.float32) * 1.609}

    tf.saved_model.save(tf.Module(), str(tmp_path / "stock"), signatures={"serving_default": answer})
    answers = run(load(str(tmp_path / "stock")), write(tmp_path, "csv", ROWS), tmp_path / "answers.jsonl")
    assert [row["kilometres"] for row in answers] == pytest.approx([1.609 * row["distance"] for row in ROWS])


def test_a_model_folder_that_is_half_there_is_refused(tmp_path):
    folder = save(tmp_path / "7")
    (folder / "saved_model.pb").write_bytes((folder / "saved_model.pb").read_bytes()[:100])
    with pytest.raises(UserError, match=r"does not load: .*; push it again"):
        load(str(folder))
