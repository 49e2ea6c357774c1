"""Flights: the probability that a flight arrives 15 or more minutes late.

This is the file to edit. TFX calls ``preprocessing_fn`` in Transform, ``tuner_fn`` in the Tuner, ``run_fn`` in the
Trainer; each step runs again only when code it uses has changed.
"""

import keras
import tensorflow as tf
import tensorflow_transform as tft

from pipeline import training

QUANTILES = 16


def preprocessing_fn(inputs, custom_config):
    """Raw features → model features, the same in training and serving. Kinds come from the schema's types."""
    outputs = {}
    for name, value in inputs.items():
        if name == custom_config["label"]:
            outputs[name] = value
        elif value.dtype == tf.string:
            outputs[name] = tft.compute_and_apply_vocabulary(
                dense(value, ""), num_oov_buckets=1, frequency_threshold=100, vocab_filename=name
            )
        else:
            number = tf.cast(dense(value, float("nan")), tf.float32)
            missing = tf.math.is_nan(number)
            outputs[name] = tf.where(missing, 0.0, tft.scale_to_z_score(number))
            outputs[f"{name}_missing"] = tf.cast(missing, tf.float32)
    return outputs


def dense(value, missing):
    """[batch, 1] with ``missing`` where an optional feature has no value."""
    if not isinstance(value, tf.SparseTensor):
        return value
    if value.dtype.is_integer:
        value = tf.cast(value, tf.float32)
    return tf.sparse.to_dense(tf.SparseTensor(value.indices, value.values, [value.dense_shape[0], 1]), missing)


def build_model(hp, features):
    """A small network; ``hp`` names what the Tuner may vary and the default of each."""
    inputs = features.inputs()
    width = hp.Choice("width", [32, 64, 128], default=64)
    parts = [inputs[name] for name in features.numbers]
    for name, size in features.categories.items():
        parts.append(keras.layers.Flatten()(keras.layers.Embedding(size, min(16, size))(inputs[name])))
    x = keras.layers.Concatenate()(parts)
    for _ in range(2):
        x = keras.layers.Dense(width, activation="relu")(x)
        x = keras.layers.Dropout(hp.Float("dropout", 0.0, 0.5, step=0.1, default=0.3))(x)
    output = keras.layers.Dense(1, activation="sigmoid")(x)
    model = keras.Model(inputs, output)
    model.compile(
        optimizer=keras.optimizers.Adam(hp.Float("learning_rate", 3e-4, 1e-2, sampling="log", default=1e-3)),
        loss="binary_crossentropy",
        metrics=[keras.metrics.AUC(name="auc")],
    )
    return model


def tuner_fn(fn_args):
    """Searches the values that ``build_model`` leaves open."""
    return training.tune(fn_args, build_model)


def run_fn(fn_args):
    """Trains with the best values found, and exports."""
    training.run(fn_args, build_model)
