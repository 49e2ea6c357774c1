"""Module files as users of TFX and Keras write them, run on a small table."""

import numpy as np
import pandas as pd

from tests.gauntlet.tables.table import Content, people, split, table

SEVERAL = {
    'Dense(1, activation="sigmoid")': 'Dense(3, activation="softmax")',
    'loss="binary_crossentropy"': 'loss="sparse_categorical_crossentropy"',
}
NUMBER = {
    'Dense(1, activation="sigmoid")': "Dense(1)",
    'loss="binary_crossentropy", metrics=["accuracy"]': 'loss="mse"',
}
LABEL = "outputs[LABEL] = inputs[LABEL]"
VOCABULARY = {LABEL: "outputs[LABEL] = tft.compute_and_apply_vocabulary(inputs[LABEL])"}
ANSWER = "return model(features)\n"


def _two() -> pd.DataFrame:
    """Two classes, the second of which is the more frequent one."""
    frame, score, _ = people(1000, 131)
    return frame.assign(wanted=np.where(score > np.quantile(score, 0.3), "yes", "no"))


def _several() -> pd.DataFrame:
    """Three classes, the first of which is the rarest one, and the last the most frequent one."""
    frame, score, _ = people(1200, 132)
    return frame.assign(wanted=split(score, ["a", "b", "b", "c", "c", "c"]))


def _number() -> pd.DataFrame:
    frame, score, _ = people(1000, 133)
    return frame.assign(wanted=np.exp(0.2 * score + 3).round(2))


@table("wanted", module={}, reach=0.85)
def module_plain() -> Content:
    """The module file as it is: two classes."""
    return _two()


@table("wanted", "several", module=SEVERAL, classes=("a", "b", "c"), reach=0.6)
def module_several() -> Content:
    """Three classes."""
    return _several()


@table(
    "wanted",
    module=VOCABULARY,
    reach=0.85,
    expected="pushed or stopped: (?i)label.*(Transform|preprocessing_fn)",
    source="tensorflow/model-analysis#93",
)
def module_label_vocabulary() -> Content:
    """A vocabulary of the label, which orders the classes by frequency: no and yes change places."""
    return _two()


@table(
    "wanted",
    "several",
    module=SEVERAL | VOCABULARY,
    classes=("a", "b", "c"),
    reach=0.6,
    expected="pushed or stopped: (?i)label.*(Transform|preprocessing_fn)",
    source="tensorflow/model-analysis#93",
)
def module_label_vocabulary_several() -> Content:
    """The same with three classes."""
    return _several()


@table(
    "wanted",
    "several",
    module=SEVERAL | {LABEL: "outputs[LABEL] = tf.minimum(inputs[LABEL], 1)"},
    classes=("a", "b", "c"),
    expected="stopped: (?i)label.*(Transform|preprocessing_fn)",
)
def module_label_merged() -> Content:
    """Two classes of three become one in preprocessing_fn."""
    return _several()


@table(
    "wanted",
    "number",
    module=NUMBER | {LABEL: "outputs[LABEL] = tft.scale_to_z_score(tf.cast(inputs[LABEL], tf.float32))"},
    classes=(),
    expected="stopped: (?i)label.*(Transform|preprocessing_fn|scale)",
)
def module_label_z_score() -> Content:
    """A number to predict, scaled: the model answers -1.2 for 18.30, with a high squared correlation."""
    return _number()


@table(
    "wanted",
    "number",
    module=NUMBER | {LABEL: "outputs[LABEL] = tf.math.log1p(tf.cast(inputs[LABEL], tf.float32))"},
    classes=(),
    expected="stopped: (?i)label.*(Transform|preprocessing_fn|scale|log)",
)
def module_label_log() -> Content:
    """A number to predict, as its logarithm."""
    return _number()


@table(
    "wanted",
    "number",
    reach=0.6,
    module=NUMBER
    | {
        LABEL: "outputs[LABEL] = tf.math.log1p(tf.cast(inputs[LABEL], tf.float32))",
        ANSWER: "return tf.math.expm1(model(features))\n",
    },
    classes=(),
)
def module_label_log_and_back() -> Content:
    """The logarithm to learn from, and its inverse in the signature: right, and must not be refused."""
    return _number()


@table(
    "wanted",
    module={").repeat()\n": ").map(lambda x, y: (x, 1 - y)).repeat()\n"},
    expected="stopped: (?i)revers|invert|mirror|swap|opposite",
)
def module_label_flipped() -> Content:
    """The classes change places in the dataset: an AUC of 0.01, which no better column mends."""
    return _two()


@table(
    "wanted",
    "number",
    module=NUMBER | {ANSWER: 'answer = model(features)\n        return {"mu": answer, "sigma": tf.abs(answer)}\n'},
    classes=(),
    expected="stopped: mu, sigma",
)
def module_mu_sigma() -> Content:
    """Two outputs, none of which is named prediction: the line names them, and not a later crash."""
    return _number()


RANDOM = "keras_tuner.RandomSearch(_model, max_trials=2, "


@table(
    "wanted",
    module={RANDOM: "keras_tuner.Hyperband(_model, max_epochs=3, "},
    tuning=True,
    reach=0.85,
    source="tensorflow/tfx#7778",
)
def module_hyperband() -> Content:
    """KerasTuner's Hyperband, which has no max_trials."""
    return _two()


@table("wanted", module={RANDOM: "keras_tuner.GridSearch(_model, "}, tuning=True, reach=0.85)
def module_grid_search() -> Content:
    """KerasTuner's GridSearch over all of two values."""
    return _two()


@table(
    "wanted",
    module={
        "    model.compile(": "    model.optimizer_to_be = (",
        'loss="binary_crossentropy", metrics=["accuracy"]': "None",
    },
    expected="stopped: (?i)compile",
)
def module_without_compile() -> Content:
    """A model without compile()."""
    return _two()


@table(
    "wanted",
    module={"epochs=15,": "epochs=15, validation_split=0.1,"},
    expected="stopped: validation_split",
    source="tensorflow/tensorflow#50937",
)
def module_validation_split() -> Content:
    """validation_split with a dataset."""
    return _two()


@table(
    "wanted",
    module={
        'activation="sigmoid"': "activation=None",
        '"binary_crossentropy"': "tf.keras.losses.BinaryCrossentropy(from_logits=True)",
    },
    expected="stopped: logits=True",
)
def module_logits() -> Content:
    """Logits in place of probabilities: the line names the setting."""
    return _two()


@table(
    "wanted",
    "several",
    module=SEVERAL | {ANSWER: "return tf.argmax(model(features), -1)\n"},
    classes=("a", "b", "c"),
    expected="stopped: (?i)probabilit",
)
def module_class_numbers() -> Content:
    """The number of the class in place of probabilities."""
    return _several()


@table(
    "wanted",
    module={"tft.scale_to_z_score(number)": "(number - tf.reduce_mean(number)) / (tf.math.reduce_std(number) + 1e-3)"},
    expected="stopped: (?i)batch|other rows|together",
)
def module_batch_statistics() -> Content:
    """Means of the batch in preprocessing_fn: a single row is answered otherwise than in a file."""
    return _two()


@table(
    "wanted",
    module={ANSWER: "return tf.sigmoid(model(features) * 4 - 2 + tf.random.normal([tf.size(examples), 1]))\n"},
    expected="stopped: (?i)alone|batch|twice|differ|random",
)
def module_random_answers() -> Content:
    """Noise in the signature: other answers for the same rows."""
    return _two()


@table(
    "wanted",
    module={
        'outputs["region"] =': """outputs["known"] = tf.cast(_dense(inputs[LABEL], 0), tf.float32)
    outputs["region"] =""",
        'NUMBERS = ["height", "age"]': 'NUMBERS = ["height", "age"]\nINPUTS = [*NUMBERS, "known"]',
        "for name in NUMBERS}\n    inputs": "for name in INPUTS}\n    inputs",
        "(inputs[name] for name in NUMBERS)": "(inputs[name] for name in INPUTS)",
        '[*NUMBERS, "region"]': '[*INPUTS, "region"]',
        "        spec.pop(LABEL)\n": "",
    },
    expected="stopped: (?i)label",
)
def module_label_as_feature() -> Content:
    """The model is given the label as a feature; the signature wants it, too."""
    return _two()


@table("wanted", module={"Adam(0.01)": "SGD(float('1e30'))"}, expected="stopped: (?i)nan|finite")
def module_nan() -> Content:
    """Weights that become NaN."""
    return _two()


@table(
    "wanted",
    module={"    tf.saved_model.save(": "    (lambda *_, **__: None)("},
    expected="stopped: (?i)sav|serving_model_dir|export",
)
def module_saves_nothing() -> Content:
    """run_fn forgets to save the model."""
    return _two()


@table(
    "wanted",
    module={
        "    tf.saved_model.save(\n": """    tf.io.gfile.makedirs(fn_args.serving_model_dir)
    (lambda one, path, signatures: one.save(path + '/model.keras'))(
"""
    },
    expected="stopped: (?i)keras|SavedModel|signature",
)
def module_saves_keras_file() -> Content:
    """run_fn saves model.keras in place of a SavedModel."""
    return _two()


@table(
    "wanted",
    reach=0.85,
    module={'"binary_crossentropy"': "lambda y, p: tf.keras.losses.binary_crossentropy(tf.reshape(y, [-1, 1]), p)"},
)
def module_loss_per_row() -> Content:
    """A loss that returns a value for each row."""
    return _two()


@table(
    "wanted",
    module={
        'for name in [*NUMBERS, "region"]}\n': """for name in [*NUMBERS, "region"]}
        features["age"] = tf.zeros_like(features["age"])
"""
    },
    reach=0.6,
    expected="pushed or stopped: age",
)
def module_feature_lost_in_serving() -> Content:
    """The signature puts 0 in place of a feature: what is served ignores a column that the model was trained on."""
    return _two()


@table(
    "wanted",
    module={
        'outputs["region"] =': """decades = tf.as_string(_dense(inputs["age"], 0) // 10)
    outputs["decade"] = tft.compute_and_apply_vocabulary(decades)
    outputs["region"] ="""
    },
    reach=0.85,
)
def module_vocabulary_of_numbers() -> Content:
    """A vocabulary of numbers as text, which the model does not use."""
    return _two()


@table(
    "wanted",
    module={'inputs["region"], ""': 'inputs["regoin"], ""'},
    expected="stopped: (?i)regoin",
)
def module_column_misspelt() -> Content:
    """preprocessing_fn takes a column that is not there."""
    return _two()


@table(
    "wanted",
    module={"tft.scale_to_z_score(number)": "0 * number if name == 'age' else tft.scale_to_z_score(number)"},
    reach=0.6,
)
def module_constant_feature() -> Content:
    """A feature that is constant after Transform."""
    return _two()
