"""Inputs of a signature: kinds of values, and the conversion of values from JSON."""

import base64
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.settings.image_data import Images
from pipeline.settings.notations import AMOUNT, amount_parts, plain, spellings

EXAMPLES, IMAGE = "examples", "image"
# A PNG file of one grey pixel.
ONE_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNoAAAAggCB2kUIOwAAAABJRU5ErkJggg=="
# Values in a row, where there may be any number of them.
ANY = 0
INT64 = 2**63


def quoted(value: Any) -> str:
    """Return a value from JSON for a message, in at most 40 characters."""
    words = {dict: "an object", list: "a list", bool: str(value).lower(), type(None): "null"}
    text = words.get(type(value)) or repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _integer(value: Any, dtype: np.dtype) -> int:
    # A float of -2**63 may be a whole number below it, which the parser of JSON has rounded.
    fits = -INT64 < value < INT64 if type(value) is float else True
    if type(value) is bool or (type(value) is float and value.is_integer()):
        value = int(value)  # booleans are read as 0 and 1
    if type(value) is not int:
        raise ValueError(quoted(value))
    if not fits or not -INT64 <= value < INT64:
        raise ValueError(f"{quoted(value)}, which does not fit into 64 bits")
    return value


def _float(value: Any, dtype: np.dtype) -> float:
    if type(value) is not float and type(value) is not int:
        raise ValueError(quoted(value))
    if not abs(value) < _too_large(dtype):
        raise ValueError(f"{quoted(value)}, which is too large")
    return float(value)


@functools.cache
def _too_large(dtype: np.dtype) -> int:
    """Return the least number that becomes infinity: half a step above the greatest, which answers write rounded up."""
    floats = np.finfo(dtype)
    return int(floats.max) + 2 ** (floats.maxexp - floats.nmant - 2)


def _text(value: Any, dtype: np.dtype) -> bytes:
    if not isinstance(value, str):
        return _base64(value, dtype)
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{quoted(value)}, which is no valid Unicode") from error


def _base64(value: Any, dtype: np.dtype) -> bytes:
    """Return the bytes that TensorFlow Serving's JSON writes as {"b64": "..."}."""
    if not isinstance(value, dict) or value.keys() != {"b64"} or not isinstance(value["b64"], str):
        raise ValueError(quoted(value))
    try:
        return base64.b64decode(value["b64"], validate=True)
    except ValueError as error:
        raise ValueError(f"{quoted(value['b64'])}, which is no base64: {error}") from error


@dataclass(frozen=True)
class Kind:
    """One kind of value; ``convert`` raises a ValueError that says what was found instead."""

    expected: str
    zero: Any
    schema: Mapping[str, Any]
    convert: Callable[[Any, np.dtype], Any]


_BASE64_SCHEMA = {
    "type": "object",
    "properties": {"b64": {"type": "string", "contentEncoding": "base64"}},
    "required": ["b64"],
    "additionalProperties": False,
}
_INT64_SCHEMA = {"type": "integer", "minimum": -INT64, "maximum": INT64 - 1}
KINDS = {
    "integers": Kind("a whole number", 0, _INT64_SCHEMA, _integer),
    "floats": Kind("a number", 0.0, {"type": "number"}, _float),
    "text": Kind("text", "", {"type": "string"}, _text),
    IMAGE: Kind('an image file as {"b64": "..."}', {"b64": ONE_PIXEL}, _BASE64_SCHEMA, _base64),
    EXAMPLES: Kind('a serialized tf.Example as {"b64": "..."}', {"b64": ""}, _BASE64_SCHEMA, _base64),
}


@dataclass(frozen=True)
class Input:
    """One input of a signature."""

    name: str  # of the raw feature
    kind: str  # a key of KINDS
    required: bool
    dtype: np.dtype  # of the tensor; optional integers come as float64, to have a NaN
    values: int | None = None  # in a row; None: the tensor is [rows]; ANY: [rows, most values], padded
    tensor: str = ""  # name in the signature, if it differs
    limits: Images | None = None  # of an image
    notation: str = ""  # of times or amounts in text, see settings.notations
    known: tuple[str, ...] = ()  # values of a category in training, as far as the model says; "0", "1": of integers

    @property
    def expected(self) -> str:
        """Describe a valid value, for messages."""
        value = KINDS[self.kind].expected
        number = "" if self.values == ANY else f"{self.values} "
        text = value if self.values is None else f"a list of {number}values, each {value}"
        return text if self.required else f"{text}, or null where it is missing"

    @property
    def example(self) -> Any:
        """Return a valid value as JSON has it: zeros or empty texts."""
        zero = KINDS[self.kind].zero
        return zero if self.values is None else [zero] * (self.values or 1)

    def convert(self, value: Any) -> Any:
        """Return the tensor's value for one from JSON; raise a ValueError that says what was found instead."""
        if self.limits and isinstance(value, dict) and isinstance(value.get("b64"), str):
            size = len(value["b64"]) * 3 // 4 - value["b64"][-2:].count("=")  # before it is decoded
            if size > self.limits.max_bytes:
                raise ValueError(f"one of {size:,} bytes, more than {self.limits.max_bytes:,} (data.images.max_bytes)")
        if self._is_amount and (type(value) is int or (type(value) is float and math.isfinite(value))):
            digits = str(value) if type(value) is int else np.format_float_positional(value, trim="-")
            value = digits.replace(".", amount_parts(self.notation)[0])
        return KINDS[self.kind].convert(self.spelled(value) if self.spellings else value, self.dtype)

    @functools.cached_property
    def _is_amount(self) -> bool:
        return self.notation.startswith(AMOUNT)

    @functools.cached_property
    def spellings(self) -> dict[str, str]:
        """Return the known value by each plain text that stands for it; see ``notations.spellings``."""
        return spellings(self.known)

    @functools.cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.known)

    @property
    def is_truth(self) -> bool:
        """Return whether the known values are a truth value's."""
        return "true" in self.spellings

    def spelled(self, value: Any) -> Any:
        """Return a scalar as training has spelled it, where that is known."""
        if not self.spellings or not isinstance(value, (str, bool, int, float)):
            return value
        if self.kind == "text":
            return value if value in self._known else self.spellings.get(plain(value), value)
        found = self.spellings.get(plain(value)) if self.is_truth and isinstance(value, str) else None
        return value if found is None else int(found)

    def respelled(self, texts: np.ndarray) -> np.ndarray:
        """Return texts, as bytes, as training has spelled them, where that is known; of other kinds, return them."""
        if self.kind != "text" or not self.spellings:
            return texts
        flat = texts.ravel().tolist()
        others = {}
        for text in set(flat):
            word = text.decode(errors="replace")
            if (spelled := self.spelled(word)) != word:
                others[text] = spelled.encode()
        if not others:
            return texts
        return np.array([*(others.get(text, text) for text in flat), None], object)[:-1].reshape(texts.shape)

    @property
    def missing(self) -> float | bytes:
        """Return the tensor's value where a row has none."""
        return b"" if self.dtype == object else math.nan

    def shape(self, rows: int) -> tuple[int, ...]:
        """Return the shape of the tensor, where the number of values is fixed: [rows] or [rows, values]."""
        return (rows,) if self.values is None else (rows, self.values)


def take_examples(inputs: Mapping[str, Input]) -> bool:
    """Return whether a signature takes serialized tf.Examples, and nothing else."""
    return [column.kind for column in inputs.values()] == [EXAMPLES]
