"""The state of a training on disk: what comes back, whose it is, and what of a callback belongs to it."""

import dataclasses
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.training import strategy
from pipeline.training.checkpoint import Checkpoints, state_of, variables_of

CHIEF = strategy.choose("one_device")
WORKER = dataclasses.replace(CHIEF, worker=1)
VALUES = {
    "epoch": 3,
    "seconds": 0.5,
    "name": "a",
    "stopped": False,
    "nothing": None,
    "nested": [{"first": np.arange(6.0).reshape(2, 3)}, {"second": [np.array([True]), np.array(7)]}],
    "scalars": [np.float32(0.25), np.int64(2)],
}


def kept(folder: Path, *variables: tf.Variable, distribution: strategy.Distribution = CHIEF) -> Checkpoints:
    return Checkpoints(str(folder), variables, distribution)


def test_variables_and_values_come_back_in_another_training(tmp_path):
    one, other = tf.Variable([1.0, 2.0]), tf.Variable([0.0, 0.0])
    kept(tmp_path / "a", one).save(VALUES)
    found = kept(tmp_path / "a", other).restore()
    assert other.numpy().tolist() == [1.0, 2.0]
    (first, second), scalars = found.pop("nested"), found.pop("scalars")
    assert found == {name: value for name, value in VALUES.items() if name not in ("nested", "scalars")}
    assert scalars == [0.25, 2]
    np.testing.assert_array_equal(first["first"], np.arange(6.0).reshape(2, 3))
    assert second["second"][0].tolist() == [True]
    assert second["second"][1] == 7


def test_without_a_checkpoint_there_is_nothing_and_nothing_changes(tmp_path):
    variable = tf.Variable([1.0])
    assert kept(tmp_path / "none", variable).restore() is None
    assert variable.numpy().tolist() == [1.0]


def test_the_last_of_several_is_kept_alone(tmp_path):
    variable = tf.Variable(0)
    checkpoints = kept(tmp_path / "a", variable)
    for number in range(3):
        variable.assign(number)
        checkpoints.save({"number": number})
    assert len(list((tmp_path / "a").glob("*.index"))) == 1
    assert kept(tmp_path / "a", tf.Variable(9)).restore() == {"number": 2}


def test_another_training_s_variables_are_no_checkpoint_of_this_one(tmp_path):
    kept(tmp_path / "a", tf.Variable([1.0])).save({})
    with pytest.raises((AssertionError, ValueError)):
        kept(tmp_path / "a", tf.Variable([1.0]), tf.Variable([2.0])).restore()


def test_what_cannot_be_kept_is_named(tmp_path):
    with pytest.raises(TypeError, match="a checkpoint cannot hold set"):
        kept(tmp_path / "a", tf.Variable(1)).save({"a": {1}})


def test_all_read_what_the_chief_saves_and_a_worker_deletes_its_own(tmp_path):
    folder = tmp_path / "a"
    kept(folder, tf.Variable(1)).save({"of": "chief"})
    worker = kept(folder, tf.Variable(2), distribution=WORKER)
    worker.save({"of": "worker"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a-worker-1"]
    assert worker.restore() == {"of": "chief"}
    worker.delete()
    worker.delete()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    kept(folder, distribution=CHIEF).delete()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_everything_that_training_changes_is_kept_once():
    inputs = keras.Input((2,))
    hidden = keras.layers.Dropout(0.5)(keras.layers.BatchNormalization()(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.Adam(), "mse", metrics=[keras.metrics.MeanAbsoluteError()])
    model.fit(np.ones((4, 2)), np.ones(4), verbose=0)
    found = [id(variable) for variable in variables_of(model)]
    assert len(set(found)) == len(found)
    wanted = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    assert {id(variable.value) for variable in wanted} == set(found)
    assert any("seed" in variable.path for variable in model.variables)


def test_of_a_callback_numbers_that_changed_are_its_state():
    callback = keras.callbacks.EarlyStopping(monitor="val_auc", patience=3)
    callback.set_params({"epochs": 3})
    at_start = state_of(callback)
    assert "monitor" not in at_start, "text is for the new process to set"
    assert "params" not in at_start
    assert at_start["patience"] == 3
    callback.wait, callback.best, callback.best_weights = 2, 0.7, [np.ones(2)]
    callback.of_rows = {"rows": 3, "more": [1, None]}
    callback.by_number = {1: 2}
    callback.mixed = [1, "text"]
    found = state_of(callback, at_start)
    assert set(found) == {"wait", "best", "best_weights", "of_rows"}
    callback.of_rows = found["of_rows"]
    assert set(state_of(callback, state_of(callback))) == set()


def test_a_list_that_begins_with_the_same_numbers_is_still_a_state():
    callback = keras.callbacks.Callback()
    callback.losses = [1.0]
    at_start = state_of(callback)
    callback.losses = [1.0]
    assert state_of(callback, at_start) == {"losses": [1.0]}
