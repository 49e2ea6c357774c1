"""The search for hyperparameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import keras_tuner
import tensorflow_transform as tft
from keras_tuner.engine.trial import TrialStatus

from pipeline.training import strategy
from pipeline.training.features import Features
from pipeline.training.loop import standard_callbacks
from pipeline.training.run import BuildModel, datasets, logger
from pipeline.training.settings import Settings


class TunerFnResult(NamedTuple):
    """What a ``tuner_fn`` returns to TFX's Tuner, which calls ``tuner.search(**fit_kwargs)``."""

    tuner: keras_tuner.Tuner
    fit_kwargs: dict[str, Any]


class DefaultsFirst(keras_tuner.oracles.RandomSearchOracle):
    """Random search whose first trial takes the defaults, so that a search never ends below them by bad luck."""

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Returns the values of the next trial."""
        if not self.start_order:
            values = {hp.name: hp.default for hp in self.get_space().space}
            return {"status": TrialStatus.RUNNING, "values": values}
        return super().populate_space(trial_id)


def tune(fn_args: Any, build_model: BuildModel) -> TunerFnResult:
    """Prepares the search that TFX's Tuner runs: random values of every ``hp`` that ``build_model`` asks for.

    Args:
        fn_args: What TFX passes to ``tuner_fn``.
        build_model: Builds and compiles a model from hyperparameters and features; the same one as for ``run``.
    """
    settings = Settings.of(fn_args)
    keras.utils.set_random_seed(settings.seed)
    distribution, reason = strategy.choose(settings.strategy)
    logger.info(reason)
    transform_output = tft.TFTransformOutput(fn_args.transform_graph_path)
    features = Features.of(transform_output, settings.label)
    train, evaluate = datasets(fn_args, transform_output, settings, distribution.num_replicas_in_sync)
    tuner = keras_tuner.Tuner(
        oracle=DefaultsFirst(
            objective=keras_tuner.Objective(f"val_{settings.objective}", "max"),
            max_trials=settings.trials,
            seed=settings.seed,
        ),
        hypermodel=lambda hp: build_model(hp, features),
        distribution_strategy=distribution,
        directory=fn_args.working_dir,
        project_name="search",
    )
    return TunerFnResult(
        tuner,
        {
            "x": train,
            "validation_data": evaluate,
            "epochs": settings.epochs,
            "callbacks": standard_callbacks(settings),
            "verbose": 2,
        },
    )
