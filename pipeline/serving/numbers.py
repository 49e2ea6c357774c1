"""Convert numbers for text formats: as few digits as tell them apart, and null for NaN and infinity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa


def shortest(values: np.ndarray) -> np.ndarray:
    """Convert floats of less than 64 bits to those float64 numbers that are written with the fewest digits.

    The float32 nearest to 0.4267325 is 0.42673251032829285; as a float64 it would be written like that.

    Args:
        values: Of any shape and type.

    Returns:
        The same shape; float64 for float32 and float16, else the values as they are.
    """
    if values.dtype not in (np.float32, np.float16):
        return values
    # Arrow writes the shortest text that reads back as the same float32, a hundred times as fast as Python.
    texts = pa.array(np.ravel(values).astype(np.float32, copy=False)).cast(pa.string())
    return texts.cast(pa.float64()).to_numpy(zero_copy_only=False).reshape(values.shape)


def plain(values: np.ndarray) -> Any:
    """Convert an array of numbers to nested lists for JSON, which has neither NaN nor Infinity: those become None."""
    short = shortest(values)
    if short.dtype.kind == "f" and not np.isfinite(short).all():
        short = np.where(np.isfinite(short), short.astype(object), None)
    return short.tolist()


def finite(value: Any) -> Any:
    """Replace NaN and infinity in nested dictionaries and lists by None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
