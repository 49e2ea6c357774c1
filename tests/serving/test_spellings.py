"""Truth values and codes in another spelling than in the training data: the same answers, or a clear refusal."""

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from starlette.testclient import TestClient
from tfx.extensions.google_cloud_big_query.utils import row_to_example

from pipeline.errors import UserError
from pipeline.model.export_format import EXAMPLES_SIGNATURE, INPUTS
from pipeline.model.features import Refused, plain_rows
from pipeline.model.signatures import Model, load
from pipeline.model.versions import Versions
from pipeline.quality.schema_text import inferred_from
from pipeline.quality.serving_skew import statistics_of
from pipeline.serving.app import describe
from pipeline.serving.grpc_server import _columns
from pipeline.settings.notations import plain, spellings
from pipeline.training.export import known_values
from tests.serving.conftest import client_of
from tests.serving.test_predict import run

PREDICT = "/v1/models/flights:predict"
KNOWN = {"flag": ["False", "True"], "code": ["01", "02"], "paid": ["0", "1"]}
SPEC = {
    "flag": tf.io.VarLenFeature(tf.string),
    "code": tf.io.FixedLenFeature([1], tf.string),
    "paid": tf.io.VarLenFeature(tf.int64),
    "price": tf.io.VarLenFeature(tf.float32),
}
# What each of 4 rows means; 1 for flag, 2 for code, 4 for paid.
ANSWERS = [0, 1, 2 + 4, 1 + 2 + 4]
FLAGS, CODES, PAID = ["False", "True", "False", "True"], ["01", "01", "02", "02"], [0, 0, 1, 1]


def save(folder: Path) -> Path:
    """Write a model whose answers tell which values it has understood."""
    specs = {
        "flag": tf.TensorSpec([None], tf.string, name="flag"),
        "code": tf.TensorSpec([None], tf.string, name="code"),
        "paid": tf.TensorSpec([None], tf.float64, name="paid"),
        "price": tf.TensorSpec([None], tf.float32, name="price"),
    }

    def answer(flag: Any, code: Any, paid: Any) -> Any:
        parts = [tf.cast(part, tf.float32) for part in (flag == "True", code == "02", paid == 1)]
        return {"probability": parts[0] + 2 * parts[1] + 4 * parts[2]}

    @tf.function(input_signature=[specs])
    def rows(given):
        return answer(given["flag"], given["code"], given["paid"])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def examples(records):
        parsed = tf.io.parse_example(records, SPEC)
        flag, paid = (tf.sparse.to_dense(parsed[name])[:, 0] for name in ("flag", "paid"))
        return answer(flag, parsed["code"][:, 0], paid)

    tf.saved_model.save(tf.Module(), str(folder), signatures={"serving_default": rows, EXAMPLES_SIGNATURE: examples})
    described = {name: {"type": "text", "required": name == "code", "known": KNOWN[name]} for name in ("flag", "code")}
    described["paid"] = {"type": "integers", "required": False, "known": KNOWN["paid"]}
    described["price"] = {"type": "floats", "required": False}
    (folder / INPUTS).parent.mkdir(exist_ok=True)
    (folder / INPUTS).write_text(json.dumps(described))
    return folder


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    versions = Versions(tmp_path_factory.mktemp("spellings") / "flights")
    with versions.staging() as staging:
        versions.publish(save(staging / "7"), 7, {}, 5)
    return versions


@pytest.fixture(scope="module")
def model(versions: Versions) -> Model:
    return load(str(versions.path(7)))


@pytest.fixture(scope="module")
def client(versions: Versions) -> Iterator[TestClient]:
    with client_of(versions) as client:
        yield client


TRUTHS = [
    pytest.param(["False", "True"], id="as in training"),
    pytest.param(["false", "true"], id="lower case"),
    pytest.param(["FALSE", " TRUE "], id="upper case"),
    pytest.param(["0", "1"], id="digits in text"),
    pytest.param([0, 1], id="integers"),
    pytest.param([0.0, 1.0], id="floats"),
    pytest.param([False, True], id="booleans"),
    pytest.param(["no", "yes"], id="words"),
]


def rows_of(truths: list[Any], codes: list[Any] = CODES, paid: list[Any] = PAID) -> list[dict[str, Any]]:
    flags = [truths[flag == "True"] for flag in FLAGS]
    return [{"flag": flag, "code": code, "paid": one} for flag, code, one in zip(flags, codes, paid, strict=True)]


@pytest.mark.parametrize("truths", TRUTHS)
@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_a_file_in_another_spelling_gets_the_same_answers(model, tmp_path, kind, truths):
    frame, file = pd.DataFrame(rows_of(truths)), tmp_path / f"rows.{kind}"
    {
        "csv": lambda: frame.to_csv(file, index=False),
        "parquet": lambda: frame.to_parquet(file),
        "jsonl": lambda: frame.to_json(file, orient="records", lines=True),
    }[kind]()
    assert [row["probability"] for row in run(model, file, tmp_path / "answers.parquet")] == ANSWERS


@pytest.mark.parametrize("truths", TRUTHS)
def test_a_request_in_another_spelling_gets_the_same_answers(client, truths):
    rows = rows_of(truths)
    answer = client.post(PREDICT, json={"instances": rows})
    assert answer.json() == {"predictions": ANSWERS}
    by_column = {name: [row[name] for row in rows] for name in rows[0]}
    assert client.post(PREDICT, json={"inputs": by_column}).json() == {"outputs": ANSWERS}


@pytest.mark.parametrize("truths", TRUTHS)
def test_a_numeric_truth_column_takes_other_spellings_in_requests(client, truths):
    rows = rows_of(["False", "True"], paid=[truths[one] for one in PAID])
    assert client.post(PREDICT, json={"instances": rows}).json() == {"predictions": ANSWERS}


@pytest.mark.parametrize(
    "paid", [["False", "True"], ["true", "FALSE"], [False, True], ["0", "1"], ["0.0", "1.0"]], ids=str
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_numeric_truth_column_takes_other_spellings_in_files(model, tmp_path, kind, paid):
    low, high = sorted(paid, key=lambda value: str(value).lower())
    frame = pd.DataFrame(rows_of(["False", "True"], paid=[high if one else low for one in PAID]))
    file = tmp_path / f"rows.{kind}"
    frame.to_csv(file, index=False) if kind == "csv" else frame.to_parquet(file)
    assert [row["probability"] for row in run(model, file, tmp_path / "answers.parquet")] == ANSWERS


@pytest.mark.parametrize("codes", [[1, 1, 2, 2], [1.0, 1.0, 2.0, 2.0], ["1", "1", "2", "2"]], ids=str)
def test_codes_as_numbers_mean_those_with_zeros(client, model, tmp_path, codes):
    rows = rows_of(["False", "True"], codes=codes)
    assert client.post(PREDICT, json={"instances": rows}).json() == {"predictions": ANSWERS}
    pd.DataFrame(rows).to_parquet(tmp_path / "rows.parquet")
    answers = run(model, tmp_path / "rows.parquet", tmp_path / "answers.parquet")
    assert [row["probability"] for row in answers] == ANSWERS


def example(**values: Any) -> str:
    """Return a serialized tf.Example in the JSON of TensorFlow Serving."""
    features = {}
    for name, value in values.items():
        several = value if isinstance(value, list) else [value]
        if isinstance(several[0], bytes):
            features[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=several))
        elif isinstance(several[0], int):
            features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=several))
        else:
            features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=several))
    record = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    return {"b64": base64.b64encode(record).decode()}


GOOD = {"flag": b"True", "code": b"02", "paid": 1}


@pytest.mark.parametrize(
    "changed", [{"flag": b"true"}, {"flag": 1}, {"flag": 1.0}, {"code": 2}, {"paid": b"True"}, {"paid": 1.0}], ids=str
)
def test_a_serialized_example_in_another_spelling_gets_the_same_answers(client, changed):
    instances = [example(**GOOD), example(**GOOD | changed)]
    answer = client.post(PREDICT, json={"signature_name": EXAMPLES_SIGNATURE, "instances": instances})
    assert answer.json() == {"predictions": [7, 7]}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"paid": b"often"}, "feature 'paid': expected a whole number, or null where it is missing, got 'often'"),
        ({"price": b"dear"}, "feature 'price': expected a number, or null where it is missing, got 'dear'"),
        ({"code": [b"01", b"02"]}, "feature 'code': expected text, got 2 values"),
        ({"code": 7}, "feature 'code': expected text, got 7"),
        ({"code": None}, "feature 'code' is missing; expected text"),
    ],
)
def test_a_bad_serialized_example_is_refused_with_its_number_and_feature(client, changed, message):
    values = {name: value for name, value in (GOOD | changed).items() if value is not None}
    instances = [example(**GOOD), example(**values)]
    answer = client.post(PREDICT, json={"signature_name": EXAMPLES_SIGNATURE, "instances": instances})
    assert (answer.status_code, answer.json()) == (400, {"error": f"instances[1]: {message}"})


def test_bytes_that_are_no_example_are_refused_with_their_number(client):
    instances = [example(**GOOD), {"b64": "//8="}]
    answer = client.post(PREDICT, json={"signature_name": EXAMPLES_SIGNATURE, "instances": instances})
    assert answer.status_code == 400
    assert answer.json()["error"] == "instances[1]: it is no serialized tf.Example"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"code": True}, "feature 'code': expected text, got true"),
        ({"code": "01", "flag": 2}, "feature 'flag': expected text, or null where it is missing, got 2"),
        ({"code": "01", "paid": "often"}, "feature 'paid': expected a whole number, or null where it is missing, got"),
        ({"code": "01", "price": True}, "feature 'price': expected a number, or null where it is missing, got true"),
    ],
)
def test_a_value_that_stands_for_no_known_one_is_refused_with_row_and_feature(client, row, message):
    answer = client.post(PREDICT, json={"instances": [rows_of(["no", "yes"])[0], row]})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(f"instances[1]: {message}")


def test_grpc_takes_truth_values_in_other_types_and_spellings(model):
    codes = tf.make_tensor_proto(["1", "02"])
    for flags in ([False, True], [0, 1], ["no", "TRUE"]):
        tensors = {
            "flag": tf.make_tensor_proto(flags),
            "code": codes,
            "paid": tf.make_tensor_proto([False, True]),
            "price": tf.make_tensor_proto([1.0, 2.0], tf.float32),
        }
        columns = _columns(tensors, model.rows.inputs, 100)
        assert model.rows.predict(columns)["probability"].tolist() == [0, 7]
    with pytest.raises(Refused, match="input 'price': expected a tensor of DT_FLOAT, got DT_BOOL"):
        _columns({**tensors, "price": tf.make_tensor_proto([True, True])}, model.rows.inputs, 100)


def test_a_stock_models_refusal_names_record_and_feature_without_a_trace(tmp_path):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def answer(examples):
        return {"codes": tf.strings.length(tf.io.parse_example(examples, SPEC)["code"][:, 0])}

    tf.saved_model.save(tf.Module(), str(tmp_path / "flights" / "7"), signatures={"serving_default": answer})
    good, number, absent = (example(**values) for values in (GOOD, {"code": 2}, {"paid": 1}))
    with client_of(Versions(tmp_path / "flights")) as client:
        told = [client.post(PREDICT, json={"instances": [good, bad]}) for bad in (number, absent, {"b64": "//8="})]
    assert [answer.status_code for answer in told] == [400] * 3
    assert [answer.json()["error"] for answer in told] == [
        "the model refuses the request: instances[1]: feature 'code': Data types don't match. Data type: int64 but "
        "expected type: string",
        "the model refuses the request: of one of the instances, feature 'code': (data type: string) is required but "
        "could not be found.",
        "instances[1]: it is no serialized tf.Example",
    ]


def test_an_older_model_knows_the_values_in_its_vocabulary(tmp_path):
    folder = save(tmp_path / "model")
    described = json.loads((folder / INPUTS).read_text())
    (folder / INPUTS).write_text(
        json.dumps({name: {key: of[key] for key in ("type", "required")} for name, of in described.items()})
    )
    (folder / "assets/categories").write_text("flag=True\nflag=False\nflag=\nprice=3\ncode=02\ncode=01\n")
    (folder / "assets/words").write_text("some\nflag=yes\n")
    inputs = load(str(folder)).rows.inputs
    assert {name: column.known for name, column in inputs.items()} == {
        "code": ("02", "01"),
        "flag": ("True", "False"),
        "paid": (),
        "price": ("3",),
    }
    frame = pd.DataFrame(rows_of([0, 1]))
    frame.to_csv(tmp_path / "rows.csv", index=False)
    answers = run(load(str(folder)), tmp_path / "rows.csv", tmp_path / "answers.parquet")
    assert [row["probability"] for row in answers] == ANSWERS


def test_bigquery_writes_booleans_as_the_numbers_that_parquet_has():
    written = row_to_example({"flag": "BOOLEAN"}, {"flag": True})
    assert list(written.features.feature["flag"].int64_list.value) == [1]


def test_rows_converted_together_have_the_spelling_of_the_training_data(model):
    columns = plain_rows(model.rows.inputs)([{"flag": "1", "code": "2", "paid": 1, "price": None}])
    assert columns is not None
    assert (columns["flag"].tolist(), columns["code"].tolist()) == ([b"True"], [b"02"])


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (["no", "yes"], {"1": "yes", "false": "no", "t": "yes"}),
        (["True", "False", "unknown"], {"1": "True", "unknown": None}),
        (["N", "Y"], {"true": "Y", "0": "N"}),
        (["N", "Y", "S", "W"], {"true": None, "0": None}),
        (["true", "True", "false"], {"1": None}),
        (["0", "1", "2"], {"true": None, "1": "1"}),
        (["3", "03"], {"3": None}),
        (["red", "blue"], {"1": None}),
    ],
)
def test_words_stand_for_a_known_text_where_it_is_the_only_one(known, expected):
    found = spellings(known)
    assert {word: found.get(word) for word in expected} == expected


@pytest.mark.parametrize("value", ["0" * 1_000_000 + "x", "1." + "0" * 1_000_000 + "x", " " * 1_000_000 + "x"])
def test_long_text_is_looked_at_in_linear_time(value):
    started = time.monotonic()
    assert plain(value).endswith("x")
    assert time.monotonic() - started < 5


def test_the_description_of_the_api_lets_truth_values_be_boolean(model):
    call = describe("flights", model, 1)["paths"]["/v1/models/flights:predict"]["post"]
    schema = call["requestBody"]["content"]["application/json"]["schema"]
    properties = schema["properties"]["instances"]["items"]["properties"]
    assert {name for name, of in properties.items() if '"boolean"' in json.dumps(of)} == {"flag", "paid"}


@pytest.mark.parametrize(
    ("values", "known"),
    [([b"True", b"False"], ["False", "True"]), ([b"true", b"false"], ["false", "true"]), ([1, 0], ["0", "1"])],
)
def test_an_export_names_the_values_that_the_schema_lists(values, known):
    type_ = pa.int64() if isinstance(values[0], int) else pa.large_binary()
    schema = inferred_from(
        [statistics_of(pa.table({"flag": pa.array([[value] for value in values], pa.list_(type_))}))]
    )
    assert known_values(schema.feature[0], schema) == known


def test_integers_for_text_that_stand_for_nothing_known_are_refused(model, tmp_path):
    pq.write_table(pa.table({"code": [71, 72]}), tmp_path / "rows.parquet")
    with pytest.raises(UserError, match="the column 'code' holds integers; the model takes text such as '01', '02'"):
        run(model, tmp_path / "rows.parquet", tmp_path / "answers.csv")


def test_text_for_a_number_is_read_as_in_csv_and_a_bad_one_named(model, tmp_path):
    table = pa.table({"code": ["02", "02", "02"], "price": ["1.5", "NA", None], "paid": ["1", "1", "yes"]})
    pq.write_table(table, tmp_path / "rows.parquet")
    answers = run(model, tmp_path / "rows.parquet", tmp_path / "answers.parquet")
    assert [row["probability"] for row in answers] == [6, 6, 6]
    pq.write_table(pa.table({"code": ["02", "02"], "price": ["1.5", "dear"]}), tmp_path / "rows.parquet")
    with pytest.raises(UserError, match="rows.parquet, row 2: column 'price': found 'dear', expected a number"):
        run(model, tmp_path / "rows.parquet", tmp_path / "answers.csv")


@pytest.mark.parametrize(
    ("known", "unknown", "note"),
    [
        (
            0,
            20,
            "note: column 'flag': none of 20 values is known from training: found 'ja', 'nein'; expected 'False', ",
        ),
        (1, 19, "note: column 'flag': only 1 of 20 values is known from training: found 'ja', 'nein'; expected 'False"),
        (3, 17, ""),
    ],
)
def test_a_category_of_which_hardly_a_value_is_known_is_noted(model, tmp_path, capsys, known, unknown, note):
    flags = [*["True"] * known, *["ja", "nein"] * unknown][:20]
    pd.DataFrame({"flag": [*flags, None], "code": "01"}).to_csv(tmp_path / "rows.csv", index=False)
    run(model, tmp_path / "rows.csv", tmp_path / "answers.csv")
    found = " ".join(line for line in capsys.readouterr().err.split())
    assert ("known from training" in found) == bool(note)
    assert note in found
