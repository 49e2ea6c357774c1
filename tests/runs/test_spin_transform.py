"""Features that `spin` makes without Beam are those that Transform makes, whatever a preprocessing_fn analyzes."""

import sys
from pathlib import Path

import apache_beam as beam
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_transform as tft
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor
from tfx.proto import transform_pb2
from tfx.types import standard_artifacts
from tfx.utils import proto_utils

from pipeline.components.base import Artifacts
from pipeline.components.transform import TransformExecutor
from pipeline.errors import UserError
from pipeline.runs import spin_transform
from pipeline.settings.config import Data
from pipeline.settings.target import Target
from tests.components.example_gen import run, values

SCHEMA = Path(__file__).resolve().parent.parent.parent / "schema/flights/schema.pbtxt"


def words(inputs):
    """Vocabularies of every kind."""
    dest, late = inputs["dest"], tf.cast(inputs["late"], tf.float32)

    def placed(name, column=dest, **settings):
        return tft.compute_and_apply_vocabulary(column, vocab_filename=name, num_oov_buckets=1, **settings)

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
        "numbers": placed("numbers", inputs["month"]),
        "as it is": dest,
        "size": tf.zeros_like(late)
        + tf.cast(tft.experimental.get_vocabulary_size_by_name("all"), tf.float32)
        + 0.0 * tf.cast(tf.strings.length(tft.vocabulary(dest, store_frequency=True)), tf.float32),
    }


def numbers(inputs):
    """Statistics of numbers, one upon the other, and by key."""
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
    """Words in a text, as sparse features."""
    split = tf.compat.v1.strings.split(tf.strings.regex_replace(inputs["dest"][:, 0], "(.)", r"\1 "))
    letters = tft.compute_and_apply_vocabulary(split, vocab_filename="letters")
    places, weights = tft.tfidf(letters, 30)
    return {"places": places, "weights": weights, "bag": tft.bag_of_words(split, (1, 2), " ")}


def by_what_they_tell(inputs):
    """Words in the order of what they tell of a label."""
    labels = inputs["late"]
    return {"words": tft.compute_and_apply_vocabulary(inputs["dest"], labels=labels, use_adjusted_mutual_info=True)}


def reserved(inputs):
    """A vocabulary that begins with words of the user's."""
    return {"words": tft.compute_and_apply_vocabulary(inputs["dest"], reserved_tokens=["nowhere"])}


@beam.ptransform_fn
def _number_of(batches):
    return batches | beam.Map(lambda batch: batch[0].size) | beam.CombineGlobally(sum) | beam.Map(np.int64)


def in_beam(inputs):
    """An analysis that is a PTransform of the user's."""
    (count,) = tft.experimental.ptransform_analyzer([inputs["late"]], _number_of(), [tf.int64], [[]])
    return {"count": inputs["late"] * 0 + count}


def annotated(inputs):
    """A sparse feature that is told its shape."""
    temp = inputs["temp"]
    tft.experimental.annotate_sparse_output_shape(temp, tf.constant([1], tf.int64))
    return {"temp": temp}


def truth(inputs):
    """A feature of a type that tf.Transform does not take."""
    return {"truth": inputs["late"] > 0}


def columns(inputs):
    """The label alone; the weight of the rows is not among the inputs."""
    assert "seats" not in inputs
    return {"late": inputs["late"]}


def nothing(inputs):
    """No features at all: a return is missing."""


MODULES = {"words": words, "numbers": numbers, "texts": texts}


@pytest.fixture(scope="module")
def inputs(few_flights: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    splits = {split: f"{split}/*.parquet" for split in ("train", "eval", "test")}
    schema = standard_artifacts.Schema()
    schema.uri = str(SCHEMA.parent)
    folder = tmp_path_factory.mktemp("spin") / "examples"
    return {"examples": [run(Data(str(few_flights), splits=splits), folder)], "schema": [schema]}


def outputs(folder: Path) -> Artifacts:
    kinds = {
        "transform_graph": standard_artifacts.TransformGraph,
        "transformed_examples": standard_artifacts.Examples,
    }
    made = {}
    for name, kind in kinds.items():
        artifact = kind()
        artifact.uri = str(folder / name)
        made[name] = [artifact]
    return made


def executor(folder: Path) -> TransformExecutor:
    return TransformExecutor(BaseBeamExecutor.Context(beam_pipeline_args=list(Target.local(folder, "").beam_args)))


def properties(module: str, monkeypatch: pytest.MonkeyPatch, folder: Path, **custom_config: str) -> dict:
    """A step's properties whose preprocessing_fn is one of this file's, in a module of its own."""
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
@pytest.mark.parametrize("module", MODULES)
def test_they_are_those_of_the_executor(module, inputs, tmp_path, monkeypatch):
    settings = properties(module, monkeypatch, tmp_path)
    spin_transform.run(executor(tmp_path), inputs, outputs(tmp_path / "spun"), settings)
    executor(tmp_path).Do(inputs, outputs(tmp_path / "made"), settings)
    spun, made = rows(tmp_path / "spun"), rows(tmp_path / "made")
    assert len(spun) == len(made) > 700
    for one, other in zip(spun, made, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            if value and isinstance(value[0], bytes):
                assert value == other[name], name
            else:
                np.testing.assert_allclose(value or [], other[name] or [], rtol=1e-4, atol=1e-5, err_msg=name)
    graphs = [tft.TFTransformOutput(str(tmp_path / which / "transform_graph")) for which in ("spun", "made")]
    assert graphs[0].transformed_feature_spec() == graphs[1].transformed_feature_spec()
    for path in (tmp_path / "made/transform_graph/transform_fn/assets").iterdir():  # the vocabularies
        assert (tmp_path / "spun/transform_graph" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("module", [by_what_they_tell, reserved, in_beam, annotated])
def test_what_only_beam_computes_is_said_and_nothing_written(module, inputs, tmp_path, monkeypatch):
    settings = properties(module.__name__, monkeypatch, tmp_path)
    with pytest.raises(spin_transform.OnlyInBeam):
        spin_transform.run(executor(tmp_path), inputs, outputs(tmp_path / "spun"), settings)
    assert not list(tmp_path.glob("spun/transformed_examples/*"))


def test_features_that_a_run_refuses_are_refused(inputs, tmp_path, monkeypatch):
    def spun(module):
        settings = properties(module.__name__, monkeypatch, tmp_path)
        spin_transform.run(executor(tmp_path), inputs, outputs(tmp_path / "spun"), settings)

    with pytest.raises(ValueError, match="Feature truth .* had invalid dtype <dtype: 'bool'>"):
        spun(truth)
    with pytest.raises(UserError, match="preprocessing_fn returns NoneType, expected a dictionary"):
        spun(nothing)


def test_the_weight_is_over_its_mean_and_hidden_from_the_module(inputs, tmp_path, monkeypatch):
    settings = properties("columns", monkeypatch, tmp_path, weight="seats")
    spin_transform.run(executor(tmp_path), inputs, outputs(tmp_path / "spun"), settings)
    spun = rows(tmp_path / "spun")
    assert set(spun[0]) == {"late", "seats"}
    assert np.mean([row["seats"] for row in spun]) == pytest.approx(1.0, rel=1e-5)
