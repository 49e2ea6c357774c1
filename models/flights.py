"""Flights: the probability that a flight arrives 15 or more minutes late.

This is the file to edit. TFX calls ``preprocessing_fn`` in Transform, ``tuner_fn`` in the Tuner and ``run_fn`` in the
Trainer; each step runs again only when code that it uses has changed.
"""

import keras
import tensorflow as tf
import tensorflow_transform as tft
from keras import layers

from pipeline import training

# These three tell one day from another and are used for nothing else: see day_offset in build_model.
CALENDAR = ("year", "month", "day")
# A rarer value of a text column is treated like one never seen.
MINIMUM_COUNT = 20


def preprocessing_fn(inputs, custom_config):
    """Raw features → model features, in training and serving alike. The kind of each comes from its type in the schema.

    Text becomes its number in a vocabulary, with the last number for what the vocabulary lacks. Integers and floats
    become one vector of normalised numbers, with a second vector that says which optional ones are missing.
    """
    outputs = {
        "date": vocabulary(tf.strings.join([tf.strings.as_string(inputs[name]) for name in CALENDAR], "-"), "date")
    }
    numbers, optional = [], []
    for name, value in sorted(inputs.items()):
        if name == custom_config["label"]:
            outputs[name] = value
        elif value.dtype == tf.string:
            outputs[name] = vocabulary(dense(value, "missing"), name)
        elif name not in CALENDAR:
            number = tf.cast(dense(value, float("nan")), tf.float32)
            numbers.append(number)
            if isinstance(value, tf.SparseTensor):
                optional.append(tf.math.is_nan(number))

    raw = tf.concat(numbers, axis=1)  # [batch, numbers], missing is NaN
    # Colder than nearly ever is taken as that cold: a network extrapolates badly.
    percentiles = tft.quantiles(raw, num_buckets=100, epsilon=0.001, reduce_instance_dims=False)  # [numbers, 99]
    scaled = tft.scale_to_z_score(tf.clip_by_value(raw, percentiles[:, 0], percentiles[:, -1]), elementwise=True)
    outputs["numbers"] = tf.where(tf.math.is_nan(raw), 0.0, scaled)  # 0 is the mean
    outputs["missing"] = tf.cast(tf.concat(optional, axis=1), tf.float32)
    return outputs


def vocabulary(value, name):
    """Text [batch, 1] → its place in the vocabulary of the train split, most frequent first."""
    return tft.compute_and_apply_vocabulary(
        value, frequency_threshold=MINIMUM_COUNT, num_oov_buckets=1, vocab_filename=name
    )


def dense(value, missing):
    """[batch, 1], with ``missing`` where an optional feature has no value."""
    if not isinstance(value, tf.SparseTensor):
        return value
    if value.dtype != tf.string:
        value = tf.cast(value, tf.float32)
    return tf.sparse.to_dense(tf.SparseTensor(value.indices, value.values, [value.dense_shape[0], 1]), missing)


def build_model(hp, features):
    """A few small networks side by side, averaged; ``hp`` names what the Tuner may vary, and the default of each."""
    units = hp.Choice("units", [32, 64, 128], default=64)
    dropout = hp.Float("dropout", 0.0, 0.4, step=0.1, default=0.1)
    towers = hp.Int("towers", 2, 6, step=2, default=4)
    learning_rate = hp.Float("learning_rate", 2e-3, 1e-2, sampling="log", default=5e-3)

    inputs = features.inputs()
    sizes = dict(features.categories)
    days = sizes.pop("date")
    parts = [inputs[name] for name in features.numbers]
    for name, size in sizes.items():
        embedding = layers.Embedding(size, min(16, 2 + int(size**0.5)))
        parts.append(layers.Flatten()(embedding(inputs[name])))  # [batch, embedding]
    x = layers.Concatenate()(parts)

    logits = []
    for _ in range(towers):
        hidden = x
        for width in (units, units // 2):
            hidden = layers.Dropout(dropout)(layers.Dense(width, activation="relu")(hidden))
        logits.append(layers.Dense(1)(hidden))

    # Flights of one day share storms and strikes that no column tells. An offset for each day of the train split keeps
    # the networks from explaining them; a day not seen there, so every day in serving, has the initial offset of 0.
    day_offset = layers.Flatten()(layers.Embedding(days, 1, embeddings_initializer="zeros")(inputs["date"]))
    logit = layers.Add()([layers.Average()(logits), day_offset])

    model = keras.Model(inputs, layers.Activation("sigmoid", dtype="float32")(logit))
    model.compile(
        optimizer=keras.optimizers.AdamW(learning_rate, weight_decay=1e-4),
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
