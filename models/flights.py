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
from pipeline.training.preprocessing import number, text

# These columns only identify a day, for the day offset in build_model. For other data, make this empty.
CALENDAR = ("year", "month", "day")
# Categories that act together: the model needs far more data to learn that from the single columns.
CROSSES = (("origin", "hour"), ("carrier", "dest"), ("dest", "watch"))


def preprocessing_fn(inputs, custom_config):
    """Convert raw features to model features, in training and serving alike.

    The type in the schema decides: text becomes category numbers. Integers and floats become one vector of z-scores,
    and a second vector marks missing values.
    """
    label = custom_config["label"]
    features = {
        name: text(value) if value.dtype == tf.string else number(value)
        for name, value in inputs.items()
        if name not in (label, *CALENDAR)
    }
    more = derived(inputs, features)
    outputs = {label: inputs[label]}
    for name, value in {**features, **more}.items():
        if value.dtype == tf.string:
            # Values in fewer than 20 train rows share one category with values that training never saw.
            outputs[name] = tft.compute_and_apply_vocabulary(
                value, frequency_threshold=20, num_oov_buckets=1, vocab_filename=name
            )
    raw = tf.concat(numbers(features), axis=1)  # [batch, numbers]; missing is NaN
    # A network extrapolates badly, so clip outliers. Derived numbers are bounded, and snow is rarer than a percentile.
    percentiles = tft.quantiles(raw, num_buckets=100, epsilon=0.001, reduce_instance_dims=False)  # [numbers, 99]
    clipped = tf.clip_by_value(raw, percentiles[:, 0], percentiles[:, -1])
    scaled = tft.scale_to_z_score(tf.concat([clipped, *numbers(more)], axis=1), elementwise=True)
    outputs["numbers"] = tf.where(tf.math.is_nan(scaled), 0.0, scaled)  # 0 is the mean
    outputs["missing"] = tf.cast(tf.math.is_nan(raw), tf.float32)
    return outputs


def numbers(features):
    """Return the features that are numbers, by name."""
    return [value for _, value in sorted(features.items()) if value.dtype != tf.string]


def derived(inputs, features):
    """Return features that combine columns; for other data, return {}.

    Args:
        inputs: Raw features.
        features: The same as text or float32, [batch, 1]; a missing number is NaN.
    """
    angle = features["sched_dep_minute"] * (2 * math.pi / 1440)
    wind = features["wind_dir"] * (math.pi / 180)
    freezing = tf.clip_by_value((36.0 - features["temp"]) / 4.0, 0.0, 1.0)  # 1 up to 32 °F, 0 from 36 °F
    category = {
        **features,
        "hour": tf.strings.as_string(inputs["sched_dep_minute"] // 60),
        "watch": tf.strings.as_string(inputs["sched_dep_minute"] // 180),  # eight a day
    }
    return {
        "date": tf.strings.join([tf.strings.as_string(inputs[name]) for name in CALENDAR], "-"),
        # Midnight is next to 23:59.
        "time_sin": tf.sin(angle),
        "time_cos": tf.cos(angle),
        # A busy hour of a quiet day differs from a quiet hour of a busy day.
        "share_of_day": features["flights_that_hour"] / features["flights_that_day"],
        # An airline that schedules more time than others for the same destination arrives late less often.
        "padding": padding(inputs["sched_dep_minute"], inputs["sched_arr_minute"], features["dest"]),
        # Runways have directions: crosswind delays flights more than headwind.
        "wind_east": features["wind_speed"] * tf.sin(wind),
        "wind_north": features["wind_speed"] * tf.cos(wind),
        # Rain in the cold is snow, which is too rare in the train months for a model to find by itself.
        "snow": tf.math.log1p(50 * features["precip"]) * freezing,
        "snow_before": tf.math.log1p(50 * features["precip_before"]) * freezing,
        **{f"{a}_{b}": tf.strings.join([category[a], category[b]], "-") for a, b in CROSSES},
    }


def padding(departure, arrival, dest):
    """Return the scheduled minutes, relative to other flights to the same destination, in standard deviations."""
    minutes = tf.cast((arrival - departure) % (24 * 60), tf.float32)  # arrival is in the destination's time zone
    # In a vocabulary file, lookups are fast. No destination contains a space, the separator in that file.
    scaled = tft.scale_to_z_score_per_key(minutes[:, 0], dest[:, 0], key_vocabulary_filename="padding")[:, tf.newaxis]
    # The minutes of a new destination stay unscaled: 0 is the mean.
    return tf.where(tf.abs(scaled) < 6.0, tf.clip_by_value(scaled, -3.0, 3.0), 0.0)


def build_model(hp, features):
    """Build a network with an embedding for each category; ``hp`` defines the values that the Tuner varies."""
    units = hp.Choice("units", [64, 128], default=128)
    dropout = hp.Float("dropout", 0.1, 0.3, step=0.1, default=0.1)
    learning_rate = hp.Float("learning_rate", 3e-3, 8e-3, sampling="log", default=5e-3)

    inputs = features.inputs()
    sizes = dict(features.categories)
    days = sizes.pop("date", None)
    parts = [layers.Flatten()(layers.Embedding(size, 8)(inputs[name])) for name, size in sizes.items()]
    hidden = layers.Concatenate()([*parts, *(inputs[name] for name in features.numbers)])
    hidden = layers.Dropout(dropout)(layers.Dense(units, "relu")(hidden))
    hidden = layers.Dropout(dropout)(layers.Dense(units // 2, "relu")(hidden))
    logit = layers.Dense(1)(hidden)
    if days:
        # Storms and strikes delay all flights of a day. In serving, each day is new: its offset stays at the initial 0.
        offset = layers.Embedding(days, 1, embeddings_initializer="zeros")(inputs["date"])
        logit = layers.Add()([logit, layers.Flatten()(offset)])

    model = keras.Model(inputs, layers.Activation("sigmoid", dtype="float32")(logit))
    model.compile(
        optimizer=keras.optimizers.AdamW(learning_rate, weight_decay=1e-4),
        loss="binary_crossentropy",
        metrics=[keras.metrics.AUC(name="auc")],
    )
    return model


def tuner_fn(fn_args):
    """Search the values that ``build_model`` leaves open."""
    return training.tune(fn_args, build_model)


def run_fn(fn_args):
    """Train with the best values found, and export."""
    # No later flight has a date that the trees know, and trees find crosses by themselves.
    training.run(fn_args, build_model, trees_without=("date", *(f"{a}_{b}" for a, b in CROSSES)))
