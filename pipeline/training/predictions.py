"""Record the trained model's answers for the first rows of eval, to compare the exported model's with."""

from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from pipeline.training.decoding import Decoder
from pipeline.training.ensemble import Ensemble, answering

# float32 values, row after row, in the order of the rows in their files.
PREDICTIONS = "predictions_of_eval.float32"
ROWS = 1_000


def record(
    model: keras.Model,
    decoder: Decoder,
    patterns: Sequence[str],
    folder: str,
    *,
    ensemble: Ensemble | None = None,
    calibrated: Callable[[tf.Tensor], tf.Tensor] | None = None,
    at_once: int = ROWS,
) -> None:
    """Write the answers for the first rows, from the features that Transform made of them.

    Args:
        model: Maps {feature: [batch, ...]} to its answers, [batch, 1 or classes].
        decoder: Of the transformed features.
        patterns: File patterns of the transformed eval split, as in ``fn_args.eval_files``.
        folder: Receives ``PREDICTIONS``.
        ensemble: Trees that answer with the model, or alone.
        calibrated: Makes what is served of the model's output.
        at_once: Rows that the model answers together.
    """
    files = sorted(file for pattern in patterns for file in tf.io.gfile.glob(pattern))
    records = tf.data.TFRecordDataset(files, compression_type="GZIP" if files[0].endswith(".gz") else "")
    answer, answers = answering(model, decoder, ensemble), []
    for rows in records.take(ROWS).batch(at_once):
        features = decoder(tf.io.parse_example(rows, decoder.parsing))
        output = answer(features)
        answers.append(np.asarray(calibrated(output) if calibrated else output, np.float32))
    tf.io.gfile.makedirs(folder)
    with tf.io.gfile.GFile(f"{folder}/{PREDICTIONS}", "wb") as file:
        file.write(np.concatenate(answers).tobytes())
