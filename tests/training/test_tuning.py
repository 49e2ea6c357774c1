"""The search tries the defaults first, trains in the project's loop, and goes on after a failed trial."""

import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import keras
import keras_tuner
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_data_validation as tfdv
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx.types import standard_artifacts

from pipeline import training
from pipeline.components.trainer import reject_infinite_data
from pipeline.components.tuner import write_results
from pipeline.settings.config import Label
from pipeline.training import tuning
from pipeline.training.errors import TrainingError
from pipeline.training.tuning import DefaultsFirst
from tests.training.processes import Data, finish, free_ports, logs, start
from tests.training.worker import SETTINGS, small_model


@pytest.mark.slow
def test_the_first_trial_takes_the_defaults_and_the_others_search(tmp_path):
    def build(hp):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(hp.Int("units", 1, 1000, default=7))])
        model.compile(loss="mse")
        hp.Float("rate", 0.0, 1.0, default=0.25)
        return model

    tuner = keras_tuner.Tuner(
        oracle=DefaultsFirst(objective=keras_tuner.Objective("val_loss", "min"), max_trials=4, seed=1),
        hypermodel=build,
        directory=tmp_path,
    )
    x = np.ones((4, 2), "float32")
    tuner.search(x, x[:, :1], validation_data=(x, x[:, :1]), epochs=1, verbose=0)
    values = [tuner.oracle.trials[name].hyperparameters.values for name in tuner.oracle.start_order]
    assert len(values) == 4
    assert values[0] == {"units": 7, "rate": 0.25}
    assert len({value["units"] for value in values}) == 4


def tuner_of(transformed: Data, folder, build_model, trials: int, **settings):
    custom_config = {**SETTINGS, "epochs": 1, "trials": trials, **settings}
    fn_args = SimpleNamespace(**vars(transformed), working_dir=str(folder), custom_config=custom_config)
    return training.tune(fn_args, build_model)


def transformed_rows(folder: Path, label: Label) -> Data:
    """Write transformed examples of one feature that decides the label, and the schema that Transform writes."""
    x = np.linspace(-1, 1, 64, dtype="float32")
    y = x * 3 if label.task == "regression" else np.digitize(x, [-0.3, 0.3])
    with tf.io.TFRecordWriter(str(folder / "rows")) as writer:
        for x_value, y_value in zip(x, y, strict=True):
            kind = {"float_list": {"value": [y_value]}} if y.dtype.kind == "f" else {"int64_list": {"value": [y_value]}}
            features = {"x": {"float_list": {"value": [x_value]}}, "y": kind}
            writer.write(tf.train.Example(features={"feature": features}).SerializeToString())
    presence = "shape { dim { size: 1 } } presence { min_fraction: 1.0 min_count: 1 }"
    kind_of_label = "FLOAT" if y.dtype.kind == "f" else "INT"
    schema = f'feature {{ name: "x" type: FLOAT {presence} }} feature {{ name: "y" type: {kind_of_label} {presence} }}'
    (folder / "graph/transformed_metadata").mkdir(parents=True)
    tfdv.write_schema_text(
        text_format.Parse(schema, schema_pb2.Schema()), str(folder / "graph/transformed_metadata/schema.pbtxt")
    )
    return Data([f"{folder}/rows"], [f"{folder}/rows"], str(folder / "graph"))


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "objective"), [(("low", "middle", "high"), "loss"), ((), "rmse")])
def test_a_search_chooses_the_lowest_loss_or_error(tmp_path, caplog, classes, objective):
    """Of labels of several classes and of numbers."""
    label = Label("y", classes=classes)

    def build_model(hp, features):
        inputs = features.inputs()
        output = keras.layers.Dense(3, "softmax") if classes else keras.layers.Dense(1)
        model = keras.Model(inputs, output(inputs["x"]))
        rate = hp.Choice("rate", [1e-9, 0.01, 0.1], default=1e-9)  # the first trial learns nothing
        loss = "sparse_categorical_crossentropy" if classes else "mse"
        metrics = [] if classes else [keras.metrics.RootMeanSquaredError(name="rmse")]
        model.compile(keras.optimizers.Adam(rate), loss, metrics=metrics)
        return model

    result = tuner_of(
        transformed_rows(tmp_path, label),
        tmp_path / "search",
        build_model,
        trials=3,
        objective=objective,
        label="y",
        classes=classes,
        epochs=2,
        batch_size=8,
    )
    with caplog.at_level(logging.INFO, "pipeline.progress"):
        result.tuner.search(**result.fit_kwargs)
    scores = [trial.score for trial in result.tuner.oracle.trials.values()]
    assert max(scores) == scores[0]
    best = result.tuner.oracle.get_best_trials(1)[0]
    assert best.score == min(scores)
    assert result.tuner.get_best_hyperparameters()[0].get("rate") == best.hyperparameters.get("rate") != 1e-9
    (last,) = (record.getMessage() for record in caplog.records if "trial 3 of 3" in record.getMessage())
    assert last == f"trial 3 of 3, best {objective} so far {min(scores[:2]):.4f} (the defaults: {scores[0]:.4f})"


@pytest.mark.slow
def test_a_trial_with_values_from_outside_needs_no_earlier_trial(tmp_path):
    """Run a trial as in Vertex AI Vizier, where the oracle of each process has no earlier trial."""

    def build_model(hp, features):
        inputs = features.inputs()
        model = keras.Model(inputs, keras.layers.Dense(1)(inputs["x"]))
        model.compile("sgd", "mse", metrics=[keras.metrics.RootMeanSquaredError(name="rmse")])
        return model

    rows = transformed_rows(tmp_path, Label("y", classes=()))
    settings = {"objective": "rmse", "label": "y", "classes": (), "batch_size": 8}
    result = tuner_of(rows, tmp_path / "search", build_model, trials=1, **settings)
    trial = keras_tuner.engine.trial.Trial(result.tuner.oracle.get_space(), trial_id="7")
    epochs = []
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epochs.append(logs["val_rmse"]))
    assert result.tuner.run_trial(trial, callbacks=[callback])["val_rmse"] == epochs[0] > 0


def linear(hp, features):
    """Build a linear model with a learning rate between nearly 0 and a good one."""
    inputs = features.inputs()
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(inputs["x"]))
    rate = hp.Float("rate", 1e-9, 0.1, sampling="log", default=0.01)
    model.compile(keras.optimizers.Adam(rate), "mse", metrics=[keras.metrics.RootMeanSquaredError(name="rmse")])
    return model


LINEAR = {"objective": "rmse", "label": "y", "classes": (), "batch_size": 8}


@pytest.mark.slow
def test_trials_that_do_not_learn_are_stopped_and_the_best_is_the_same_as_when_all_are_trained(tmp_path, caplog):
    rows = transformed_rows(tmp_path, Label("y", classes=()))
    tuner = tuner_of(rows, tmp_path / "search", linear, trials=6, epochs=4, **LINEAR).tuner
    with caplog.at_level(logging.INFO, "pipeline"):
        tuner.search()
    trials = tuner.oracle.trials.values()
    epochs = {trial.trial_id: len(trial.metrics.get_history("val_rmse")) for trial in trials}
    assert tuner.oracle.stopped
    for name, reason in tuner.oracle.stopped.items():
        assert reason == f"below the median after epoch {epochs.pop(name)}"
    assert set(epochs.values()) == {4}
    in_full = {trial.trial_id: tuner.run_trial(trial, callbacks=())["val_rmse"] for trial in trials}
    assert tuner.oracle.get_best_trials(1)[0].trial_id == min(in_full, key=in_full.get)
    (last,) = (record.getMessage() for record in caplog.records if "search has ended" in record.getMessage())
    assert last.endswith(f", {len(tuner.oracle.stopped)} stopped early.")

    _, written = written_results(tuner, tmp_path)
    assert {row["trial_id"]: row["stopped"] for row in written if row["stopped"]} == tuner.oracle.stopped
    assert written[0]["stopped"] is None


def stock_tuner(kind: type, folder: Path, **settings) -> keras_tuner.Tuner:
    """Return a tuner as a module file for stock TFX makes it, after its search of four rates."""

    def build(hp):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(hp.Choice("rate", [0.5, 0.1, 0.01, 0.001])), "mse")
        return model

    tuner = kind(build, objective="val_loss", directory=folder, project_name="search", **settings)
    x = np.linspace(-1, 1, 32, dtype="float32")[:, None]
    with reject_infinite_data(tuner):
        tuner.search(x, 3 * x, validation_data=(x, 3 * x), epochs=2, verbose=0)
    return tuner


def written_results(tuner: keras_tuner.Tuner, folder: Path) -> tuple[dict, list[dict]]:
    best, results = standard_artifacts.HyperParameters(), standard_artifacts.TunerResults()
    best.uri, results.uri = str(folder / "best"), str(folder / "results")
    write_results(tuner, {"best_hyperparameters": [best], "tuner_results": [results]})
    return (
        json.loads((folder / "best/best_hyperparameters.txt").read_text()),
        json.loads((folder / "results/tuner_results.json").read_text()),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (keras_tuner.Hyperband, {"max_epochs": 4, "factor": 3}),
        pytest.param(keras_tuner.GridSearch, {}, marks=pytest.mark.long),
        pytest.param(keras_tuner.RandomSearch, {"max_trials": 3}, marks=pytest.mark.long),
    ],
)
def test_the_results_of_a_tuner_of_stock_keras_tuner_are_written(kind, settings, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "pipeline.progress"):
        tuner = stock_tuner(kind, tmp_path, **settings)

    best, rows = written_results(tuner, tmp_path)

    of = f" of {settings['max_trials']}" if "max_trials" in settings else ""
    assert f"trial 1{of}" in [record.getMessage() for record in caplog.records]
    assert len(rows) == len(tuner.oracle.trials) > 2
    assert [row["score"] for row in rows] == sorted(row["score"] for row in rows)
    assert keras_tuner.HyperParameters.from_config(best).get("rate") == rows[0]["rate"]


@pytest.mark.slow
def test_a_stock_tuner_without_a_trial_that_trains_is_an_error_and_not_a_result(tmp_path):
    class Failing(keras_tuner.RandomSearch):
        def run_trial(self, trial, *arguments, **named):
            raise keras_tuner.errors.FailedTrialError("no such device")

    with pytest.raises(TrainingError, match="every trial of the search failed. no such device"):
        written_results(stock_tuner(Failing, tmp_path, max_trials=2), tmp_path)


@pytest.mark.slow
def test_a_search_with_little_time_trains_the_defaults_to_their_end_and_no_others(tmp_path):
    rows = transformed_rows(tmp_path, Label("y", classes=()))
    tuner = tuner_of(rows, tmp_path / "search", linear, trials=50, epochs=4, minutes=1e-4, **LINEAR).tuner
    tuner.search()
    (trial,) = tuner.oracle.trials.values()
    assert [observed.step for observed in trial.metrics.get_history("val_rmse")] == [1, 2, 3, 4]
    assert tuner.get_best_hyperparameters()[0].get("rate") == 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "trained_on", "judged_on"),
    [(None, 640, 320), (640, 640, 320), (200, 256, 128), (1, 64, 64)],  # 64 rows a file
)
def test_a_search_learns_from_whole_files_with_about_so_many_rows(rows, trained_on, judged_on, tmp_path, caplog):
    one = transformed_rows(tmp_path, Label("y", classes=()))
    (source,) = one.train_files
    for split, files in (("train", 10), ("eval", 5)):
        (tmp_path / split).mkdir()
        for number in range(files):
            shutil.copy(source, tmp_path / split / f"part-{number:05d}")
    data = Data([f"{tmp_path}/train/*"], [f"{tmp_path}/eval/*"], one.transform_graph_path)
    with caplog.at_level(logging.INFO, "pipeline.training"):
        tuner = tuner_of(data, tmp_path / "search", linear, trials=1, search_rows=rows, **LINEAR).tuner
        assert [split.examples for split in tuner._splits] == [trained_on, judged_on]
    told = [record.getMessage() for record in caplog.records if "tuning.rows" in record.getMessage()]
    assert len(told) == (trained_on < 640)
    if rows == 200:
        assert told[0].startswith("The search reads 4 of 10 files of the train split, tuning.rows=200 of about 6")
        assert tuning.part_of(data.train_files, data.eval_files, rows)[0] == [
            f"{tmp_path}/train/part-{number:05d}" for number in (0, 2, 5, 7)
        ]


@pytest.mark.slow
def test_failed_trials_are_recorded_and_the_search_goes_on(transformed, tmp_path):
    build_small = small_model()

    def build_model(hp, features):
        model = build_small(hp, features)
        if hp.Choice("breaks", [False, True], default=True):
            model.optimizer.learning_rate = np.inf
        return model

    result = tuner_of(transformed, tmp_path, build_model, trials=4)
    result.tuner.search(**result.fit_kwargs)
    trials = result.tuner.oracle.trials.values()
    failed = [trial for trial in trials if trial.status == "FAILED"]
    assert failed
    assert all(trial.hyperparameters.get("breaks") for trial in failed)
    assert "the loss is" in failed[0].message
    assert not result.tuner.get_best_hyperparameters()[0].get("breaks")


@pytest.mark.slow
def test_a_search_without_a_model_that_trains_is_an_error(transformed, tmp_path):
    def build_model(hp, features):
        model = small_model()(hp, features)
        model.optimizer.learning_rate = np.inf
        return model

    result = tuner_of(transformed, tmp_path, build_model, trials=2)
    with pytest.raises(TrainingError, match=r"every trial of the search failed. trial 1 with .*: the loss is"):
        result.tuner.search(**result.fit_kwargs)


@pytest.mark.slow
def test_a_chief_hands_the_trials_out_to_workers_in_other_processes(transformed, tmp_path):
    """Use the process layout of TFX's Tuner on Vertex AI."""
    (port,) = free_ports(1)
    processes = [
        start(
            transformed,
            tmp_path / "search",
            {
                "KERASTUNER_TUNER_ID": name,
                "KERASTUNER_ORACLE_IP": "127.0.0.1",
                "KERASTUNER_ORACLE_PORT": str(port),
                # Vertex AI sets it in every process, and here it does not mean training together.
                "TF_CONFIG": json.dumps(
                    {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}}
                ),
            },
            tune=True,
            settings={"epochs": 1, "trials": 4},
        )
        for name in ("chief", "tuner0", "tuner1")
    ]
    assert finish(*processes) == [0, 0, 0], logs(tmp_path / "search")
    assert json.loads((tmp_path / "search/best-chief.json").read_text())["units"] in (8, 16, 32)
    trained = [
        json.loads(file.read_text()) for file in sorted((tmp_path / "search/search/search").glob("trial_*/trial.json"))
    ]
    assert [trial["status"] for trial in trained] == ["COMPLETED"] * 4
    said = [file.read_text().count(": val_auc ") for file in tmp_path.glob("*-search.log")]
    assert sorted(said) == [0, *sorted(said)[1:]]
    assert sum(said) == 4
