"""models/flights.py as a module file of stock TFX: fed by ``tf_dataset_factory`` and trained by a plain Keras ``fit``.

benchmarks/end_to_end.py copies it into the folder of flights.py. Features, model, search space, trials, epochs and
learning rates are the same. Where TFX's examples differ, this file follows them.
"""

import math
from typing import NamedTuple

import flights
import keras
import keras_tuner
import tensorflow_transform as tft
from flights import preprocessing_fn  # noqa: F401 Transform takes it from here
from tfx_bsl.public import tfxio

from pipeline.training.answers import Answers
from pipeline.training.export import export
from pipeline.training.features import Features
from pipeline.training.tuning import DefaultsFirst


class TunerFnResult(NamedTuple):
    """Result of ``tuner_fn`` for TFX's Tuner."""

    tuner: keras_tuner.Tuner
    fit_kwargs: dict


class WarmupCosine(keras.callbacks.Callback):
    """The learning rate of pipeline.training: rises over a part of an epoch, then falls along a cosine to 5 %."""

    def __init__(self, epochs, steps, warmup_epochs):
        super().__init__()
        self.warmup, self.last = warmup_epochs * steps, epochs * steps

    def on_train_begin(self, logs=None):
        """Read the peak learning rate."""
        self.peak, self.step = float(self.model.optimizer.learning_rate), 0

    def on_train_batch_begin(self, batch, logs=None):
        """Set the learning rate of the next step."""
        progress = min(1.0, max(0.0, (self.step - self.warmup) / max(1.0, self.last - self.warmup)))
        falling = 0.05 + 0.95 * (1 + math.cos(math.pi * progress)) / 2
        self.model.optimizer.learning_rate = self.peak * min((self.step + 1) / max(1.0, self.warmup), falling)
        self.step += 1


def input_fn(fn_args, patterns, output, batch_size, num_epochs):
    """Return batches as in TFX's documentation."""
    options = tfxio.TensorFlowDatasetOptions(
        batch_size=batch_size, label_key=fn_args.custom_config["label"], num_epochs=num_epochs
    )
    return fn_args.data_accessor.tf_dataset_factory(patterns, options, output.transformed_metadata.schema)


def fit_arguments(fn_args):
    """Return the arguments of every fit: the same steps as ours."""
    settings = fn_args.custom_config
    keras.utils.set_random_seed(settings["seed"])
    output = tft.TFTransformOutput(fn_args.transform_graph_path)
    steps = math.ceil(settings["train_examples"] / settings["batch_size"])
    return output, {
        "x": input_fn(fn_args, fn_args.train_files, output, settings["batch_size"], None),
        "steps_per_epoch": steps,
        "validation_data": input_fn(fn_args, fn_args.eval_files, output, 4 * settings["batch_size"], 1),
        "epochs": settings["epochs"],
        "verbose": 2,
        "callbacks": [
            WarmupCosine(settings["epochs"], steps, settings["warmup_epochs"]),
            keras.callbacks.EarlyStopping(
                monitor="val_auc", mode="max", patience=settings["patience"], restore_best_weights=True
            ),
        ],
    }


def tuner_fn(fn_args):
    """Run the same search as ours, with every trial trained to its end."""
    output, arguments = fit_arguments(fn_args)
    settings = fn_args.custom_config
    features = Features.of(output, settings["label"])
    tuner = keras_tuner.Tuner(
        oracle=DefaultsFirst(
            objective=keras_tuner.Objective("val_auc", "max"), max_trials=settings["trials"], seed=settings["seed"]
        ),
        hypermodel=lambda hp: flights.build_model(hp, features),
        directory=fn_args.working_dir,
        project_name="search",
    )
    return TunerFnResult(tuner, arguments)


def run_fn(fn_args):
    """Train with the best hyperparameters and export the model."""
    output, arguments = fit_arguments(fn_args)
    settings = fn_args.custom_config
    hyperparameters = keras_tuner.HyperParameters.from_config(fn_args.hyperparameters)
    model = flights.build_model(hyperparameters, Features.of(output, settings["label"]))
    model.fit(**arguments)
    export(
        model,
        output,
        fn_args.serving_model_dir,
        label=settings["label"],
        answers=Answers(settings["classes"], settings["threshold"]),
    )
