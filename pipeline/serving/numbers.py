"""Convert numbers for text formats: as few digits as tell them apart, and null for NaN and infinity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa


def shortest(column: Any) -> Any:
    """Convert float32 to those float64 numbers that are written with the fewest digits.

    The float32 nearest to 0.4267325 is 0.42673251032829285; as a float64 it would be written like that. Arrow writes
    the shortest text that reads back as the same float32, a hundred times as fast as Python.

    Args:
        column: An array of Arrow, also of lists; any other type stays as it is.
    """
    texts = _replace_float32(column.type, pa.string())
    return column if texts == column.type else column.cast(texts).cast(_replace_float32(column.type, pa.float64()))


def _replace_float32(type_: pa.DataType, replacement: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(_replace_float32(type_.value_type, replacement), type_.list_size)
    if pa.types.is_list(type_):
        return pa.list_(_replace_float32(type_.value_type, replacement))
    return replacement if pa.types.is_float32(type_) else type_


def plain(values: np.ndarray) -> Any:
    """Convert an array of numbers to nested lists for JSON, which has neither NaN nor Infinity: those become None."""
    if values.dtype in (np.float16, np.float32):
        flat = shortest(pa.array(np.ravel(values).astype(np.float32, copy=False)))
        values = flat.to_numpy(zero_copy_only=False).reshape(values.shape)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        values = np.where(np.isfinite(values), values.astype(object), None)
    return values.tolist()


def finite(value: Any) -> Any:
    """Replace NaN and infinity in nested dictionaries and lists by None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
