"""Trainings that would never end."""

import logging
from collections.abc import Iterator

import keras
import keras_tuner
import pytest
import tensorflow as tf

from pipeline.components.trainer import InfiniteDataError, ReportProgress, reject_infinite_data
from pipeline.progress import LOGGER


@pytest.fixture
def model() -> keras.Model:
    return build()


def build(hp: keras_tuner.HyperParameters | None = None) -> keras.Model:
    if hp:
        hp.Choice("units", [1, 2])
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.fixture
def data() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(([[1.0], [2.0]], [[1.0], [2.0]])).batch(1)


@pytest.fixture(autouse=True)
def refused() -> Iterator[None]:
    with reject_infinite_data():
        yield


def test_data_that_repeats_needs_a_number_of_steps(model, data):
    with pytest.raises(
        InfiniteDataError,
        match=r"^Model.fit would never end: its training data repeats for ever and steps_per_epoch is not set; pass "
        r"steps_per_epoch=fn_args.train_steps$",
    ):
        model.fit(data.repeat(), epochs=2)
    with pytest.raises(InfiniteDataError, match="its validation data .* pass validation_steps=fn_args.eval_steps"):
        model.fit(data, validation_data=data.repeat().map(lambda x, y: (x, y)))
    with pytest.raises(InfiniteDataError, match=r"Model.evaluate would never end: .* pass steps=fn_args.eval_steps$"):
        model.evaluate(data.repeat())
    with pytest.raises(InfiniteDataError, match="Model.predict"):
        model.predict(data.repeat())


def test_what_has_an_end_runs_as_keras_runs_it(model, data):
    history = model.fit(data.repeat(), epochs=2, steps_per_epoch=3, validation_data=data.repeat(), validation_steps=2)
    assert len(history.history["val_loss"]) == 2
    assert model.predict(data, verbose=0).shape == (2, 1)
    assert len(model.fit(data, None, None, 3, validation_data=data).history["loss"]) == 3
    with pytest.raises(TypeError, match="unexpected keyword argument 'steps_per_epochs'"):
        model.fit(data, steps_per_epochs=3)


def test_it_tells_the_epoch_and_the_step(model, data, caplog, monkeypatch):
    monkeypatch.setattr("pipeline.progress.Progress.due", lambda self: True)
    with caplog.at_level(logging.INFO, LOGGER):
        model.fit(data, epochs=2, callbacks=keras.callbacks.History())
    told = [record.getMessage() for record in caplog.records if record.name == f"{LOGGER}.training"]
    assert told[0] == "epoch 1 of 2"
    assert any(text.startswith("epoch 2 of 2, step 2") and ", loss " in text for text in told)


def test_metrics_that_are_no_single_number_are_left_out(caplog):
    tell = ReportProgress()
    tell.set_params({"epochs": 1, "steps": None})
    with caplog.at_level(logging.INFO, LOGGER):
        tell.on_train_batch_end(8, {"loss": 0.5, "by_class": [0.1, 0.2]})
    assert [record.getMessage() for record in caplog.records] == ["epoch 1 of 1, step 9, loss 0.5000"]


def test_a_search_ends_at_the_first_trial(data, tmp_path):
    tuner = keras_tuner.RandomSearch(build, objective="val_loss", max_trials=2, directory=tmp_path)
    remedy = 'add "validation_steps": fn_args.eval_steps to the fit_kwargs of tuner_fn'
    with reject_infinite_data(tuner), pytest.raises(InfiniteDataError, match=remedy):
        tuner.search(data, validation_data=data.repeat())


def test_keras_is_itself_again_afterwards():
    with reject_infinite_data():
        pass
    assert "fit" in vars(keras.Model)  # of the fixture
    outer = keras.Model.fit
    with reject_infinite_data():
        assert keras.Model.fit is not outer
    assert keras.Model.fit is outer
