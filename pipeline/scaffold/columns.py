"""What the columns of somebody's data are, what the label asks for, and what no model can use."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.components import shards
from pipeline.config import Data, Label
from pipeline.data import find_files
from pipeline.errors import UserError
from pipeline.reading import examples, labels
from pipeline.reading.table import is_list
from pipeline.tasks import Task

# What is looked at; the run itself reads all.
MOST_ROWS = 2_000_000
FEWEST_ROWS = 50
# Below this, one of the splits would hardly have any.
ROWS_OF_A_CLASS = 20
ROWS_WITH_A_VALUE = 60
MOST_CLASSES = 100
# Whole numbers of more different values are a quantity.
CLASSES_OF_NUMBERS = 10
VALUES_OF_A_CODE = 50
NAMES_OF_CODES = re.compile(r"(^|[ _-])(id|code|zip|zipcode|postcode|tract|area)s?$", re.IGNORECASE)


@dataclass(frozen=True)
class Column:
    """A column that is not the label.

    Attributes:
        name: As in the data.
        kind: "text", "integers", "floats", "lists" or "nothing".
        distinct: Different values.
        is_code: Whole numbers that name something rather than measure it, or have few values.
        left_out: Why no model can use it; None for a feature.
    """

    name: str
    kind: str
    distinct: int
    is_code: bool
    left_out: str | None


@dataclass(frozen=True)
class Table:
    """The data, as far as it was looked at.

    Attributes:
        rows: As ExampleGen makes examples of them: lists of int64, float32 or bytes.
        label: What is to be predicted.
        values: The label: numbers of classes, int64, or numbers, float64, [rows].
        columns: The others.
        whole: Whether all rows were looked at.
    """

    rows: pa.Table
    label: Label
    values: np.ndarray
    columns: tuple[Column, ...]
    whole: bool

    def record_batch(self) -> pa.RecordBatch:
        """All rows, for TensorFlow Data Validation; a column without any value has no type there either."""
        return self.rows.combine_chunks().to_batches(max_chunksize=len(self.rows))[0]

    @property
    def features(self) -> tuple[Column, ...]:
        """The columns that a model can use."""
        return tuple(column for column in self.columns if not column.left_out)


def look(data: Data, label_name: str, task: Task | None) -> Table:
    """Reads the data and finds out what it is.

    Args:
        data: CSV or Parquet files.
        label_name: The column to predict.
        task: What it is; None finds out.

    Raises:
        UserError: the data or its label cannot make a model.
    """
    found = find_files(data).found
    if found.format == "tfrecord":
        raise UserError("pipeline.new reads CSV and Parquet files; for TFRecords copy configs/flights.py and edit it")
    job = shards.Job(
        files=tuple(("all", file) for file in found.all),
        format=found.format,
        output_splits=(),
        uri="",
        types={label_name: "text"},  # a class is a word as it stands there
    )
    scans = [shards.scan(pair, job) for pair in job.files]
    for one in scans:
        if one.problem:
            raise UserError(one.problem)
        if one.types:
            _check_columns(one.file, list(one.types), label_name)
    types = shards.merge_types([(one.file, one.types) for one in scans], job)
    tables, words, count = [], [], 0
    for one in scans:
        for unit in one.units:
            for rows in shards.read(unit, types):
                if rows.bad:
                    raise UserError(f"{rows.bad[0]}; correct it, or leave this row out")
                words.append(pa.chunked_array([rows.table.column(label_name).combine_chunks()]))
                tables.append(examples.as_lists(rows, unit.file))
                count += len(rows.table)
            if count >= MOST_ROWS:
                break
    if count < FEWEST_ROWS:
        raise UserError(f"{data.path} has {count:,} rows; expected at least {FEWEST_ROWS} to train, choose and test by")
    table = pa.concat_tables(tables, promote_options="default").combine_chunks()
    label, values = _label_of(label_name, pa.chunked_array([part for one in words for part in one.chunks]), task)
    encoded = pa.array(values, pa.float32() if label.task == "regression" else pa.int64())
    offsets = pa.array(np.arange(count + 1, dtype=np.int32))
    table = table.set_column(
        table.column_names.index(label_name), label_name, pa.ListArray.from_arrays(offsets, encoded)
    )
    columns = tuple(_column(name, table.column(name)) for name in table.column_names if name != label_name)
    if all(column.left_out for column in columns):
        reasons = "; ".join(f"{column.name}: {column.left_out}" for column in columns)
        raise UserError(f"{data.path} has no column to predict {label_name!r} by: {reasons}")
    return Table(table, label, values, columns, whole=count < MOST_ROWS)


def _check_columns(file: str, names: list[str], label: str) -> None:
    if len(names) == 1:
        other = next((sign for sign in (";", "\t", "|") if sign in names[0]), None)
        hint = f" Its header has {other!r} in it: write the file with commas" if other else ""
        raise UserError(
            f"{file} has one column, {names[0]!r}; expected the label and at least one to predict it by.{hint}"
        )
    if label not in names:
        close = difflib.get_close_matches(label, names, 1, 0.5)
        shown = ", ".join(names if len(names) <= 30 else [*names[:30], f"and {len(names) - 30} more"])
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise UserError(f"{file} has no column {label!r}, the label; it has {shown}{hint}")


def _label_of(name: str, column: pa.ChunkedArray, task: Task | None) -> tuple[Label, np.ndarray]:
    """What the label is, and its values as numbers."""
    array = pa.concat_arrays(column.chunks)
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    missing = array.null_count
    if missing:
        row = pc.index(pc.is_null(array), True).as_py() + 1
        raise UserError(
            f"the label {name!r} is missing in {missing:,} of {len(array):,} rows, first in row {row}; a model learns "
            "from rows with a label: leave these out"
        )
    numbers = _numbers(array)
    if numbers is not None and not np.isfinite(numbers).all():
        raise UserError(f"the label {name!r} is {numbers[~np.isfinite(numbers)][0]} in some rows; expected numbers")
    words = _words(array)
    counts = sorted(((one["values"], one["counts"]) for one in pc.value_counts(words).to_pylist()), key=_in_order)
    if len(counts) == 1:
        raise UserError(
            f"the label {name!r} is {counts[0][0]!r} in all of {len(array):,} rows; a model learns from labels that "
            "differ"
        )
    if task is None:
        few = len(counts) <= CLASSES_OF_NUMBERS and numbers is not None and bool((numbers == np.floor(numbers)).all())
        task = "binary" if len(counts) == 2 else "multiclass" if numbers is None or few else "regression"
    if task == "regression":
        if numbers is None:
            raise UserError(f"the label {name!r} is text such as {counts[0][0]!r}; regression expects numbers")
        return Label(name, classes=()), numbers
    if (task == "binary") != (len(counts) == 2):
        raise UserError(f"the label {name!r} has {len(counts):,} different values, and --task {task} was asked for")
    if len(counts) > MOST_CLASSES:
        raise UserError(
            f"the label {name!r} has {len(counts):,} different values, such as {counts[0][0]!r} and {counts[1][0]!r}; "
            f"expected at most {MOST_CLASSES} classes, or numbers"
        )
    rare = [(word, count) for word, count in counts if count < ROWS_OF_A_CLASS]
    if rare:
        listed = ", ".join(f"{word!r} ({count})" for word, count in rare[:5])
        raise UserError(
            f"the label {name!r} has too few rows of {listed}; each class needs at least {ROWS_OF_A_CLASS}, for train, "
            "eval and test: leave these rows out, or give them to another class"
        )
    label = Label(name, classes=tuple(word for word, _ in counts))
    return label, np.asarray(labels.encode(words, label.numbers)[0])


def _in_order(word_and_count: tuple[str, int]) -> tuple[bool, float, str]:
    """Numbers by size, then words by the alphabet: no before yes, False before True, 9 before 10."""
    word = word_and_count[0]
    number = float(word) if re.fullmatch(r"[+-]?[0-9]+(\.[0-9]*)?", word) else None
    return (number is None, number or 0.0, word)


def _numbers(array: pa.Array) -> np.ndarray | None:
    if pa.types.is_boolean(array.type):
        return None
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        array = pc.utf8_trim_whitespace(array)
    try:
        return np.asarray(array.cast(pa.float64()))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _words(array: pa.Array) -> pa.Array:
    if pa.types.is_boolean(array.type):
        return array.cast(pa.int8()).cast(pa.string())
    if pa.types.is_floating(array.type):
        whole = pc.all(pc.equal(array, pc.floor(array))).as_py()
        return (array.cast(pa.int64()) if whole else array).cast(pa.string())
    return pc.utf8_trim_whitespace(array.cast(pa.string()))


def _column(name: str, lists: pa.ChunkedArray) -> Column:
    array = lists.combine_chunks()
    array = pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
    rows = len(array)
    if pa.types.is_null(array.type) or not is_list(array.type) or not len(array.flatten()):
        return Column(name, "nothing", 0, False, "no row has a value")
    values = array.flatten()
    kind = {"int64": "integers", "float": "floats"}.get(str(values.type), "text")
    if (pc.max(pc.list_value_length(array)).as_py() or 0) > 1:
        return Column(name, "lists", 0, False, "several values in a row; say in the module file what to make of them")
    distinct = pc.count_distinct(values).as_py()
    left_out = None
    if distinct == 1 and len(values) == rows:
        left_out = f"{_shown(values[0].as_py())} in every row"
    elif len(values) < min(rows, max(ROWS_WITH_A_VALUE, rows / 200)):
        left_out = f"a value in {len(values):,} of {rows:,} rows only"
    elif kind == "text" and distinct > 100 and distinct > len(values) / 2:
        left_out = f"{distinct:,} different texts in {len(values):,} rows, too many to learn from each"
    elif kind == "integers" and distinct == rows and _names_rows(name, values):
        left_out = "numbers the rows"
    # pandas makes floats of integers with gaps.
    whole = kind != "text" and (kind == "integers" or pc.all(pc.equal(values, pc.floor(values))).as_py())
    named = bool(NAMES_OF_CODES.search(name)) and distinct <= rows / 20
    is_code = bool(whole) and distinct > 2 and (distinct <= VALUES_OF_A_CODE or named)
    return Column(name, kind, distinct, is_code, left_out)


def _names_rows(name: str, values: pa.Array) -> bool:
    span = pc.min_max(values).as_py()
    return bool(NAMES_OF_CODES.search(name)) or span["max"] - span["min"] == len(values) - 1


def _shown(value: object) -> str:
    return repr(value.decode(errors="replace")) if isinstance(value, bytes) else str(value)


def summary(table: Table) -> Mapping[str, str]:
    """What was found, a line for each kind of column."""
    label, values = table.label, table.values
    if label.task == "regression":
        what = f"{label.name}: a number, {values.min():g} to {values.max():g}, {values.mean():.4g} on average"
    else:
        shares = np.bincount(values, minlength=len(label.classes)) / len(values)
        each = [f"{word} ({100 * share:.3g} %)" for word, share in zip(label.classes, shares, strict=True)]
        shown = ", ".join(each if len(each) <= 8 else [*each[:8], f"and {len(each) - 8} more"])
        what = f"{label.name}: {'two' if len(each) == 2 else len(each)} classes, {shown}"
    named = {
        "text": [one.name for one in table.features if one.kind == "text"],
        "numbers": [one.name for one in table.features if one.kind != "text" and not one.is_code],
        "codes": [one.name for one in table.features if one.is_code],
    }
    lines = {"label": what}
    for kind, names in named.items():
        if names:
            lines[kind] = ", ".join(names if len(names) <= 12 else [*names[:12], f"and {len(names) - 12} more"])
    out = [f"{one.name} ({one.left_out})" for one in table.columns if one.left_out]
    if out:
        lines["left out"] = ", ".join(out if len(out) <= 12 else [*out[:12], f"and {len(out) - 12} more"])
    return lines
