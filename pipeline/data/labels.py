"""Encode labels as the numbers of their classes, and check the weights of rows."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data.table import BadRow, Rows, Unit, one_array, single_values, too_large, type_name
from pipeline.errors import UserError
from pipeline.settings.names import shortened
from pipeline.settings.notations import plain, spellings

SHOWN = 8


def with_numbers(rows: Rows, label: str, numbers: Mapping[str, int], unit: Unit) -> Rows:
    """Replace the label's values by numbers; rows with another value are bad rows, see ``without``."""
    table = rows.table
    if label not in table.column_names:
        return rows
    values, wrong = encode(table.column(label), numbers)
    table = table.set_column(table.column_names.index(label), label, values)
    reasons = {
        at: f"the label {label!r} is {(found := rows.table.column(label)[at].as_py())!r}; expected {choices(numbers)}"
        f"{spelling_hint(found, numbers)}"
        for at in np.flatnonzero(wrong).tolist()
    }
    return without(replace(rows, table=table), reasons, unit)


def with_weights(rows: Rows, weight: str, unit: Unit) -> Rows:
    """Convert the weights to float64 scalars; rows with a missing, negative or infinite one are bad rows."""
    table = rows.table
    if weight not in table.column_names:
        raise UserError(
            f"{unit.file} has no column {weight!r}, the weight; it has {shortened(table.column_names) or 'no columns'}"
        )
    values = single_values(table.column(weight))
    if type_name(values.type) not in ("integers", "floats", "nothing"):
        raise UserError(f"{unit.file}: the weight {weight!r} is {values.type}; expected numbers")
    values = values.cast(pa.float64())
    numbers = np.asarray(pc.fill_null(values, np.nan))
    wrong = ~(np.isfinite(numbers) & (numbers >= 0)) | too_large(numbers)
    rows = replace(rows, table=table.set_column(table.column_names.index(weight), weight, values))
    reasons = {
        at: f"the weight {weight!r} is {'missing' if values[at].as_py() is None else numbers[at]}; expected "
        "a number of 0 or more in every row"
        for at in np.flatnonzero(wrong).tolist()
    }
    return without(rows, reasons, unit)


def without(rows: Rows, reasons: Mapping[int, str], unit: Unit) -> Rows:
    """Move rows of a CSV file to the bad ones, by place from 0 and reason; raise a UserError for other formats."""
    if not reasons:
        return rows
    bad = {at: BadRow(unit.file, int(rows.numbers[at]), reason, "") for at, reason in reasons.items()}
    if unit.format != "csv":
        raise UserError(str(next(iter(bad.values()))))
    return rows.without(bad)


def encode(column: pa.Array, numbers: Mapping[str, int]) -> tuple[pa.Array, np.ndarray]:
    """Return values as int64, null where one is not a class; and a mask of those, without missing values.

    Integers in the range of class numbers are not checked: the data gate does that.
    """
    column = one_array(column)
    if pa.types.is_null(column.type):
        return column, np.zeros(len(column), bool)
    places = {str(number): number for number in numbers.values()}
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if pa.types.is_integer(column.type) and places.items() <= numbers.items():
        return column.cast(pa.int64()), np.zeros(len(column), bool)
    if pa.types.is_floating(column.type):
        whole = pc.equal(column, pc.floor(column))
        text = pc.if_else(whole, pc.cast(pc.if_else(whole, column, 0), pa.int64()).cast(pa.string()), "not a class")
    elif pa.types.is_integer(column.type):
        text = column.cast(pa.string())
    else:
        text = pc.utf8_trim_whitespace(column.cast(pa.large_string()))
    # Of each class the word that is first, not its number.
    words = {number: word for word, number in reversed(list(numbers.items()))}
    alike = spellings(words.values())
    distinct = text.dictionary_encode()
    found = [word if word in numbers else alike.get(plain(word)) for word in distinct.dictionary.to_pylist()]
    at = pc.index_in(pa.array(found, pa.string()), pa.array(list(numbers), pa.string()), skip_nulls=True)
    coded = pa.array(list(numbers.values()), pa.int64()).take(at.take(distinct.indices))
    return coded, np.asarray(pc.and_(pc.is_valid(column), pc.is_null(coded)))


def folded(word: str) -> str:
    """Return what the spellings of a word have in common: not case and spaces."""
    return " ".join(word.casefold().split())


def spelling_hint(found: object, numbers: Mapping[str, int]) -> str:
    """Return the remedy for a value that is another spelling of a class, or ""."""
    same = [word for word in numbers if isinstance(found, str) and folded(word) == folded(found)]
    return f"; if it means {same[0]!r}: Label(..., spellings={{{str(found).strip()!r}: {same[0]!r}}})" if same else ""


def choices(numbers: Mapping[str, int]) -> str:
    """Return the values that are classes, for a message."""
    words = list(numbers)
    *most, last = words if len(words) <= SHOWN else [*words[: SHOWN - 1], f"one of {len(words) - SHOWN + 1} more"]
    return f"{', '.join(most)} or {last}"
