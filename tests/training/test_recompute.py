"""The layer for gradient checkpointing that docs/training.md prints."""

import dataclasses
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.training.input_pipeline import read
from pipeline.training.loop import Fit
from tests.training.one_device import ONE_DEVICE
from tests.training.records import DECODER, SETTINGS, compiled, write
from tests.training.test_loop import step_losses

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/training.md"
BLOCKS = 3


def printed() -> type[keras.layers.Layer]:
    """Return the layer as it is printed."""
    (code,) = re.findall(r"^    class Recompute\(.*?(?=^\S)", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    names = {"keras": keras, "tf": tf}
    exec(textwrap.dedent(code), names)
    return names["Recompute"]


class Counted(keras.layers.Layer):
    """Passes its inputs on and counts how often it runs, not how often it is traced."""

    calls = 0

    def call(self, inputs):
        tf.numpy_function(self._count, [], [])
        return inputs

    def _count(self):
        Counted.calls += 1


def trained(pattern: str, folder: Path, wrap: Callable, **settings) -> tuple[list[float], list, int]:
    """Train a network of blocks; return the loss of every step, the weights, and how often blocks were computed."""
    Counted.calls = 0
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(settings.get("precision", "float32"))
    try:
        inputs = {"x": keras.Input((2,), name="x")}
        hidden = keras.layers.Dense(4)(inputs["x"] * np.array([1.0, 0.001], "float32"))
        for _ in range(BLOCKS):
            block = keras.Sequential([Counted(), keras.layers.Dense(8, "gelu"), keras.layers.Dense(4)])
            hidden = keras.layers.Dropout(0.1)(wrap(block)(hidden))
        model = compiled(keras.Model(inputs, keras.layers.Dense(1, "sigmoid", dtype="float32")(hidden)))
    finally:
        keras.config.set_dtype_policy("float32")
    splits = [read([pattern], DECODER, cache="memory", on_cpu=True) for _ in range(2)]
    fit = Fit(model, *splits, dataclasses.replace(SETTINGS, **settings), ONE_DEVICE, seed=1, logs=str(folder))
    fit.run()
    return step_losses(folder), model.get_weights(), Counted.calls


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize(
    "settings",
    [
        {"accumulate": 2, "batch_size": 10, "clip_norm": 0.5},
        pytest.param({"precision": "mixed_float16"}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_printed_layer_computes_blocks_twice_and_changes_nothing_that_is_learned(tmp_path, settings):
    pattern = write(tmp_path / "rows", 200)
    losses, weights, once = trained(pattern, tmp_path / "kept", lambda block: block, **settings)
    again, others, twice = trained(pattern, tmp_path / "recomputed", printed(), **settings)
    assert len(losses) == 30
    # The backward pass computes each block of each batch a second time.
    assert twice - once == BLOCKS * len(losses) * settings.get("accumulate", 1)
    close = 1e-6 if "precision" not in settings else 1e-3
    np.testing.assert_allclose(again, losses, atol=close)
    for kept, recomputed in zip(weights, others, strict=True):
        np.testing.assert_allclose(recomputed, kept, atol=10 * close)
