"""The trained model's answers for the first rows of eval, to compare the exported model's with."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf
import tensorflow_transform as tft

from pipeline.training.export import input_names

# float32 values, row after row, in the order of the rows in their files.
PREDICTIONS = "predictions_of_eval.float32"
ROWS = 1_000


def record(
    model: keras.Model, transform_output: tft.TFTransformOutput, patterns: Sequence[str], label: str, folder: str
) -> None:
    """Write the answers for the first rows, from the features that Transform made of them.

    Args:
        model: Maps {transformed feature: [batch, values]} to its answers, [batch, 1 or classes].
        transform_output: Written by the Transform that made the model's features.
        patterns: File patterns of the transformed eval split, as in ``fn_args.eval_files``.
        label: Not an input.
        folder: Receives ``PREDICTIONS``.
    """
    files = sorted(file for pattern in patterns for file in tf.io.gfile.glob(pattern))
    records = tf.data.TFRecordDataset(files, compression_type="GZIP" if files[0].endswith(".gz") else "")
    rows = next(iter(records.batch(ROWS)))
    features = tf.io.parse_example(rows, transform_output.transformed_feature_spec())
    inputs = {name: features[name] for name in input_names(model, transform_output, label)}
    answers = np.asarray(model(inputs, training=False), np.float32)
    tf.io.gfile.makedirs(folder)
    with tf.io.gfile.GFile(f"{folder}/{PREDICTIONS}", "wb") as file:
        file.write(answers.tobytes())
