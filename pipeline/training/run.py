"""The final training: best hyperparameters in, served model out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import keras_tuner
import tensorflow as tf
import tensorflow_transform as tft

from pipeline.training import strategy
from pipeline.training.export import export
from pipeline.training.features import Features
from pipeline.training.input_pipeline import dataset
from pipeline.training.loop import fit
from pipeline.training.settings import Settings

logger = logging.getLogger("pipeline.training")

BuildModel = Callable[[keras_tuner.HyperParameters, Features], keras.Model]


def run(fn_args: Any, build_model: BuildModel) -> None:
    """Trains one model and exports it to ``fn_args.serving_model_dir``.

    Args:
        fn_args: What TFX passes to ``run_fn``. Without ``hyperparameters`` the defaults in ``build_model`` are taken.
        build_model: Builds and compiles a model that maps {name: [batch, 1]} to the probability of class 1, [batch, 1].
    """
    settings = Settings.of(fn_args)
    keras.utils.set_random_seed(settings.seed)
    distribution, reason = strategy.choose(settings.strategy)
    logger.info(reason)
    transform_output = tft.TFTransformOutput(fn_args.transform_graph_path)
    train, evaluate = datasets(fn_args, transform_output, settings, distribution.num_replicas_in_sync)
    hyperparameters = (
        keras_tuner.HyperParameters.from_config(fn_args.hyperparameters)
        if fn_args.hyperparameters
        else keras_tuner.HyperParameters()
    )
    with distribution.scope():
        model = build_model(hyperparameters, Features.of(transform_output, settings.label))
    logger.info("Hyperparameters: %s", hyperparameters.values)
    fit(model, train, evaluate, settings, fn_args.model_run_dir)
    export(
        model,
        transform_output,
        fn_args.serving_model_dir,
        label=settings.label,
        classes=settings.classes,
        threshold=settings.threshold,
    )


def datasets(
    fn_args: Any, transform_output: tft.TFTransformOutput, settings: Settings, replicas: int
) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """The train split, shuffled, and the eval split, in batches for all replicas together."""
    batch_size = settings.batch_size * replicas
    spec = transform_output.transformed_feature_spec()
    return (
        dataset(fn_args.train_files, spec, settings.label, batch_size, shuffle_seed=settings.seed),
        dataset(fn_args.eval_files, spec, settings.label, batch_size * 4),
    )
