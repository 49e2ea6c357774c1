"""The pushed model: in a process that imports nothing but TensorFlow, and behind the commands of the README."""

import base64
import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import tensorflow as tf

pytestmark = pytest.mark.slow

ASK = """
import base64, json, sys
import tensorflow as tf

model = tf.saved_model.load(sys.argv[1])
asked = json.load(sys.stdin)
rows, examples = model.signatures["serving_default"], model.signatures["predict"]
explain = model.signatures["explain"]
inputs = rows.structured_input_signature[1]
tensors = {name: tf.constant(asked["rows"][name], spec.dtype) for name, spec in inputs.items()}
answers = [
    rows(**tensors),
    examples(examples=tf.constant([base64.b64decode(text) for text in asked["examples"]])),
]
explained = [explain(**{name: values[:5] for name, values in tensors.items()}) for _ in range(2)]
json.dump(
    {
        "inputs": sorted(inputs),
        "imported": sorted({"tfx", "tensorflow_transform", "pipeline"} & set(sys.modules)),
        "explained": [{name: one[name].numpy().tolist() for name in ("average", "contributions")} for one in explained],
        "columns": explained[0]["columns"].numpy()[0].astype(str).tolist(),
        "answers": [{name: value.numpy().astype(str).tolist() for name, value in answer.items()} for answer in answers],
    },
    sys.stdout,
)
"""


def example(row: dict) -> str:
    """A row as a base64 tf.Example; what is missing is left out."""
    kinds = {
        str: lambda value: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode()])),
        int: lambda value: tf.train.Feature(int64_list=tf.train.Int64List(value=[value])),
        float: lambda value: tf.train.Feature(float_list=tf.train.FloatList(value=[value])),
    }
    features = {name: kinds[type(value)](value) for name, value in row.items() if value is not None}
    encoded = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    return base64.b64encode(encoded).decode()


def test_both_signatures_give_equal_answers_without_the_label(clone, first, few_flights):
    table = pq.read_table(few_flights / "test/2013-12.parquet")
    raw = table.drop_columns(["late"]).to_pylist()[:50]
    raw[0]["carrier"] = "ZZ"
    raw[1]["temp"] = None
    raw[2]["dest"], raw[2]["pressure"] = "XXX", None
    missing = {name: "" if str(table.schema.field(name).type) == "string" else float("nan") for name in raw[0]}
    columns = {name: [missing[name] if row[name] is None else row[name] for row in raw] for name in raw[0]}

    process = subprocess.run(
        [sys.executable, "-c", ASK, str(clone / first.pushed_to)],
        input=json.dumps({"rows": columns, "examples": [example(row) for row in raw]}),
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(process.stdout)

    assert "late" not in answer["inputs"]
    assert answer["inputs"] == sorted(raw[0])
    assert answer["imported"] == []
    by_row, by_example = answer["answers"]
    assert by_row == by_example
    probabilities = [float(value) for value in by_row["probability"]]
    assert len(probabilities) == 50
    assert all(0 < value < 1 for value in probabilities)
    assert len(set(probabilities)) > 25
    threshold = 0.3
    expected = ["late" if value >= threshold else "on time" for value in probabilities]
    assert by_row["label"] == expected

    explained, again = answer["explained"]
    assert explained == again
    assert answer["columns"] == sorted(raw[0])
    for probability, average, contributions in zip(
        probabilities[:5], explained["average"], explained["contributions"], strict=True
    ):
        assert average + sum(contributions) == pytest.approx(probability, abs=1e-5)
        assert max(map(abs, contributions)) > 1e-3


def test_the_pushed_model_answers_the_curl_of_the_readme_and_predicts_files_alike(clone, first, few_flights, tmp_path):
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    address, body = re.findall(r"^curl http://localhost:8501(\S+) -d '(.*?)'$", readme, re.MULTILINE | re.DOTALL)[0]
    rows = pq.read_table(few_flights / "test/2013-12.parquet").drop_columns(["late"]).to_pylist()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "pipeline", "serve", "--port", str(port)]
    server = subprocess.Popen(command, cwd=clone, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        assert "answers at" in server.stderr.readline()

        def ask(content: bytes) -> list[dict]:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{address}", content, timeout=600) as answer:
                return json.load(answer)["predictions"]

        (answer,) = ask(body.encode())
        assert answer["label"] == ("late" if answer["probability"] >= 0.3 else "on time")
        served = [one["probability"] for one in ask(json.dumps({"instances": rows}).encode())]
    finally:
        server.terminate()
        server.communicate()
    assert server.returncode == 0

    to = tmp_path / "answers.parquet"
    data = few_flights / "test/2013-12.parquet"
    command = [sys.executable, "-m", "pipeline", "predict", "--data", str(data), "--to", str(to), "--columns", "late"]
    # TensorFlow has more to say where it uses oneDNN, as on many servers.
    variables = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "1"}
    done = subprocess.run(command, cwd=clone, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1), done
    predicted = pq.read_table(to)
    assert predicted.column_names == ["late", "label", "probability"]
    assert predicted["probability"].to_pylist() == pytest.approx(served, abs=1e-6)


def test_the_manifest_of_a_pushed_version_names_what_it_is_made_of(clone, first):
    manifest = json.loads((clone / first.pushed_to / "manifest.json").read_text())
    assert manifest["version"] == int(first.pushed_to.name)
    assert first.text.startswith(f"flights, run {manifest['run']}")
    assert manifest["metrics"]["auc"] > 0.5
    assert re.fullmatch("[0-9a-f]{64}", manifest["schema_sha256"])
    assert set(manifest["code"]) == {"preprocessing_fn", "run_fn"}
