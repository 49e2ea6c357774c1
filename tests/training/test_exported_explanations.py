"""Explanations in an exported model: of all columns, with nothing of the training data in it that they do not need."""

import functools
import struct
from pathlib import Path

import apache_beam as beam
import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_transform as tft
from google.protobuf import text_format
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline.components import transform
from pipeline.fast.transform import analyze
from pipeline.model import background
from pipeline.model.explanations import by_row, why_none
from pipeline.model.signatures import load
from pipeline.training.answers import Answers
from pipeline.training.decoding import Decoder
from pipeline.training.export import export

pytestmark = pytest.mark.slow

SCHEMA = "\n".join(
    [
        'default_environment: "TRAINING" default_environment: "SERVING"',
        *(
            f'feature {{ name: "{name}" type: FLOAT presence {{ min_fraction: 1 min_count: 1 }} {more} }}'
            for name, more in {
                "x": "shape { dim { size: 1 } }",
                "grid": "shape { dim { size: 2 } dim { size: 3 } }",
                "secret": "shape { dim { size: 1 } }",
                "price": "shape { dim { size: 1 } }",
                "exposure": 'shape { dim { size: 1 } } not_in_environment: "SERVING"',
            }.items()
        ),
        'feature { name: "when" type: BYTES value_count { min: 1 max: 1 } time_domain { string_format: "%d.%m.%Y" } }',
    ]
)
# Values that can be found in the bytes of a model.
FIRST = {"x": 100.25, "secret": 5_000.25, "price": 70_000.25, "exposure": 300_000.25}
ROWS = 40


def preprocessing_fn(inputs):
    return {"x": inputs["x"], "grid": inputs["grid"], "price": inputs["price"]}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write the transform graph, with rows of the train split."""
    folder = tmp_path_factory.mktemp("exported")
    picked, records = background.Picked(), []
    for row in range(ROWS):
        values = {name: [first + row] for name, first in FIRST.items()} | {"grid": np.full(6, row / 10)}
        feature = {name: tf.train.Feature(float_list=tf.train.FloatList(value=one)) for name, one in values.items()}
        records.append(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    with tf.io.TFRecordWriter(str(folder / "rows.gz"), "GZIP") as writer:
        for record in records:
            writer.write(record)
    schema = text_format.Parse(SCHEMA, schema_pb2.Schema())
    with beam.Pipeline() as pipeline:
        files = [str(folder / "rows.gz")]
        config = {transform.MODULE: __name__, "weight": "exposure"}
        preprocess = functools.partial(transform.preprocessing_fn, custom_config=config)
        analyze(pipeline, files, schema, preprocess, str(folder / "graph"))
    assert list(picked.passing([records])) == [records]
    picked.write(str(folder / "graph"), 0)
    return str(folder / "graph")


class Traced(keras.layers.Layer):
    """A layer that counts how often it is traced."""

    def __init__(self):
        super().__init__()
        self.times = 0

    def call(self, x):
        self.times += 1
        return x


class OfTable(keras.layers.Layer):
    """A layer that adds the table's value for a number."""

    def __init__(self):
        super().__init__()
        self.table = table()

    def call(self, x):
        return x + self.table.lookup(tf.cast(x, tf.int64))


class WithTable(keras.Model):
    """A custom model class that contains a table and a model."""

    def __init__(self):
        super().__init__()
        self.table, self.inner = table(), keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])

    def call(self, x):
        return self.inner(x) + self.table.lookup(tf.cast(x, tf.int64))


def table() -> tf.lookup.StaticHashTable:
    """Return a table with 1000 for the number 3 and 0 for all others."""
    return tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant([3], tf.int64), tf.constant([1000.0])), 0.0
    )


def nested(kind: str) -> keras.Model:
    """Return a nested model that adds 1000 to the number 3."""
    if kind == "a class of its own":
        return WithTable()
    given = keras.Input((1,))
    inner = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones"), OfTable()])
    inner(given)
    return keras.Model(given, inner(given)) if kind == "functional" else inner


def exported(graph: str, folder: Path, rows: int, traced: keras.layers.Layer | None = None) -> Path:
    """Export a model that answers 2 x plus the sum of the grid."""
    inputs = {"x": keras.Input((1,), name="x"), "grid": keras.Input((2, 3), name="grid")}
    total = 2 * inputs["x"] + keras.ops.sum(inputs["grid"], axis=(1, 2))[:, None]
    total = traced(total) if traced else total
    output = tft.TFTransformOutput(graph)
    export(
        keras.Model(inputs, total),
        output,
        str(folder),
        label="price",
        answers=Answers(()),
        decoder=Decoder(output.transformed_feature_spec(), "price", weight="exposure"),
        background=background.read(graph, rows),
    )
    return folder


def test_every_column_has_its_part_and_one_that_no_feature_is_made_of_has_none(graph, tmp_path):
    model = load(str(exported(graph, tmp_path / "model", 64)))
    assert sorted(model.rows.inputs) == ["grid", "secret", "when", "x"]
    grid = np.arange(6.0).reshape(1, 2, 3)
    columns = {"x": np.array([10.0]), "secret": np.array([-1.0]), "when": np.array([b""]), "grid": grid}
    (found,) = by_row(model.explains.predict(columns))
    assert found["answer"] == 35
    wanted = {"x": 2 * (10 - FIRST["x"] - 19.5), "grid": 15 - 6 * 1.95, "secret": 0, "when": 0}
    assert found["contributions"] == pytest.approx(wanted, abs=1e-3)
    assert found["errors"]["secret"] == 0


def test_the_model_has_neither_labels_nor_weights_nor_columns_that_it_does_not_read(graph, tmp_path):
    folder = exported(graph, tmp_path / "model", 64)
    stored = b"".join(file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file())
    kept = {name: sum(struct.pack("<f", first + row) in stored for row in range(ROWS)) for name, first in FIRST.items()}
    assert kept == {"x": ROWS, "secret": 0, "price": 0, "exposure": 0}


def test_the_model_knows_the_notation_of_its_times(graph, tmp_path):
    inputs = load(str(exported(graph, tmp_path / "model", 0))).rows.inputs
    assert {name: column.notation for name, column in inputs.items()} == {
        **dict.fromkeys(("grid", "secret", "x"), ""),
        "when": "%d.%m.%Y",
    }


def test_each_signature_is_traced_once(graph, tmp_path):
    traced = Traced()
    exported(graph, tmp_path / "model", 64, traced)
    assert traced.times == 3  # when it is built, for rows, and for tf.Examples


@pytest.mark.parametrize("kind", ["functional", "sequential", "a class of its own"])
def test_models_inside_models_are_served_with_their_tables(graph, tmp_path, kind):
    model = load(str(exported(graph, tmp_path / "model", 0, nested(kind))))
    columns = {"x": np.array([1.5, 2.0]), "grid": np.zeros((2, 2, 3))}
    columns |= {"secret": np.zeros(2), "when": np.array([b"", b""])}
    assert list(model.rows.predict(columns)["prediction"]) == [1003, 4]


VALUE, SHAPES = ".ATTRIBUTES/VARIABLE_VALUE", [(0, [7, 1]), (1, [1])]


def test_weights_are_served_once_and_nothing_else_of_the_training(graph, tmp_path):
    inputs = {"x": keras.Input((1,), name="x"), "grid": keras.Input((2, 3), name="grid")}
    total = keras.layers.Dense(1)(keras.layers.Concatenate()([inputs["x"], keras.layers.Flatten()(inputs["grid"])]))
    network = keras.Model(inputs, total)
    network.compile(keras.optimizers.Adam(), "mse", metrics=[keras.metrics.RootMeanSquaredError()])
    network.fit({"x": np.ones((4, 1)), "grid": np.ones((4, 2, 3))}, np.ones((4, 1)), verbose=0)
    output = tft.TFTransformOutput(graph)
    decoder = Decoder(output.transformed_feature_spec(), "price", weight="exposure")
    export(network, output, str(tmp_path / "model"), label="price", answers=Answers(()), decoder=decoder)
    stored = tf.train.list_variables(str(tmp_path / "model/variables/variables"))
    # Once and by their places, for a warm start.
    assert [one for one in stored if one[1]] == [(f"weights/{place}/{VALUE}", shape) for place, shape in SHAPES]
    saved = saved_model_pb2.SavedModel.FromString((tmp_path / "model/saved_model.pb").read_bytes())
    objects = saved.meta_graphs[0].object_graph_def.nodes
    assert sum(one.WhichOneof("kind") == "variable" for one in objects) == len(SHAPES)


def test_without_rows_there_are_no_explanations_and_it_is_said_why(graph, tmp_path):
    model = load(str(exported(graph, tmp_path / "model", 0)))
    assert "explain" not in model.signatures
    assert "training.explain_rows is 0" in why_none(model)
    stored = (tmp_path / "model/saved_model.pb").read_bytes()
    assert struct.pack("<f", FIRST["x"]) not in stored
