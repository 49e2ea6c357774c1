"""A search of the Tuner's executor, `python -m tests.components.searching FOLDER WAY`; prints its trials, as JSON.

A process of its own, for TensorFlow has computed in that of the tests.
"""

import json
import logging
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
from tfx.types import artifact_utils
from tfx.types.standard_artifacts import Examples, HyperParameters, TransformGraph, TunerResults

from pipeline import training
from pipeline.components import tuner
from pipeline.settings.config import Label
from tests.training.test_tuning import LINEAR, transformed_rows
from tests.training.worker import SETTINGS

TRIALS = 4


def line(hp, features):
    """A line that learns; "how" says what becomes of the second trial, or of all."""
    how = os.environ["WAY"]
    inputs = features.inputs()
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(inputs["x"]))
    rate = hp.Float("rate", 1e-3, 0.1, sampling="log", default=0.01)
    model.compile(keras.optimizers.Adam(rate), "mse", metrics=[keras.metrics.RootMeanSquaredError(name="rmse")])
    if how == "none trains":
        model.optimizer.learning_rate = np.inf
    if how == "one is killed" and rate != 0.01 and not Path(os.environ["KILLED"]).exists() and in_worker():
        Path(os.environ["KILLED"]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return model


def in_worker() -> bool:
    """Returns whether this is a process that the executor has started."""
    return os.getpid() != int(os.environ["PARENT"])


def tuner_fn(fn_args):
    """Of a module file."""
    return training.tune(fn_args, line)


def artifact(kind: type, folder: Path, *splits: str):
    made = kind()
    made.uri = str(folder)
    if splits:
        made.split_names = artifact_utils.encode_split_names(list(splits))
    folder.mkdir(parents=True, exist_ok=True)
    return [made]


def main(folder: Path, way: str) -> None:
    """Searches as the executor does; "one after the other" without processes."""
    os.environ |= {"WAY": way, "PARENT": str(os.getpid()), "KILLED": str(folder / "killed")}
    (folder / "rows").mkdir(parents=True)
    made = transformed_rows(folder / "rows", Label("y", classes=()))
    for split in ("train", "eval"):
        (folder / f"examples/Split-{split}").mkdir(parents=True)
        (folder / f"examples/Split-{split}/part").write_bytes(Path(made.train_files[0]).read_bytes())
    inputs = {
        "examples": artifact(Examples, folder / "examples", "train", "eval"),
        "transform_graph": artifact(TransformGraph, folder / "rows/graph"),
    }
    best, results = artifact(HyperParameters, folder / "best"), artifact(TunerResults, folder / "results")
    settings = {
        "tuner_fn": "tests.components.searching.tuner_fn",
        "train_args": "{}",
        "eval_args": "{}",
        "custom_config": json.dumps({**SETTINGS, **LINEAR, "epochs": 2, "trials": TRIALS}),
    }
    outputs = {"best_hyperparameters": best, "tuner_results": results}
    if way == "one after the other":
        tuner.write_results(tuner.search(inputs, settings, str(folder / "search")), outputs)
    else:
        tuner.TunerExecutor().Do(inputs, outputs, settings)
    print((folder / "results/tuner_results.json").read_text().replace("\n", " "))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, force=True)
    main(Path(sys.argv[1]), sys.argv[2])
