"""Names in an exported model: its signatures, their inputs, and the files in which it describes itself.

``INPUTS``: ``{"mean radius": {"input": "mean_radius", "type": "floats", "required": true}, ...}``, by raw feature name
without the label. ``input`` is the name in the signature; types are integers, floats, text and image, which
is an encoded one and has its limits beside: ``"max_pixels": 50000000, "max_bytes": 52428800``.

``CLASSES``: ``["setosa", "versicolor", "virginica"]``, in the order of the probabilities; empty where the label is a
number.

``FITTED``: what the eval split has decided about the answers, where the config asks for it: ``{"threshold": 0.27,
"coverage": 0.9, "rows": 1200, "found": [...]}``, with the sentences for reports and the rows that decided the coverage.
"""

import json
from collections.abc import Mapping
from typing import Any

from pipeline.errors import UserError
from pipeline.settings.names import plain_names

# One tensor for each raw feature: what TensorFlow Serving calls unless a request names another signature.
ROWS_SIGNATURE = "serving_default"
# Serialized tf.Examples, in one input: what TFMA looks for first. Models of stock TFX have only the one above.
EXAMPLES_SIGNATURE = "predict"
EXAMPLES_INPUT = "examples"
# Rows as for ROWS_SIGNATURE; beside the same answers, [batch, columns]: the contribution of each column, its standard
# error and the columns' names; and the answer that contributions start from, [batch].
EXPLAIN_SIGNATURE = "explain"
CONTRIBUTIONS, ERRORS, COLUMNS, AVERAGE = "contributions", "errors", "columns", "average"
EXPLAINING = (AVERAGE, COLUMNS, CONTRIBUTIONS, ERRORS)
# In the folder of a SavedModel, where its format has room for what is not TensorFlow's.
INPUTS = "assets.extra/inputs.json"
CLASSES = "assets.extra/classes.json"
FITTED = "assets.extra/fitted.json"
# Weights of a backbone, for the training of another model (docs/images.md).
BACKBONE = "assets.extra/backbone.weights.h5"


def examples_signature(signatures: Mapping[str, Any]) -> Any:
    """Return the signature of a model that takes serialized tf.Examples."""
    return signatures[EXAMPLES_SIGNATURE if EXAMPLES_SIGNATURE in signatures else ROWS_SIGNATURE]


def read_inputs(folder: str) -> dict[str, dict[str, Any]]:
    """Read the description of the raw features, by their names in the signature.

    Returns:
        {"mean_radius": {"name": "mean radius", "type": "floats", "required": True}, ...}; empty for a model that was
        not exported by ``pipeline.training``.
    """
    described: Mapping[str, Mapping[str, Any]] = _read(folder, INPUTS) or {}
    plain = plain_names(described)  # models that were exported before it was written down follow this rule
    return {item.get("input", plain[name]): {**item, "name": name} for name, item in described.items()}


def read_classes(folder: str) -> tuple[str, ...]:
    """Read the classes in words; empty where there are none or the model does not say."""
    return tuple(_read(folder, CLASSES) or ())


def read_fitted(folder: str) -> dict[str, Any]:
    """Read what the eval split has decided about the answers; empty where the config asks for nothing."""
    return dict(_read(folder, FITTED) or {})


def threshold_of(folder: str, asked: Any) -> float:
    """Return the probability from which a model answers the second of two classes.

    Args:
        folder: Of the SavedModel.
        asked: ``settings.gates.Threshold`` of the config, also as JSON has it.

    Raises:
        UserError: it is to be chosen, and the model has none.
    """
    chosen = read_fitted(folder).get("threshold")
    if chosen is not None:
        return float(chosen)
    if not isinstance(asked, (int, float)):
        raise UserError(
            f"evaluation.threshold is to be chosen on the eval split, and the model in {folder} has none: its module "
            "file does not call training.run. Call it, or set a number"
        )
    return float(asked)


def _read(folder: str, name: str) -> Any:
    import tensorflow as tf

    path = f"{folder}/{name}"
    if not tf.io.gfile.exists(path):
        return None
    with tf.io.gfile.GFile(path) as file:
        return json.loads(file.read())
