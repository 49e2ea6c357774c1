"""Convert rows whose values have exactly the expected types, many at a time."""

import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from pipeline.model.inputs import INT64, Input

Converter: TypeAlias = Callable[[Sequence[Any]], dict[str, np.ndarray] | None]
TYPES: dict[str, set[type]] = {"floats": {float, int}, "integers": {int}, "text": {str}}


def plain_rows(inputs: Mapping[str, Input]) -> Converter:
    """Return a fast replacement of ``features.from_instances``, which takes a third of its time.

    It returns None for rows that ``from_instances`` must convert or reject: a value of another type, out of range, or a
    list.
    """
    if any(column.kind not in TYPES or column.values is not None for column in inputs.values()):
        return lambda rows: None
    names_of: dict[tuple[str, bool, np.dtype], list[str]] = {}
    for name, column in inputs.items():
        names_of.setdefault((column.kind, column.required, column.dtype), []).append(name)
    blocks = [(names, _block(names, *alike)) for alike, names in names_of.items()]
    # With a single input, an object without it is its value.
    absent = {name: None for name, column in inputs.items() if len(inputs) > 1 and not column.required}

    def convert(rows: Sequence[Any]) -> dict[str, np.ndarray] | None:
        if not all(type(row) is dict for row in rows):
            return None
        filled = [row if len(row) == len(inputs) else absent | row for row in rows]
        if not all(len(row) == len(inputs) for row in filled):
            return None
        columns: dict[str, np.ndarray] = {}
        for names, block in blocks:
            try:
                values = block(filled)
            except (KeyError, OverflowError, UnicodeEncodeError):
                return None
            if values is None:
                return None
            columns.update(zip(names, values.T, strict=True))
        return {name: columns[name] for name in inputs}

    return convert


def _block(
    names: Sequence[str], kind: str, required: bool, dtype: np.dtype
) -> Callable[[Sequence[dict[str, Any]]], np.ndarray | None]:
    """Return a converter of columns of one kind, to [rows, columns]."""
    types = TYPES[kind] if required else TYPES[kind] | {type(None)}
    # Of a single name it would give the value alone.
    pick = operator.itemgetter(*names) if len(names) > 1 else lambda row: (row[names[0]],)

    def block(rows: Sequence[dict[str, Any]]) -> np.ndarray | None:
        values = [pick(row) for row in rows]
        if not types.issuperset(map(type, chain.from_iterable(values))):
            return None
        if kind == "text":
            texts = [[b"" if text is None else text.encode() for text in row] for row in values]
            return np.array(texts, object).reshape(len(rows), len(names))
        with np.errstate(over="ignore"):  # found below
            numbers = np.array(values, dtype).reshape(len(rows), len(names))
        if dtype.kind == "f":
            in_range = np.isfinite(numbers) if required else ~np.isinf(numbers)
            if kind == "integers":
                in_range &= ~(np.abs(numbers) >= INT64)
            if not in_range.all():
                return None
        return numbers

    return block
