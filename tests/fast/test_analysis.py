"""The analysis without Beam gives what Beam's gives, whatever a preprocessing_fn analyzes."""

import functools
import itertools
import sys
from pathlib import Path

import apache_beam as beam
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_transform as tft
from apache_beam.options.pipeline_options import PipelineOptions
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor
from tfx.proto import transform_pb2
from tfx.types import standard_artifacts
from tfx.utils import proto_utils

from pipeline.components.base import Artifacts, files_of, read_schema
from pipeline.components.transform import MODULE, preprocessing_fn
from pipeline.errors import UserError
from pipeline.fast import analysis, transform
from pipeline.fast.analysis_operations import OnlyInBeam
from pipeline.fast.transform import FastTransformExecutor
from pipeline.settings.config import Data
from pipeline.settings.target import Target
from tests.components.example_gen import run, values
from tests.fast.transform_outputs import outputs

SCHEMA = Path(__file__).resolve().parent.parent.parent / "schema/flights/schema.pbtxt"


def words(inputs):
    """Compute vocabularies of every kind."""
    dest, late = inputs["dest"], tf.cast(inputs["late"], tf.float32)

    def placed(file, column=dest, **settings):
        return tft.compute_and_apply_vocabulary(column, vocab_filename=file, num_oov_buckets=1, **settings)

    return {
        "all": placed("all"),
        "common": placed("common", frequency_threshold=20),
        "few": placed("few", top_k=5),
        "none": placed("none", frequency_threshold=10_000),
        "shuffled": placed("shuffled", fingerprint_shuffle=True),
        "in records": placed("in records", file_format="tfrecord_gzip"),
        "weighted": placed("weighted", weights=1.0 + late),
        "by letter": placed(
            "by letter", top_k=3, key_fn=lambda word: word[:1], coverage_top_k=1, coverage_frequency_threshold=2
        ),
        # A unique name: get_analyze_input_columns leaves tables in the process, which could collide with other tests.
        "numbers": placed("numbers", inputs["month"], name="numbers"),
        "as it is": dest,
        "size": tf.zeros_like(late)
        + tf.cast(tft.experimental.get_vocabulary_size_by_name("all"), tf.float32)
        + 0.0 * tf.cast(tf.strings.length(tft.vocabulary(dest, store_frequency=True)), tf.float32),
    }


def numbers(inputs):
    """Compute statistics of numbers, some based on others, some by key."""
    distance, carrier = tf.cast(inputs["distance"], tf.float32), inputs["carrier"]
    scaled = tft.scale_to_z_score(tf.clip_by_value(distance, 0.0, tft.quantiles(distance, 4, 0.01)[0, -1]))
    place = tft.compute_and_apply_vocabulary(carrier)
    columns = tf.concat([distance, tf.cast(inputs["month"], tf.float32)], axis=1)
    return {
        "scaled": scaled,
        "again": tft.scale_to_0_1(scaled * 2.0),
        "of words": tft.scale_to_z_score(tf.cast(place, tf.float32)),
        "by key": tft.scale_to_z_score_per_key(distance[:, 0], carrier[:, 0])[:, tf.newaxis],
        "by key, in a file": tft.scale_to_0_1_per_key(
            distance[:, 0], carrier[:, 0], key_vocabulary_filename="of carriers"
        )[:, tf.newaxis],
        "buckets": tft.bucketize(distance, 5),
        "buckets by key": tft.bucketize_per_key(distance[:, 0], carrier[:, 0], 3)[:, tf.newaxis],
        "centred": columns @ tft.pca(columns, 2, tf.float32),
        "gaussian": tft.scale_to_gaussian(distance),
        "temps": inputs["temp"],  # sparse
        "late": inputs["late"],
    }


def texts(inputs):
    """Return the words of a text as sparse features."""
    split = tf.compat.v1.strings.split(tf.strings.regex_replace(inputs["dest"][:, 0], "(.)", r"\1 "))
    letters = tft.compute_and_apply_vocabulary(split, vocab_filename="letters")
    places, weights = tft.tfidf(letters, 30)
    return {"places": places, "weights": weights, "bag": tft.bag_of_words(split, (1, 2), " ")}


def made_in_the_trace(inputs):
    """Create a table and a layer with state while preprocessing_fn is traced."""
    keys = tf.lookup.KeyValueTensorInitializer(["AA", "UA"], tf.constant([1, 2], tf.int64))
    table = tf.lookup.StaticHashTable(keys, 0)
    hashing = tft.make_and_track_object(lambda: tf.keras.layers.Hashing(5), name="hashing")
    place = table.lookup(inputs["carrier"])
    hashed = tf.cast(hashing(inputs["dest"]), tf.float32)
    return {
        "place": place,
        "of table": tft.scale_to_z_score(tf.cast(place, tf.float32)),
        "hashed": tft.scale_to_0_1(hashed),
    }


def by_what_they_tell(inputs):
    """Compute a vocabulary in the order of mutual information with the label."""
    labels = inputs["late"]
    return {"words": tft.compute_and_apply_vocabulary(inputs["dest"], labels=labels, use_adjusted_mutual_info=True)}


def reserved(inputs):
    """Compute a vocabulary that begins with the user's words."""
    return {"words": tft.compute_and_apply_vocabulary(inputs["dest"], reserved_tokens=["nowhere"])}


@beam.ptransform_fn
def _number_of(batches):
    return batches | beam.Map(lambda batch: batch[0].size) | beam.CombineGlobally(sum) | beam.Map(np.int64)


def in_beam(inputs):
    """Analyze with a user's PTransform."""
    (count,) = tft.experimental.ptransform_analyzer([inputs["late"]], _number_of(), [tf.int64], [[]])
    return {"count": inputs["late"] * 0 + count}


def annotated(inputs):
    """Annotate a sparse feature with its shape."""
    temp = inputs["temp"]
    tft.experimental.annotate_sparse_output_shape(temp, tf.constant([1], tf.int64))
    return {"temp": temp}


def truth(inputs):
    """Return a feature of a type that tf.Transform does not support."""
    return {"truth": inputs["late"] > 0}


def columns(inputs):
    """Return only the label; the weight of the rows is not among the inputs."""
    assert "seats" not in inputs
    return {"late": inputs["late"]}


_CALLS = itertools.count()


def other_each_time(inputs):
    """Return analyses whose names differ in each call, as with the random order of a set."""
    distance = tf.cast(inputs["distance"], tf.float32)
    return {"scaled": tft.scale_to_z_score(distance - tft.min(distance), name=f"scaled_{next(_CALLS)}")}


def nothing(inputs):
    """Return no features: the return statement is missing."""


def as_they_are(inputs):
    """Return features without any analysis."""
    return {name: inputs[name] for name in ("dest", "distance", "temp")}


MODULES = {module.__name__: module for module in (words, numbers, texts, made_in_the_trace, as_they_are)}
VOCABULARIES = {"words": 10, "numbers": 2, "texts": 1}
# What the others show is shown by these too, or costs as long as all of them. `make long` has the others.
FIRST = ("words", "made_in_the_trace", "as_they_are")


@pytest.fixture(scope="module")
def inputs(few_flights: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    splits = {split: f"{split}/*.parquet" for split in ("train", "eval", "test")}
    schema = standard_artifacts.Schema()
    schema.uri = str(SCHEMA.parent)
    folder = tmp_path_factory.mktemp("spin") / "examples"
    return {"examples": [run(Data(str(few_flights), splits=splits), folder)], "schema": [schema]}


def executor(folder: Path) -> FastTransformExecutor:
    return FastTransformExecutor(BaseBeamExecutor.Context(beam_pipeline_args=list(Target.local(folder, "").beam_args)))


def properties(module: str, monkeypatch: pytest.MonkeyPatch, folder: Path, **custom_config: str) -> dict:
    """Return the properties of a step; its preprocessing_fn is one from this file, in a separate module."""
    (folder / "modules").mkdir(exist_ok=True)
    name = f"spun_{module}"
    (folder / f"modules/{name}.py").write_text(f"from {__name__} import {module} as preprocessing_fn\n")
    monkeypatch.syspath_prepend(folder / "modules")
    monkeypatch.delitem(sys.modules, name, raising=False)
    splits = transform_pb2.SplitsConfig(analyze=["train"], transform=["train"])
    return {
        "module_path": name,
        "custom_config": str(custom_config).replace("'", '"'),
        "disable_statistics": 1,
        "splits_config": proto_utils.proto_to_json(splits),
    }


def rows(folder: Path) -> list[dict]:
    files = sorted(map(str, folder.glob("transformed_examples/Split-train/*")))
    return [values(one.numpy()) for one in tf.data.TFRecordDataset(files, compression_type="GZIP")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", [name if name in FIRST else pytest.param(name, marks=pytest.mark.long) for name in MODULES]
)
def test_the_transform_graph_is_that_of_beam(module, inputs, tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.data.blocks.BLOCK", 100)  # so that there are several
    settings = properties(module, monkeypatch, tmp_path)
    executor(tmp_path).Do(inputs, outputs(tmp_path / "direct"), settings)
    files = files_of(inputs["examples"][0], "train")
    options = PipelineOptions(list(Target.local(tmp_path, "").beam_args))
    with beam.Pipeline(options=options) as pipeline:
        transform.analyze(
            pipeline, files, read_schema(inputs["schema"]), MODULES[module], str(tmp_path / "beam/transform_graph")
        )
    direct, by_beam = (tft.TFTransformOutput(str(tmp_path / which / "transform_graph")) for which in ("direct", "beam"))
    assert direct.raw_metadata.schema == by_beam.raw_metadata.schema
    assert same_domains(direct.transformed_metadata.schema) == same_domains(by_beam.transformed_metadata.schema)
    names = [path.name for path in Path(by_beam.transform_savedmodel_dir).glob("assets/*")]
    assert len(names) == VOCABULARIES.get(module, 0)
    for name in names:
        written = [Path(output.transform_savedmodel_dir, "assets", name).read_bytes() for output in (direct, by_beam)]
        assert written[0] == written[1], name
    maps = [
        path.read_text()
        if (path := tmp_path / which / "transform_graph/transformed_metadata/asset_map").exists()
        else ""
        for which in ("direct", "beam")
    ]
    assert maps[0] == maps[1]

    records = next(iter(tf.data.TFRecordDataset(files, compression_type="GZIP").batch(10_000)))
    raw = tf.io.parse_example(records, direct.raw_feature_spec())
    ours, theirs = (output.transform_features_layer()(dict(raw)) for output in (direct, by_beam))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        same(value, theirs[name], name)

    executor(tmp_path).write_features(inputs, outputs(tmp_path / "spun"), settings)
    spun, made = rows(tmp_path / "spun"), rows(tmp_path / "direct")
    assert len(spun) == len(made) > 700
    for row, other in zip(spun, made, strict=True):
        assert row.keys() == other.keys()
        for name, value in row.items():
            same(value or [], other[name] or [], name)


def same(one, other, name):
    """Assert equal texts and integers, and nearly equal floats: the order of a sum changes the last digits."""
    if isinstance(one, tf.SparseTensor):
        same(one.indices, other.indices, name)
        one, other = one.values, other.values
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype.kind == "f" or other.dtype.kind == "f":
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=name)
    else:
        np.testing.assert_array_equal(one, other, err_msg=name)


def same_domains(schema):
    """Return the features of a schema by name, because their order depends on the traced function."""
    return {feature.name: feature for feature in schema.feature}


@pytest.mark.parametrize("module", [by_what_they_tell, reserved, in_beam, annotated])
def test_what_only_beam_computes_is_left_to_beam_before_any_row_is_read(module, inputs, tmp_path, monkeypatch):
    config = {MODULE: properties(module.__name__, monkeypatch, tmp_path)["module_path"]}
    preprocess = functools.partial(preprocessing_fn, custom_config=config)

    def features():
        schema = read_schema(inputs["schema"])
        return analysis.analyze(["no file"], schema, preprocess, str(tmp_path / "analysis")).features(["no file"])

    with pytest.raises(OnlyInBeam):
        features()


@pytest.mark.slow
def test_beam_computes_what_only_beam_can(inputs, tmp_path, monkeypatch):
    settings = properties("reserved", monkeypatch, tmp_path)
    executor(tmp_path).write_features(inputs, outputs(tmp_path / "made"), settings)
    graph = tft.TFTransformOutput(str(tmp_path / "made/transform_graph"))
    (vocabulary,) = Path(graph.transform_savedmodel_dir, "assets").iterdir()
    assert vocabulary.read_text().startswith("nowhere\n")
    assert {row["words"][0] for row in rows(tmp_path / "made")} > {1, 2, 3}


def test_features_that_a_run_refuses_are_refused(inputs, tmp_path, monkeypatch):
    def spun(module):
        settings = properties(module.__name__, monkeypatch, tmp_path)
        executor(tmp_path).write_features(inputs, outputs(tmp_path / "spun"), settings)

    with pytest.raises(ValueError, match="Feature truth .* had invalid dtype <dtype: 'bool'>"):
        spun(truth)
    with pytest.raises(UserError, match="preprocessing_fn returns NoneType, expected a dictionary"):
        spun(nothing)
    with pytest.raises(UserError, match="preprocessing_fn does not analyze the same in each call"):
        spun(other_each_time)


@pytest.mark.slow
def test_the_weight_is_over_its_mean_and_hidden_from_the_module(inputs, tmp_path, monkeypatch):
    settings = properties("columns", monkeypatch, tmp_path, weight="seats")
    executor(tmp_path).write_features(inputs, outputs(tmp_path / "spun"), settings)
    spun = rows(tmp_path / "spun")
    assert set(spun[0]) == {"late", "seats"}
    assert np.mean([row["seats"] for row in spun]) == pytest.approx(1.0, rel=1e-5)
