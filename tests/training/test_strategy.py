"""The choice of devices, with its reason. There is no TPU here: what connects to one is a stand-in."""

import json
import os
from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

from pipeline.training import strategy
from pipeline.training.errors import TrainingError
from pipeline.training.input_pipeline import read
from pipeline.training.loop import Fit
from pipeline.training.run import precision
from tests.training.records import DECODER, SETTINGS, functional, write


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    for variable in ("TF_CONFIG", *strategy.TPU_VARIABLES):
        monkeypatch.delenv(variable, raising=False)


def tf_config(cluster: dict, kind: str = "worker", index: int = 0) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def test_without_a_gpu_auto_trains_on_the_cpu_and_says_so():
    chosen = strategy.choose("auto")
    assert isinstance(chosen.strategy, tf.distribute.OneDeviceStrategy)
    assert chosen.reason == "Training on 1 CPU: no GPU is visible."
    assert chosen.is_chief
    assert (chosen.replicas, chosen.part.local, chosen.workers) == (1, 1, 1)


def test_mirrored_with_nothing_to_mirror_is_fine():
    chosen = strategy.choose("mirrored")
    assert isinstance(chosen.strategy, tf.distribute.MirroredStrategy)
    assert chosen.reason == "Training mirrored on 1 CPU: asked for."


def test_an_unknown_name_is_refused():
    with pytest.raises(TrainingError, match="no strategy 'gpu'; expected one of auto, one_device, mirrored, mu"):
        strategy.choose("gpu")


def test_a_cluster_of_one_is_no_cluster(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", tf_config({"chief": ["a:1"]}, "chief"))  # as Vertex AI gives it to a single machine
    assert strategy.choose("auto").workers == 1


def test_multi_worker_without_a_cluster_says_what_it_looked_for(monkeypatch):
    with pytest.raises(
        TrainingError, match=r"two or more workers in the environment variable TF_CONFIG and found none"
    ):
        strategy.choose("multi_worker")
    monkeypatch.setenv("TF_CONFIG", tf_config({"worker": ["a:1"]}))
    with pytest.raises(TrainingError, match=r"in the environment variable TF_CONFIG and found one"):
        strategy.choose("multi_worker")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"TF_CONFIG is not usable \(JSONDecodeError.*expected \{\"cluster\""),
        (json.dumps({"cluster": {"worker": ["a:1", "b:1"]}}), r"TF_CONFIG is not usable \(KeyError: 'task'\)"),
        (tf_config({"worker": ["a:1", "b:1"], "ps": ["c:1"]}), r"tasks of the kind ps; expected chief and worker only"),
        (
            tf_config({"chief": ["a:1"], "worker": ["b:1"]}, "worker", 3),
            r"says this is worker 3, but names only a:1, b:1",
        ),
    ],
)
def test_a_cluster_that_cannot_train_is_refused(monkeypatch, text, message):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(TrainingError, match=message):
        strategy.choose("auto")


def test_a_search_trains_alone_whatever_the_cluster(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", tf_config({"chief": ["a:1"], "worker": ["b:1"]}, "chief"))
    for name in ("auto", "multi_worker"):
        assert strategy.choose(name, alone=True).workers == 1


def test_the_places_of_the_workers_follow_the_chiefs(monkeypatch):
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    for kind, index, place in (("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)):
        monkeypatch.setenv("TF_CONFIG", tf_config(cluster, kind, index))
        assert strategy.cluster() == (3, place)


def test_reduction_servers_of_vertex_ai_do_not_train(monkeypatch):
    text = tf_config({"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1", "d:1"]}, "worker")
    monkeypatch.setenv("TF_CONFIG", text)
    monkeypatch.setenv("CLUSTER_SPEC", "{}")
    assert strategy.cluster() == (2, 1)
    assert json.loads(os.environ["TF_CONFIG"])["cluster"] == {"chief": ["a:1"], "worker": ["b:1"]}


def test_a_tpu_that_is_not_there_is_refused_at_once():
    with pytest.raises(TrainingError, match="looked for a TPU in the environment variables TPU_NAME, .* none is set"):
        strategy.choose("tpu")


def test_a_tpu_that_does_not_start_says_why(monkeypatch):
    monkeypatch.setenv("TPU_NAME", "pod")
    with pytest.raises(TrainingError, match=r"could not start the TPU 'pod': .*; check TPU_NAME"):
        strategy.choose("tpu")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "variable"), [("auto", "TPU_ACCELERATOR_TYPE"), ("tpu", "TPU_NAME")])
def test_a_tpu_gets_bfloat16_and_static_shapes(monkeypatch, tmp_path, name, variable):
    """Needs of a TPU, on a stand-in for it; nothing here has run on a TPU."""
    monkeypatch.setenv(variable, "v5e")
    connected_to = []

    def connect(tpu: str) -> tf.distribute.Strategy:
        connected_to.append(tpu)
        return tf.distribute.OneDeviceStrategy("/CPU:0")

    monkeypatch.setattr(strategy, "_connect_to_tpu", connect)
    chosen = strategy.choose(name)
    assert connected_to == ["v5e" if variable == "TPU_NAME" else "local"]
    assert chosen.tpu
    assert chosen.reason == f"Training on 1 TPU cores: {f'{variable} is set' if name == 'auto' else 'asked for'}."

    shapes = set()

    class Spy(keras.layers.Layer):
        def call(self, inputs):
            shapes.add((tuple(inputs.shape), inputs.dtype))
            return inputs

    with precision(SETTINGS, chosen), chosen.strategy.scope():
        inputs = {"x": keras.Input((2,), name="x")}
        hidden = keras.layers.Dense(4)(Spy()(inputs["x"]))
        assert hidden.dtype == "bfloat16"
        model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid", dtype="float32")(hidden))
        model.compile("adam", "binary_crossentropy", metrics=["auc"])
        assert functional().optimizer is not None
    assert keras.config.dtype_policy().name == "float32"
    pattern = write(tmp_path, 203)
    splits = [read([pattern], DECODER, cache="memory") for _ in range(2)]
    shapes.clear()
    history = Fit(model, *splits, SETTINGS, chosen, seed=1).run()
    assert len(history["val_auc"]) == 3
    assert {shape for shape, _ in shapes} == {(20, 2), (67, 2)}  # a batch, and an evaluation in three equal parts
    assert read([pattern], DECODER, cache="memory").training(20, strategy.Part(), 1).element_spec.shape[1] == 20


def test_settings_name_the_precision(monkeypatch):
    chosen = strategy.choose("one_device")
    for asked, got in (("auto", "float32"), ("mixed_float16", "mixed_float16")):
        with precision(SimpleNamespace(precision=asked), chosen):
            assert keras.config.dtype_policy().name == got
