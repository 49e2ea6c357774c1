"""The search tries the defaults first, then others."""

from __future__ import annotations

import keras
import keras_tuner
import numpy as np

from pipeline.training.tuning import DefaultsFirst


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
