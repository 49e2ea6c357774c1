"""Fitting: the learning rate's way, and stopping at the best weights."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.training.loop import LAST_SHARE, WarmupCosine, fit, share
from pipeline.training.settings import Settings

SETTINGS = Settings(
    label="y",
    objective="auc",
    epochs=4,
    batch_size=50,
    patience=1,
    schedule="cosine",
    warmup_epochs=1.0,
    strategy="auto",
    seed=1,
)


def model_and_data(learning_rate: float) -> tuple[keras.Model, tf.data.Dataset]:
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(1).normal(size=(200, 3)).astype("float32")
    y = (x[:, :1] > 0).astype("float32")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])
    model.compile(keras.optimizers.SGD(learning_rate), "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    return model, tf.data.Dataset.from_tensor_slices((x, y)).batch(50)


def test_the_share_rises_to_one_and_falls_to_the_last_share():
    shares = [share(step, warmup=4, last=20) for step in range(20)]
    assert shares[:4] == [0.25, 0.5, 0.75, 1.0]
    assert shares[4] == 1.0
    assert all(after < before for before, after in itertools.pairwise(shares[4:]))
    assert share(20, warmup=4, last=20) == pytest.approx(LAST_SHARE)


def test_every_step_of_a_fit_takes_its_share_of_the_models_own_rate():
    model, data = model_and_data(0.2)
    taken = []

    class Spy(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            taken.append(float(self.model.optimizer.learning_rate))

    model.fit(data, epochs=2, callbacks=[WarmupCosine(0.5), Spy()], verbose=0)
    assert taken == pytest.approx([0.2 * share(step, warmup=2, last=8) for step in range(8)], rel=1e-5)


def test_fit_writes_its_history_and_keeps_the_best_weights(tmp_path: Path):
    model, data = model_and_data(0.5)
    history = fit(model, data, data, SETTINGS, str(tmp_path / "logs"))
    with (tmp_path / "logs/history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(history.epoch)
    best = max(history.history["val_auc"])
    assert model.evaluate(data, verbose=0, return_dict=True)["auc"] == pytest.approx(best, abs=1e-4)
    assert list((tmp_path / "logs").glob("train/events.*"))
