"""Questions to an exported model before it is pushed, each defect with its own sentence."""

import glob
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import keras_tuner
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_transform as tft
from google.protobuf import json_format, struct_pb2
from starlette.testclient import TestClient
from tfx.types import standard_artifacts

from models import flights
from pipeline.components import artifacts as readers
from pipeline.components import model_check, tensorflow_process
from pipeline.serving.answering import Answering
from pipeline.serving.app import create_app
from pipeline.serving.bodies import Limits
from pipeline.serving.current import Current
from pipeline.serving.metrics import Metrics
from pipeline.training.answers import Answers
from pipeline.training.decoding import Decoder
from pipeline.training.ensemble import answering
from pipeline.training.export import PREDICTIONS, ROWS, export, record_predictions
from pipeline.training.features import Features
from pipeline.vertex.endpoints.observation import SmokeRows

pytestmark = pytest.mark.slow

CLASSES = ("on time", "late")


@pytest.fixture(scope="module")
def artifacts(clone, first) -> Path:
    assert first.code == 0, first.text
    return clone / "output/flights/artifacts"


def first_of(artifacts: Path, pattern: str) -> str:
    """Return the artifact of the first run, even after later runs."""
    return min(glob.glob(str(artifacts / pattern)), key=lambda path: int(Path(path).name))


@pytest.fixture(scope="module")
def transform_output(artifacts) -> tft.TFTransformOutput:
    return tft.TFTransformOutput(first_of(artifacts, "Transform/transform_graph/*"))


@pytest.fixture(scope="module")
def model(transform_output) -> keras.Model:
    """Build the flights model without training; these tests work with any weights."""
    keras.utils.set_random_seed(1)
    return flights.build_model(keras_tuner.HyperParameters(), Features.of(transform_output, "late"))


@pytest.fixture
def check(artifacts, model, transform_output, tmp_path) -> Callable[..., dict[str, Any]]:
    """Return a function that runs the real executor on a folder with an exported model."""
    examples = standard_artifacts.Examples()
    examples.uri = first_of(artifacts, "ExampleGen/examples/*")
    examples.split_names = '["train", "eval", "test"]'
    schema = standard_artifacts.Schema()
    schema.uri = str(Path(__file__).resolve().parents[2] / "schema/flights")
    model_run = standard_artifacts.ModelRun()
    model_run.uri = str(tmp_path / "model_run")
    transformed = first_of(artifacts, "Transform/transformed_examples/*")
    decoder = Decoder(transform_output.transformed_feature_spec(), "late")
    record_predictions(answering(model, decoder), decoder, [f"{transformed}/Split-eval/*"], model_run.uri)

    def check(folder: Path, **settings: Any) -> dict[str, Any]:
        exported = standard_artifacts.Model()
        exported.uri = str(folder.parent)
        blessing = standard_artifacts.InfraBlessing()
        blessing.uri = str(tmp_path / "blessing")
        Path(blessing.uri).mkdir()
        properties = {"label": "late", "classes": CLASSES, "threshold": 0.3, "tolerance": 1e-3, "timeout": 300}
        model_check.ModelCheckExecutor().Do(
            {"model": [exported], "model_run": [model_run], "examples": [examples], "schema": [schema]},
            {"blessing": [blessing]},
            {"settings": json.dumps({**properties, **settings})},
        )
        report = readers.read_model_report(blessing.uri)
        assert blessing.get_int_custom_property("blessed") == (not report["problems"])
        mark = "INFRA_NOT_BLESSED" if report["problems"] else "INFRA_BLESSED"
        assert (tmp_path / "blessing" / mark).is_file()
        return report

    return check


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "model/Format-Serving"


def exported(folder: Path, model: keras.Model, transform_output: tft.TFTransformOutput, **settings: Any) -> Path:
    answers = Answers(settings.pop("classes", CLASSES), 0.3)
    export(model, transform_output, str(folder), label="late", answers=answers, **settings)
    return folder


def test_what_training_exports_is_blessed_with_latency_and_size(check, folder, model, transform_output):
    report = check(exported(folder, model, transform_output))
    assert report["problems"] == []
    facts = report["facts"]
    assert facts["largest_difference_from_training"] < 1e-5
    assert facts["size_bytes"] > (folder / "saved_model.pb").stat().st_size
    assert 0 < facts["predict_ms_batch_1"] < 1000
    assert 0 < facts["serving_default_ms_batch_1"] < 1000


def test_the_rows_that_are_kept_get_the_same_answers_from_the_server(check, folder, model, transform_output, tmp_path):
    check(exported(folder, model, transform_output))
    rows = SmokeRows.from_json(readers.read_smoke_rows(str(tmp_path / "blessing")), most=20)
    assert len(rows.instances) == 20
    # By way of Vertex AI a row comes as protobuf's Value, in which every number is a float.
    instances = [json_format.MessageToDict(json_format.ParseDict(one, struct_pb2.Value())) for one in rows.instances]
    metrics, limits = Metrics(), Limits(body_bytes=1 << 20, instances=100, rows_waiting=1_000)
    current = Current(str(folder), "flights", metrics, limits.rows_waiting)
    current.start()
    app = create_app(Answering(current, metrics, limits), look_every=60)
    with TestClient(app) as client:
        answer = client.post("/predict", json={"instances": instances})
    assert answer.status_code == 200, answer.text
    assert [rows.difference(row, one) for row, one in enumerate(answer.json()["predictions"])] == [None] * 20
    assert rows.difference(0, {**answer.json()["predictions"][0], "probability": 2.0})


def test_a_broken_signature_is_refused(check, folder, model, transform_output):
    exported(folder, model, transform_output)
    loaded = tf.saved_model.load(str(folder))
    good = loaded.signatures["predict"]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def first_row_only(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        return good(examples=examples[:1])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def no_answer(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.control_dependencies([tf.debugging.assert_equal(tf.size(examples), 0, message="no rows please")]):
            return {"probability": tf.zeros([tf.size(examples)])}

    again = folder.parent / "again"
    tf.saved_model.save(loaded, str(again), signatures={"predict": first_row_only, "serving_default": no_answer})
    shutil.rmtree(folder)
    again.rename(folder)
    problems = check(folder)["problems"]
    assert len(problems) == 2
    assert "signature predict answers 808 rows with " in problems[0]
    assert "of shape [1], expected [808, ...]" in problems[0]
    assert "signature serving_default fails on 808 rows: InvalidArgumentError" in problems[1]


class NaNWhereMissing(keras.layers.Layer):
    """Passes probabilities on, and NaN where the first indicator of a missing value is set."""

    def call(self, inputs: list[Any]) -> Any:
        probability, missing = inputs
        return keras.ops.where(missing[:, :1] > 0.5, np.nan, probability)


def test_a_model_that_answers_nan_for_a_missing_value_is_refused(check, folder, model, transform_output):
    missing = next(tensor for tensor in model.inputs if tensor.name == "missing")
    broken = keras.Model(model.inputs, NaNWhereMissing()([model.output, missing]))
    (problem, *_) = check(exported(folder, broken, transform_output))["problems"]
    # Numbers are in alphabetical order, and the first is dewp; a gust may be missing in the data too.
    assert "answers probability nan where dewp is missing" in problem
    assert "preprocessing_fn has to give every missing value one" in problem


def test_an_export_that_prepares_features_in_another_way_is_refused(check, folder, model, transform_output):
    inputs = {tensor.name: tensor for tensor in model.inputs}
    hotter = keras.Model(inputs, model({**inputs, "numbers": inputs["numbers"] + 1.0}))
    (problem,) = check(exported(folder, hotter, transform_output))["problems"]
    assert "the export answers otherwise than the model in training on " in problem
    assert "it prepares features in another way than Transform did for training" in problem


def test_labels_that_do_not_follow_from_the_probability_are_refused(check, folder, model, transform_output):
    problems = check(exported(folder, model, transform_output, classes=CLASSES[::-1]))["problems"]
    assert any("the threshold is 0.3" in problem for problem in problems)


def test_a_model_that_needs_more_than_tensorflow_or_is_none_does_not_load(check, folder):
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"no graph")
    (problem,) = check(folder)["problems"]
    assert problem.startswith("the exported model does not load with TensorFlow alone: ")


class Reading(keras.layers.Layer):
    """Passes probabilities on, and reads a file."""

    def call(self, probability: Any) -> Any:
        with tf.control_dependencies([tf.io.read_file(__file__)]):
            return tf.identity(probability)


def test_a_model_that_reads_a_file_is_refused_without_loading_it(check, folder, model, transform_output):
    report = check(exported(folder, keras.Model(model.inputs, Reading()(model.output)), transform_output))
    (problem,) = report["problems"]
    assert problem.startswith("the exported model reads or writes files (ReadFile)")
    assert "load_seconds" not in report["facts"]


def test_nothing_but_what_tensorflow_brings_can_be_imported():
    refused = set(tensorflow_process.packages_beside_tensorflow())
    assert {"tfx", "tensorflow_transform", "apache_beam", "pandas", "pyarrow", "tensorflow_text"} - refused <= {
        "tensorflow_text"  # not installed here
    }
    assert not refused & {"tensorflow", "numpy", "google", "absl", "h5py"}


def test_predictions_are_recorded_for_the_first_rows_only(check, tmp_path):
    size = (tmp_path / "model_run" / PREDICTIONS).stat().st_size
    assert size == 4 * min(ROWS, 808)
