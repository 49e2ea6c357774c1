"""Requests that TensorFlow Serving answers by itself before it takes others, so that no caller waits for the first.

tensorflow.org/tfx/serving/saved_model_warmup: a TFRecord file of PredictionLogs in the folder of the model. A server
does not load a model that fails at one of them, so only requests are to be written that were answered here.
"""

from collections.abc import Mapping

import tensorflow as tf
from tensorflow_serving.apis import model_pb2, predict_pb2, prediction_log_pb2

FILE = "assets.extra/tf_serving_warmup_requests"
# Rows of the requests: one, as most callers send, and several.
SIZES = (1, 16)


def write(folder: str, signature: str, rows: Mapping[str, tf.Tensor]) -> None:
    """Write requests of the first rows.

    Args:
        folder: Of the SavedModel.
        signature: That takes the rows.
        rows: Its inputs, [rows, ...] each.
    """
    requests = (
        predict_pb2.PredictRequest(
            model_spec=model_pb2.ModelSpec(signature_name=signature),
            inputs={name: tf.make_tensor_proto(value[:size]) for name, value in rows.items()},
        )
        for size in SIZES
    )
    tf.io.gfile.makedirs(f"{folder}/{FILE.rpartition('/')[0]}")
    with tf.io.TFRecordWriter(f"{folder}/{FILE}") as writer:
        for request in requests:
            log = prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))
            writer.write(log.SerializeToString())
