"""One training process, `python -m tests.training.worker job.json`: alone, one of several workers, or a tuner.

The job names the real transformed flights, the settings, and what is to go wrong.
"""

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import keras_tuner
import numpy as np
import tensorflow as tf

from pipeline import training
from tests.scripts import load_script

SETTINGS = {
    "label": "late",
    "objective": "auc",
    "epochs": 2,
    "batch_size": 64,
    "patience": 5,
    "schedule": "cosine",
    "warmup_epochs": 0.5,
    "strategy": "one_device",
    "seed": 1,
    "classes": ["on time", "late"],
    "threshold": 0.3,
}


class KillAt(keras.callbacks.Callback):
    """Ends the process as a lost machine ends: at once."""

    def __init__(self, step: int):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if int(tf.convert_to_tensor(self.model.optimizer.iterations)) >= self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class SaveWeights(keras.callbacks.Callback):
    """Writes the final weights."""

    def __init__(self, file: str):
        super().__init__()
        self.file = file

    def on_train_end(self, logs: Any = None) -> None:
        np.savez(self.file, *self.model.get_weights())


class FitsUpTo(keras.layers.Layer):
    """Passes its input on, if that has few enough rows; else it is as if the memory was used up."""

    def __init__(self, rows: int):
        super().__init__()
        self.rows = rows

    def call(self, inputs, training=False):
        if not training:
            return inputs

        def check(rows: np.ndarray) -> np.ndarray:
            if rows > self.rows:
                raise MemoryError("not enough memory")  # TensorFlow makes a ResourceExhaustedError of it
            return rows

        rows = tf.numpy_function(check, [tf.shape(inputs)[0]], tf.int32, stateful=True)
        return inputs + 0.0 * tf.cast(tf.ensure_shape(rows, []), inputs.dtype)


class Slow(keras.layers.Layer):
    """Passes its input on; in training it takes its time, as on a machine that others use, too."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds

    def call(self, inputs, training=False):
        if not training:
            return inputs

        def take_time(zero: np.ndarray) -> np.ndarray:
            time.sleep(self.seconds)
            return zero

        return inputs + tf.ensure_shape(tf.numpy_function(take_time, [0.0 * inputs[0, 0]], tf.float32), [])


def small_model(slow: float = 0.0) -> Any:
    """Embeddings, dropout and batch normalisation: every kind of state that a checkpoint must hold."""

    def build_model(hp: keras_tuner.HyperParameters, features: training.Features) -> keras.Model:
        inputs = features.inputs()
        parts = [inputs[name] for name in features.numbers]
        for name in ("carrier", "origin"):
            parts.append(keras.layers.Flatten()(keras.layers.Embedding(features.categories[name], 4)(inputs[name])))
        hidden = keras.layers.Concatenate()(parts)
        hidden = Slow(slow)(hidden) if slow else hidden
        hidden = keras.layers.BatchNormalization()(hidden)
        hidden = keras.layers.Dense(hp.Choice("units", [8, 16, 32], default=16), "relu")(hidden)
        hidden = keras.layers.Dropout(0.2)(hidden)
        output = keras.layers.Dense(1, dtype="float32", activation="sigmoid")(hidden)
        model = keras.Model(inputs, output)
        learning_rate = hp.Choice("learning_rate", [1e-3, 1e-2], default=1e-3)
        model.compile(keras.optimizers.Adam(learning_rate), "binary_crossentropy", metrics=["auc"])
        return model

    return build_model


class Numbers(keras.layers.Layer):
    """The numbers among the features."""

    def call(self, inputs):
        return inputs["numbers"]


class Subclassed(keras.Model):
    """A model that is no graph of layers."""

    def __init__(self):
        super().__init__()
        self.numbers = Numbers()
        self.dense = keras.layers.Dense(1, "sigmoid")

    def call(self, inputs):
        return self.dense(self.numbers(inputs))


def tables(hp: keras_tuner.HyperParameters, features: training.Features) -> keras.Model:
    """A model whose categories are looked up in tables of which a step changes single rows."""
    inputs = features.inputs()
    keras.utils.set_random_seed(1)
    layers = {
        "carrier": training.embedding(features.categories["carrier"], 4),
        "origin": training.embedding(features.categories["origin"], 4, "hashed", megabytes=0.001),
    }
    found = [keras.layers.Flatten()(layer(inputs[name])) for name, layer in layers.items()]
    hidden = keras.layers.Concatenate()([*found, *(inputs[name] for name in features.numbers)])
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    model.compile(keras.optimizers.Adam(hp.Float("learning_rate", 1e-4, 1.0)), "binary_crossentropy", metrics=["auc"])
    return model


def other_model(kind: str) -> Any:
    """A Sequential or a subclassed model, or one with tables."""
    if kind == "tables":
        return tables

    def build_model(hp: keras_tuner.HyperParameters, features: training.Features) -> keras.Model:
        sequential = [Numbers(), keras.layers.Dense(1, "sigmoid")]
        model = keras.Sequential(sequential) if kind == "sequential" else Subclassed()
        model.compile("adam", "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
        return model

    return build_model


def main(job: dict[str, Any]) -> None:
    """Does what the job says."""
    if job.get("devices"):
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * job["devices"])
    if job.get("clock"):
        real_clock = time.monotonic
        time.monotonic = lambda: real_clock() * job["clock"]
    logging.basicConfig(format="%(message)s")
    for name in ("pipeline.training", "pipeline.progress"):
        logging.getLogger(name).setLevel(logging.INFO)

    hyperparameters = keras_tuner.HyperParameters()
    for name, value in job.get("hyperparameters", {}).items():
        hyperparameters.Fixed(name, value)
    folder = Path(job["folder"])
    fn_args = SimpleNamespace(
        train_files=job["train_files"],
        eval_files=job["eval_files"],
        transform_graph_path=job["transform_graph_path"],
        hyperparameters=hyperparameters.get_config() if job.get("hyperparameters") else None,
        base_model=job.get("base_model"),
        # Workers share the pipeline's folder and write there under names of their own.
        model_run_dir=str(Path(job.get("shared", folder)) / f"Trainer/model_run/{job.get('execution', 7)}"),
        serving_model_dir=str(folder / "serving"),
        working_dir=str(folder / "search"),
        custom_config={**SETTINGS, **job.get("settings", {})},
    )
    kind = job.get("model")
    build_model = (
        other_model(kind) if kind in ("sequential", "subclassed", "tables") else small_model(job.get("slow", 0.0))
    )
    if job.get("tune"):
        result = training.tune(fn_args, build_model)
        result.tuner.search(**result.fit_kwargs)
        (folder / f"best-{result.tuner.tuner_id}.json").write_text(
            json.dumps(result.tuner.get_best_hyperparameters()[0].values)
        )
    elif job.get("model") == "flights":
        load_script("models/flights.py").run_fn(fn_args)
    else:
        functions = {}
        if job.get("model") == "digits":
            digits = load_script("models/digits.py")
            build_model, functions = digits.build_model, {"decode": digits.decode, "augment": digits.augment}
        callbacks: list[keras.callbacks.Callback] = [
            keras.callbacks.ReduceLROnPlateau(monitor="val_auc", mode="max", patience=1, min_delta=1),
            SaveWeights(job["weights"]),
        ]
        if job.get("checkpoint"):
            callbacks.append(keras.callbacks.ModelCheckpoint(job["checkpoint"]))
        callbacks.append(KillAt(job.get("kill_at", sys.maxsize)))
        training.run(fn_args, build_model, callbacks, **functions)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
