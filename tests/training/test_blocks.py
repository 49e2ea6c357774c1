"""Deep models over several devices, and with activations computed again: they learn what they would have learnt."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import training
from pipeline.training.blocks import divide
from pipeline.training.errors import TrainingError
from pipeline.training.input_pipeline import read
from pipeline.training.loop import Fit
from tests.training.one_device import ONE_DEVICE
from tests.training.processes import ROOT, finish, logs, losses, run, start
from tests.training.records import DECODER, SETTINGS, compiled, functional, write
from tests.training.split import deep
from tests.training.test_loop import step_losses

ROWS = 200


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("rows"), ROWS)


def train(model: keras.Model, pattern: str, folder: Path, **settings) -> np.ndarray:
    """Trains on one device; returns the loss of every step."""
    splits = [read([pattern], DECODER, cache="memory", on_cpu=True) for _ in range(2)]
    Fit(model, *splits, dataclasses.replace(SETTINGS, **settings), ONE_DEVICE, seed=1, logs=str(folder)).run()
    return np.array(step_losses(folder))


@pytest.mark.parametrize(
    ("sizes", "parts", "others", "places"),
    [
        ([1, 1, 1, 1], 2, 0, [0, 0, 1, 1]),
        ([1, 1, 1, 1], 2, 2, [0, 1, 1, 1]),
        ([1, 1, 1, 1], 2, 9, [1, 1, 1, 1]),
        ([5, 1, 1, 1], 2, 0, [0, 1, 1, 1]),
        ([1, 2, 3, 4], 3, 0, [0, 0, 1, 2]),
        ([3, 3], 4, 0, [0, 1]),
        ([3, 3], 1, 7, [0, 0]),
    ],
)
def test_the_fullest_device_has_as_little_as_possible(sizes, parts, others, places):
    assert divide(sizes, parts, others) == places


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, marks=pytest.mark.long),
        {"accumulate": 2, "batch_size": 10, "clip_norm": 0.5},
        pytest.param({"precision": "mixed_float16"}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_activations_computed_again_change_nothing_that_is_learnt(pattern, tmp_path, settings):
    """Dropout draws the same numbers the second time, and moving means and seeds move once."""
    models, curves = [], []
    for recompute in (False, True):
        keras.config.set_dtype_policy(settings.get("precision", "float32"))
        try:
            models.append(deep())
        finally:
            keras.config.set_dtype_policy("float32")
        curves.append(train(models[-1], pattern, tmp_path / str(recompute), recompute=recompute, **settings))
    exact = "precision" not in settings
    np.testing.assert_allclose(curves[1], curves[0], atol=1e-6 if exact else 1e-3)
    for kept, again in zip(models[0].variables, models[1].variables, strict=True):
        np.testing.assert_allclose(again.numpy(), kept.numpy(), atol=1e-5 if exact else 1e-2, err_msg=kept.path)


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_rows_of_a_table_in_a_block_are_changed_alone(pattern, tmp_path):
    class Lookup(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.table = training.embedding(100, 4)

        def call(self, numbers):
            return numbers + keras.ops.mean(self.table(keras.ops.cast(numbers[:, 1:] / 2, "int32")), (1, 2))[:, None]

    curves = []
    for recompute in (False, True):
        keras.utils.set_random_seed(1)
        inputs = {"x": keras.Input((2,), name="x")}
        hidden = training.blocks([Lookup(), keras.layers.Dense(4, "tanh")])(inputs["x"])
        model = compiled(keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden)))
        curves.append(train(model, pattern, tmp_path / str(recompute), recompute=recompute, epochs=1))
    np.testing.assert_allclose(curves[1], curves[0], atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_random_numbers_that_would_not_be_the_same_again_are_refused(pattern, tmp_path):
    class Noise(keras.layers.Layer):
        def __init__(self, draw):
            super().__init__()
            self.draw = draw

        def call(self, inputs, training=False):
            return inputs + self.draw(keras.ops.shape(inputs))

    for draw in (tf.random.normal, keras.random.normal):
        inputs = {"x": keras.Input((2,), name="x")}
        hidden = training.blocks([keras.layers.Dense(2), Noise(draw)])(inputs["x"])
        model = compiled(keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden)))
        with pytest.raises(TrainingError, match="cannot compute 'noise.*' twice alike"):
            train(model, pattern, tmp_path, recompute=True)


@pytest.mark.usefixtures("one_device")
def test_settings_about_blocks_without_blocks_are_refused(pattern, tmp_path):
    with pytest.raises(TrainingError, match=r"training.recompute=True is about the layers in training.blocks"):
        train(functional(), pattern, tmp_path, recompute=True)


@pytest.mark.usefixtures("one_device")
def test_a_mask_is_refused_rather_than_lost():
    words = keras.layers.Embedding(10, 4, mask_zero=True)(keras.Input((3,), dtype="int64"))
    with pytest.raises(TrainingError, match="has a mask, which training.blocks does not pass on"):
        training.blocks([keras.layers.Dense(4)])(words)


@pytest.mark.slow
def test_weights_and_all_that_is_computed_of_a_block_are_on_its_device(pattern, tmp_path):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-m", "tests.training.split", pattern, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    where = {"block_0": "CPU:0", "block_1": "CPU:0", "block_2": "CPU:1", "block_3": "CPU:1"}

    variables = json.loads((tmp_path / "devices.json").read_text())
    for block, device in where.items():
        found = [on for path, on in variables.items() if block in path]
        assert len(found) == 14  # six variables, and two states of the optimizer for each of the four that are trained
        assert {on[-5:] for on in found} == {device}

    # What TensorFlow runs in its loops over steps. Of a block: forward twice, in training and evaluation, and backward
    # to inputs and weights; and forward once more.
    placed = re.findall(r"while/body/(\S*): \((\w+)\): \S*/device:(CPU:\d)", done.stdout)
    for block, device in where.items():
        operations = [(kind, on) for name, kind, on in placed if block in name]
        assert {on for _, on in operations} == {device}
        assert sum(kind == "MatMul" for kind, _ in operations) == 5
    # Of a variable the optimizer takes two roots, and the norm of its gradient is one: of 8, and 2 of the last layer.
    roots = [(name, on) for name, kind, on in placed if kind == "Sqrt"]
    for part, of_a_variable in (("/adam/", 2), ("/norm_", 1)):
        found = [on for name, on in roots if part in name]
        assert (found.count("CPU:0"), found.count("CPU:1")) == (10 * of_a_variable, 8 * of_a_variable)


def job(model: str, strategy: str) -> dict:
    settings = {"strategy": strategy, "epochs": 1, "checkpoint_steps": 8, "steps_per_call": 4}
    return {"model": model, "settings": settings}


def trained_whole_and_split(transformed, folder: Path, model: str) -> str:
    """Train on one device, and over two with a kill in between; compare the two; return what the last process said."""
    whole, split = folder / "whole", folder / "split"
    run(transformed, whole, **job(model, "one_device"))
    assert finish(start(transformed, split, devices=2, kill_at=30, **job(model, "split"))) == [-9]
    said = run(transformed, split, devices=2, execution=1, **job(model, "split"))
    assert "Training split over 2 CPUs: asked for." in said
    assert "Going on at step" in said
    np.testing.assert_allclose(losses(split, 1), losses(whole), atol=1e-5)
    np.testing.assert_allclose(answers(split / "serving"), answers(whole / "serving"), atol=1e-5)
    return said


@pytest.mark.long
@pytest.mark.slow
def test_a_split_model_that_is_killed_learns_what_the_whole_one_learns_and_serves_on_one_device(transformed, tmp_path):
    said = trained_whole_and_split(transformed, tmp_path, "blocks")
    assert re.search(r"/device:CPU:1 has \d of 4 blocks", said)


@pytest.mark.slow
def test_a_table_split_over_devices_learns_what_a_whole_one_learns_and_serves_on_one_device(transformed, tmp_path):
    said = trained_whole_and_split(transformed, tmp_path, "split table")
    assert "CPU:1 has 0 of 0 blocks, rows of carriers, about" in said
    devices = json.loads((tmp_path / "split/devices.json").read_text())
    for part in (0, 1):  # the rows, and two states of the optimizer
        found = [on[-5:] for path, on in devices.items() if f"carriers_embeddings_{part}" in path.replace("/", "_")]
        assert found == [f"CPU:{part}"] * 3


@pytest.mark.slow
def test_a_table_is_split_where_the_model_is_and_nowhere_else(transformed, tmp_path):
    refused = start(transformed, tmp_path / "refused", devices=2, **job("split table", "mirrored"))
    assert finish(refused) == [1]
    said = logs(tmp_path / "refused")
    assert 'has a part of its rows on each device of training.strategy="split", and training.strategy is "mirr' in said


def answers(saved_model: Path) -> list[float]:
    """Return the probabilities of some rows, in a process with one device and without us."""
    code = (
        "import json, sys, tensorflow as tf; answer = tf.saved_model.load(sys.argv[1]).signatures['serving_default'];"
        "assert len(tf.config.list_logical_devices()) == 1; specs = answer.structured_input_signature[1];"
        "rows = {n: tf.fill([3], '' if s.dtype == tf.string else tf.constant(1, s.dtype)) for n, s in specs.items()};"
        "print(json.dumps(answer(**rows)['probability'].numpy().tolist()))"
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-c", code, str(saved_model)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])
