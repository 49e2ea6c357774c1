"""Names in an exported model: its signatures, their inputs, and the files in which it describes itself.

``INPUTS``: ``{"mean radius": {"input": "mean_radius", "type": "floats", "required": true}, ...}``, by raw feature name
without the label. ``input`` is the name in the signature; types are integers, floats, text and image, which is an
encoded one with ``"max_pixels"`` and ``"max_bytes"``. Text with times or amounts has a ``"notation"``: "%d.%m.%Y", or
"amount: ,". Categories whose values the schema lists have them in ``"known"``; whole numbers that are 0 or 1 ``["0",
"1"]``.

``CLASSES``: ``["setosa", ...]``, in the order of the probabilities; empty if the label is a number.

``FITTED``: what the eval split decided about the answers, if the config requests it: ``{"threshold": 0.27, "coverage":
0.9, "rows": 1200, "found": [...]}``, with sentences for reports and the rows that decided the coverage.
"""

import json
from collections.abc import Container, Mapping
from typing import Any

from pipeline.errors import UserError, first_line
from pipeline.settings.names import plain_names
from pipeline.settings.notations import DATES, is_notation

# One tensor for each raw feature: what TensorFlow Serving calls unless a request names another signature.
ROWS_SIGNATURE = "serving_default"
# Serialized tf.Examples, in one input: what TFMA looks for first. Models of stock TFX have only the one above.
EXAMPLES_SIGNATURE = "predict"
EXAMPLES_INPUT = "examples"
# Rows as for ROWS_SIGNATURE. The same answers and, [batch, columns], the contribution of each column, its standard
# error and the columns' names; and the answer that contributions start from, [batch].
EXPLAIN_SIGNATURE = "explain"
CONTRIBUTIONS, ERRORS, COLUMNS, AVERAGE = "contributions", "errors", "columns", "average"
EXPLAINING = (AVERAGE, COLUMNS, CONTRIBUTIONS, ERRORS)
# In the folder of a SavedModel, where its format has room for what is not TensorFlow's.
INPUTS = "assets.extra/inputs.json"
CLASSES = "assets.extra/classes.json"
FITTED = "assets.extra/fitted.json"
# Attribute of the SavedModel's root: the network's weights in their order.
WEIGHTS = "weights"
# Weights of a backbone, for the training of another model (docs/images.md).
BACKBONE = "assets.extra/backbone.weights.h5"


def examples_signature(signatures: Mapping[str, Any]) -> Any:
    """Return the signature of a model that takes serialized tf.Examples."""
    return signatures[EXAMPLES_SIGNATURE if EXAMPLES_SIGNATURE in signatures else ROWS_SIGNATURE]


def read_inputs(folder: str) -> dict[str, dict[str, Any]]:
    """Read the description of the raw features, by their names in the signature.

    {"mean_radius": {"name": "mean radius", "type": "floats", "required": True}, ...}; empty for a model that was not
    exported by ``pipeline.training``.
    """
    described: Mapping[str, Mapping[str, Any]] = _read(folder, INPUTS, dict) or {}
    for name, item in described.items():
        if problem := _problem(item):
            raise _damaged(folder, INPUTS, f"{name!r} has {problem}")
    plain = plain_names(described)  # models that were exported before it was written down follow this rule
    inputs = {item.get("input", plain[name]): {**item, "name": name} for name, item in described.items()}
    for name, known in _in_vocabularies(folder, inputs).items():
        inputs[name].setdefault("known", known)
    return inputs


def _in_vocabularies(folder: str, names: Container[str]) -> dict[str, list[str]]:
    """Return the values of categories in vocabularies of "name=value", as the module files of ``new`` make them."""
    import tensorflow as tf

    known: dict[str, list[str]] = {}
    for path in tf.io.gfile.glob(f"{folder}/assets/*"):
        with tf.io.gfile.GFile(path, "rb") as lines:
            for line in lines:
                name, _, value = line.rstrip(b"\n").decode(errors="replace").partition("=")
                if name not in names:
                    break  # of another kind
                if value:
                    known.setdefault(name, []).append(value)
    return known


def read_classes(folder: str) -> tuple[str, ...]:
    """Read the class names; empty if there are none or the model does not say."""
    classes = tuple(_read(folder, CLASSES, list) or ())
    if not all(isinstance(name, str) for name in classes):
        raise _damaged(folder, CLASSES, "not every class is text")
    return classes


def read_fitted(folder: str) -> dict[str, Any]:
    """Read what the eval split decided about the answers; empty if the config requests nothing."""
    return dict(_read(folder, FITTED, dict) or {})


def threshold_of(folder: str, asked: Any) -> float:
    """Return the probability from which a model in a folder predicts the second of two classes.

    ``asked`` is the config's ``settings.gates.Threshold``, also as JSON has it. UserError: it is to be chosen, and the
    model has none.
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


def _read(folder: str, name: str, kind: type) -> Any:
    import tensorflow as tf

    path = f"{folder}/{name}"
    if not tf.io.gfile.exists(path):
        return None
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content = json.loads(file.read())
    except (ValueError, RecursionError) as error:
        raise _damaged(folder, name, first_line(error)) from error
    if not isinstance(content, kind):
        raise _damaged(folder, name, f"expected {'an object' if kind is dict else 'a list'}")
    return content


def _problem(described: Any) -> str:
    """Return what is wrong with the description of a raw feature, or ""."""
    if not isinstance(described, dict):
        return "no object"
    if described.get("type") not in ("integers", "floats", "text", "image"):
        return "no type, expected integers, floats, text or image"
    if not isinstance(described.get("required"), bool):
        return 'no "required" that is true or false'
    if not isinstance(described.get("input", ""), str):
        return 'an "input" that is not text'
    if not is_notation(described.get("notation", DATES[0])):
        return 'a "notation" that is unknown'
    known = described.get("known", [])
    if not isinstance(known, list) or not all(isinstance(value, str) for value in known):
        return 'a "known" that is not a list of texts'
    wrong = [limit for limit in ("max_pixels", "max_bytes") if not isinstance(described.get(limit, 1), int)]
    return f'a "{wrong[0]}" that is no whole number' if wrong else ""


def _damaged(folder: str, name: str, problem: str) -> UserError:
    return UserError(f"{folder}/{name} is damaged: {problem[:300]}; push the model again")
