"""Flights: the probability that a flight arrives 15 or more minutes late.

This is the file to edit. TFX calls ``preprocessing_fn`` in Transform, ``tuner_fn`` in the Tuner and ``run_fn`` in the
Trainer; each step runs again only when code that it uses has changed.
"""

import math

import keras
import tensorflow as tf
import tensorflow_transform as tft
from keras import layers

from pipeline import training
from pipeline.training import tabular

# A rarer value of a text column is treated like one never seen.
MINIMUM_COUNT = 20


def preprocessing_fn(inputs, custom_config):
    """Raw features → model features, in training and serving alike. The kind of each comes from its type in the schema.

    Text becomes its number in a vocabulary, with the last number for what the vocabulary lacks. Integers and floats
    become one vector of normalised numbers, with a second vector that says which optional ones are missing.
    """
    label = custom_config["label"]
    outputs = {label: inputs[label]}
    features = {name: dense(value) for name, value in inputs.items() if name not in (label, *CALENDAR)}
    more = derived(inputs, features)
    for name, value in {**features, **more}.items():
        if value.dtype == tf.string:
            outputs[name] = vocabulary(value, name)

    raw = tf.concat(numbers(features), axis=1)  # [batch, numbers], missing is NaN
    # Colder than nearly ever is taken as that cold: a network extrapolates badly. What is derived has bounds already,
    # and may be rare: snow falls on less than 1 % of the flights, so a percentile would wipe it out.
    percentiles = tft.quantiles(raw, num_buckets=100, epsilon=0.001, reduce_instance_dims=False)  # [numbers, 99]
    clipped = tf.clip_by_value(raw, percentiles[:, 0], percentiles[:, -1])
    scaled = tft.scale_to_z_score(tf.concat([clipped, *numbers(more)], axis=1), elementwise=True)
    outputs["numbers"] = tf.where(tf.math.is_nan(scaled), 0.0, scaled)  # 0 is the mean
    optional = [features[name] for name in sorted(features) if is_optional_number(inputs.get(name))]
    if optional:
        outputs["missing"] = tf.cast(tf.math.is_nan(tf.concat(optional, axis=1)), tf.float32)
    return outputs


# These three only tell one day from another, for day_offset in build_model; for other data make it empty.
CALENDAR = ("year", "month", "day")
# Pairs that act together: a small network finds that out from the single columns only with far more data.
CROSSES = (
    ("origin", "hour"),
    ("carrier", "hour"),
    ("dest", "watch"),
    ("carrier", "origin"),
    ("carrier", "dest"),
    ("origin", "dest"),
)


def derived(inputs, features):
    """Return what delays depend on and the columns do not say by themselves; for other data return {} here.

    Args:
        inputs: Raw features as they came.
        features: The same as text or float32 [batch, 1], missing is "missing" or NaN.
    """
    angle = features["sched_dep_minute"] * (2 * math.pi / 1440)
    freezing = tf.clip_by_value((36.0 - features["temp"]) / 4.0, 0.0, 1.0)  # 1 at 32 °F and colder, 0 from 36 °F on
    wind = features["wind_dir"] * (math.pi / 180)
    text = {
        **features,
        "hour": tf.strings.as_string(inputs["sched_dep_minute"] // 60),
        "watch": tf.strings.as_string(inputs["sched_dep_minute"] // 180),  # eight a day
    }
    return {
        "date": tf.strings.join([tf.strings.as_string(inputs[name]) for name in CALENDAR], "-"),
        "time_sin": tf.sin(angle),
        "time_cos": tf.cos(angle),
        "share_of_day": features["flights_that_hour"] / features["flights_that_day"],
        "padding": padding(inputs["sched_dep_minute"], inputs["sched_arr_minute"], features["dest"]),
        "dew_point_spread": features["temp"] - features["dewp"],
        "wind_east": features["wind_speed"] * tf.sin(wind),
        "wind_north": features["wind_speed"] * tf.cos(wind),
        "snow": tf.math.log1p(50 * features["precip"]) * freezing,
        "snow_before": tf.math.log1p(50 * features["precip_before"]) * freezing,
        **{f"{a}_{b}": tf.strings.join([text[a], text[b]], "-") for a, b in CROSSES},
    }


def padding(departure, arrival, dest):
    """Return how much time the schedule allows against other flights to the same place, in their standard deviations.

    By place, because the arrival is in the time of the place. Hidden in the difference of two large numbers, one of
    which starts anew at midnight, it is out of reach of a model; and airlines change it from season to season.
    """
    minutes = tf.cast((arrival - departure) % (24 * 60), tf.float32)
    # From a file a place is looked up; without one, each row is compared with all places. No place has a space in it,
    # which separates the columns of the file.
    scaled = tft.scale_to_z_score_per_key(minutes[:, 0], dest[:, 0], key_vocabulary_filename="padding")[:, tf.newaxis]
    return tf.where(tf.abs(scaled) < 6.0, tf.clip_by_value(scaled, -3.0, 3.0), 0.0)  # unscaled if nothing is known


def vocabulary(value, name):
    """Text [batch, 1] → its place in the vocabulary of the train split, most frequent first."""
    return tft.compute_and_apply_vocabulary(
        value, frequency_threshold=MINIMUM_COUNT, num_oov_buckets=1, vocab_filename=name
    )


def numbers(features):
    """The features that are numbers, by name."""
    return [value for _, value in sorted(features.items()) if value.dtype != tf.string]


def dense(value):
    """Text or float32 [batch, 1]; where an optional feature has no value, "missing" or NaN."""
    if value.dtype != tf.string:
        value = tf.cast(value, tf.float32)
    if not isinstance(value, tf.SparseTensor):
        return value
    one_a_row = tf.SparseTensor(value.indices, value.values, [value.dense_shape[0], 1])
    return tf.sparse.to_dense(one_a_row, "missing" if value.dtype == tf.string else float("nan"))


def is_optional_number(value):
    """Return whether a raw feature is a number that may be missing."""
    return isinstance(value, tf.SparseTensor) and value.dtype != tf.string


def build_model(hp, features):
    """A committee of small networks; ``hp`` names what the Tuner may vary, and the default of each.

    Trained each on its own loss and averaged when they answer, they err less on months they have not seen than one
    large network, and less than networks that share a loss.
    """
    units = hp.Choice("units", [16, 32, 64], default=32)
    dropout = hp.Float("dropout", 0.0, 0.3, step=0.1, default=0.1)
    members = hp.Int("members", 4, 12, step=4, default=8)
    learning_rate = hp.Float("learning_rate", 2e-3, 1e-2, sampling="log", default=5e-3)

    inputs = features.inputs()
    sizes = dict(features.categories)
    days = sizes.pop("date", None)
    # All members read the same features, so their first layers are one wide layer. What it multiplies by a category is
    # one row of a table, so embeddings that are as wide do it at a fraction of the price.
    parts = []
    if sizes:
        parts.append(tabular.EmbeddingBag([*sizes.values()], members * units)([inputs[name] for name in sizes]))
    if features.numbers:
        joined = layers.Concatenate()([inputs[name] for name in features.numbers])
        parts.append(layers.Dense(members * units, kernel_initializer="lecun_uniform")(joined))
    hidden = layers.Reshape((members, units))(layers.Add()(parts))
    hidden = tabular.Dropout(dropout)(layers.Activation("relu")(hidden))  # [batch, members, units]
    hidden = tabular.Dropout(dropout)(tabular.MemberDense(members, units // 2, "relu")(hidden))
    logits = tabular.MemberDense(members, 1)(hidden)  # [batch, members, 1]
    if days:
        # Flights of one day share storms and strikes that no column tells; a day in serving has the offset 0.
        logits = layers.Add()([logits, tabular.GroupIntercept(days, members)(inputs["date"])])

    model = tabular.Committee(inputs, layers.Activation("sigmoid", dtype="float32")(logits))
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
    training.run(fn_args, build_model, trees_without=("date", *(f"{a}_{b}" for a, b in CROSSES)))
