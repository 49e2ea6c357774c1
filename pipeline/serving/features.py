"""Raw features as people and files give them → the columns that a signature takes, each value looked at.

What is missing is ``null`` or left out; a model's signature wants NaN for it or, for text, "".
"""

from __future__ import annotations

import base64
import binascii
import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data import examples
from pipeline.data.serialize import serialize
from pipeline.data.table import Rows
from pipeline.errors import UserError

Columns: TypeAlias = Mapping[str, np.ndarray]
EXAMPLES = "examples"
EXPECTED = {
    "integers": "a whole number",
    "floats": "a number",
    "text": "text",
    EXAMPLES: 'a serialized tf.Example as {"b64": "..."}',
}
_INT64 = 2**63


@dataclass(frozen=True)
class Input:
    """One input of a signature.

    Attributes:
        name: Raw feature, as people and files name it.
        kind: "integers", "floats", "text", or "examples" for serialized tf.Examples.
        required: Whether every row must have it.
        dtype: Of the tensor; optional integers come as float64, to have a NaN.
        values: Of a row; None: one, in a tensor [rows].
        tensor: Name in the signature, which takes fewer characters than a column's; empty where it is ``name``.
    """

    name: str
    kind: str
    required: bool
    dtype: np.dtype
    values: int | None = None
    tensor: str = ""

    @property
    def expected(self) -> str:
        """What a row has to say for it."""
        one = (
            EXPECTED[self.kind]
            if self.values is None
            else f"a list of {self.values} values, each {EXPECTED[self.kind]}"
        )
        return one if self.required else f"{one}, or null where it is missing"

    @property
    def missing(self) -> float | bytes:
        """What the tensor has where a row has nothing."""
        return b"" if self.dtype == object else math.nan

    def warm_up_values(self) -> np.ndarray:
        """One row, of zeros and empty texts."""
        shape = (1,) if self.values is None else (1, self.values)
        return np.full(shape, b"" if self.dtype == object else 0, self.dtype)


class Refused(Exception):
    """A row that is none.

    Attributes:
        row: From 0; None where it is about all of them.
        reason: With the feature, what was found and what was expected.
    """

    def __init__(self, row: int | None, reason: str):
        super().__init__(reason if row is None else f"instances[{row}]: {reason}")
        self.row = row
        self.reason = reason


def from_instances(
    instances: Sequence[Any], inputs: Mapping[str, Input], *, others: bool = False
) -> dict[str, np.ndarray]:
    """Rows as JSON has them → columns.

    Args:
        instances: Objects of feature and value; for a signature of one input, bare values too.
        inputs: Of the signature.
        others: Whether rows may have what is no input, which is passed over.

    Raises:
        Refused: a row has an unknown, missing or mistyped feature.
    """
    if len(inputs) == 1:
        (only,) = inputs
        instances = [one if isinstance(one, dict) and only in one else {only: one} for one in instances]
    for row, instance in enumerate(instances):
        if not isinstance(instance, dict):
            raise Refused(row, f"expected an object of features and their values, got {_shown(instance)}")
        if not others and not instance.keys() <= inputs.keys():
            raise Refused(row, _unknown(next(key for key in instance if key not in inputs), inputs))
    return {name: _column(one, [row.get(name, _ABSENT) for row in instances]) for name, one in inputs.items()}


def from_columns(given: Any, inputs: Mapping[str, Input]) -> dict[str, np.ndarray]:
    """Columns as JSON has them, TensorFlow Serving's "inputs" → columns.

    Raises:
        Refused: see ``from_instances``; or the columns are of different length.
    """
    if len(inputs) == 1 and not (isinstance(given, dict) and given.keys() == inputs.keys()):
        given = {next(iter(inputs)): given}
    if not isinstance(given, dict):
        raise Refused(None, f'"inputs": expected an object of features and lists of values, got {_shown(given)}')
    for name, values in given.items():
        if name not in inputs:
            raise Refused(None, _unknown(name, inputs))
        if not isinstance(values, list):
            raise Refused(None, f"feature {name!r}: expected a list of values, got {_shown(values)}")
    lengths = {name: len(values) for name, values in given.items()}
    if len(set(lengths.values())) > 1:
        shortest, longest = min(lengths, key=lambda name: lengths[name]), max(lengths, key=lambda name: lengths[name])
        raise Refused(
            None,
            f"features of different length: {shortest!r} has {lengths[shortest]} values, "
            f"{longest!r} has {lengths[longest]}",
        )
    rows = next(iter(lengths.values()), 0)
    return {name: _column(one, given.get(name, [_ABSENT] * rows)) for name, one in inputs.items()}


def from_table(rows: Rows, file: str, inputs: Mapping[str, Input]) -> dict[str, np.ndarray]:
    """Rows of a file → columns, of the very values that ExampleGen would make tf.Examples of.

    Raises:
        UserError: a column is missing or of another type, or a row has no value where it must have one.
    """
    if len(inputs) == 1 and next(iter(inputs.values())).kind == EXAMPLES:
        records = serialize(examples.as_lists(rows, file))
        return {name: np.array(records, object) for name in inputs}
    check_columns(file, rows.table.column_names, inputs)
    there = [name for name in inputs if name in rows.table.column_names]
    lists = examples.as_lists(Rows(rows.table.select(there), rows.numbers), file)
    found = {}
    for name, one in inputs.items():
        column = lists.column(name) if name in there else pa.nulls(len(rows.numbers))
        found[name] = _from_lists(one, column, rows.numbers, file)
    return found


def check_columns(file: str, columns: Sequence[str], inputs: Mapping[str, Input]) -> list[str]:
    """Return the optional features that a file lacks.

    Raises:
        UserError: it lacks one that the model needs, or all of them.
    """
    needed = [name for name, one in inputs.items() if one.required and name not in columns]
    absent = [name for name in inputs if name not in columns]
    if needed:
        raise UserError(
            f"{file} has no column {shortened(map(repr, needed))}, which the model needs; it has {shortened(columns)}"
        )
    if len(absent) == len(inputs):
        raise UserError(
            f"{file} has no column in common with the model: is it a file of another table? The model takes "
            f"{shortened(inputs)}; the file has {shortened(columns)}"
        )
    return absent


def shortened(names: Iterable[str], most: int = 30) -> str:
    """A list of names for the end of a message."""
    shown = list(names)
    return ", ".join(shown if len(shown) <= most else [*shown[:most], f"and {len(shown) - most} more"])


def rows_in(columns: Columns) -> int:
    """How many rows the columns have."""
    return len(next(iter(columns.values()))) if columns else 0


_ABSENT = object()


def _column(one: Input, values: Sequence[Any]) -> np.ndarray:
    check = _CHECKS[one.kind]
    made = []
    for row, value in enumerate(values):
        if value is None or value is _ABSENT or (type(value) is float and math.isnan(value) and one.dtype != object):
            if one.required:
                found = f"is missing; expected {one.expected}"
                raise Refused(row, f"feature {one.name!r} {found}")
            made.append(one.missing if one.values is None else [one.missing] * one.values)
        elif one.values is None:
            made.append(check(one, row, value))
        elif isinstance(value, list) and len(value) == one.values:
            made.append([check(one, row, item) for item in value])
        else:
            raise _mistyped(one, row, value)
    shape = (len(made),) if one.values is None else (len(made), one.values)
    # Text would otherwise become NumPy's own, which ends at a zero byte.
    column = np.empty(shape, one.dtype)
    if made:
        column[:] = made
    return column


def _integer(one: Input, row: int, value: Any) -> int:
    if type(value) is bool or (type(value) is float and value.is_integer()):
        value = int(value)  # booleans are read as 0 and 1
    if type(value) is not int:
        raise _mistyped(one, row, value)
    if not -_INT64 <= value < _INT64:
        raise Refused(row, f"feature {one.name!r}: {_shown(value)} does not fit into 64 bits; expected {one.expected}")
    return value


def _float(one: Input, row: int, value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise _mistyped(one, row, value)
    limit = float(np.finfo(one.dtype).max)
    if not -limit <= value <= limit:
        raise Refused(row, f"feature {one.name!r}: {_shown(value)} is too large; expected {one.expected}")
    return float(value)


def _text(one: Input, row: int, value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise Refused(row, f"feature {one.name!r}: {_shown(value)} is no valid Unicode") from error
    return _base64(one, row, value)


def _base64(one: Input, row: int, value: Any) -> bytes:
    """Bytes in TensorFlow Serving's way, {"b64": "..."}."""
    if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, ValueError) as error:
            raise Refused(row, f"feature {one.name!r}: {_shown(value['b64'])} is no base64: {error}") from error
    raise _mistyped(one, row, value)


_CHECKS: dict[str, Callable[[Input, int, Any], Any]] = {
    "integers": _integer,
    "floats": _float,
    "text": _text,
    EXAMPLES: _base64,
}


def _mistyped(one: Input, row: int, value: Any) -> Refused:
    return Refused(row, f"feature {one.name!r}: expected {one.expected}, got {_shown(value)}")


def _unknown(name: str, inputs: Mapping[str, Input]) -> str:
    close = difflib.get_close_matches(name[:100], inputs, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"expected {shortened(inputs)}"
    return f"unknown feature {_shown(name)}; {hint}"


def _shown(value: Any) -> str:
    kind = {dict: "an object", list: "a list", bool: str(value).lower(), type(None): "null"}.get(type(value))
    try:
        text = kind or repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        text = "a huge number"
    return text if len(text) <= 40 else f"{text[:37]}..."


def _from_lists(one: Input, column: Any, numbers: np.ndarray, file: str) -> np.ndarray:
    """A column of lists, as ``examples.as_lists`` makes them → what the signature takes."""
    rows, width = len(numbers), one.values or 1
    shape = (rows,) if one.values is None else (rows, width)
    lists = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_null(lists.type):
        lists = pa.nulls(rows, pa.list_(pa.large_binary() if one.dtype == object else pa.float32()))
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
    wrong = (lengths != width) & ((lengths != 0) | one.required)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        found = f"has {lengths[at]} values; expected {width}" if lengths[at] else f"is missing; expected {one.expected}"
        raise UserError(f"{file}, row {numbers[at]}: feature {one.name!r} {found}")
    flat = lists.flatten()
    is_text = pa.types.is_large_binary(flat.type)
    values = flat.to_numpy(zero_copy_only=False)
    odd = one.kind == "integers" and pa.types.is_floating(flat.type) and (values[np.isfinite(values)] % 1 != 0).any()
    if (len(values) and is_text != (one.dtype == object)) or odd:
        found = "text" if is_text else "floats" if pa.types.is_floating(flat.type) else "integers"
        raise UserError(f"{file}: the column {one.name!r} holds {found}; the model takes {one.kind}")
    if (lengths == width).all():
        return values.astype(one.dtype, copy=False).reshape(shape)
    made = np.full((rows, width), one.missing, one.dtype)
    made[lengths == width] = values.reshape(-1, width)
    return made.reshape(shape)
