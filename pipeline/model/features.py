"""Convert raw features, from JSON or from files, to checked columns of a signature.

A missing value is ``null`` or left out; a signature takes NaN for it or, for text, "".
"""

import difflib
import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data.csv_files import EXPECTED, column_hint, parse
from pipeline.data.examples import as_lists, serialize
from pipeline.data.table import Rows, is_list, one_array
from pipeline.errors import UserError
from pipeline.model.inputs import ANY, INT64, Input, quoted, take_examples
from pipeline.settings.names import shortened

Columns: TypeAlias = Mapping[str, np.ndarray]
Converter: TypeAlias = Callable[[Sequence[Any]], dict[str, np.ndarray] | None]
# Of values from JSON that need no conversion.
PLAIN: dict[str, set[type]] = {"floats": {float, int}, "integers": {int}, "text": {str}}
# Of a tf.Example, where it is not bytes_list.
FIELDS = {"integers": "int64_list", "floats": "float_list"}


class Refused(Exception):
    """An invalid row (counted from 0) or, with row None, an invalid column or request."""

    def __init__(self, row: int | None, reason: str):
        super().__init__(reason if row is None else f"instances[{row}]: {reason}")
        self.row = row
        self.reason = reason


def from_instances(
    instances: Sequence[Any],
    inputs: Mapping[str, Input],
    *,
    ignore_others: bool = False,
    most_cells: int | None = None,
) -> dict[str, np.ndarray]:
    """Convert rows from JSON to columns by input, [rows] or [rows, values]; ``most_cells`` limits all values."""
    if len(inputs) == 1:
        (only,) = inputs
        instances = [row if isinstance(row, dict) and only in row else {only: row} for row in instances]
    for number, row in enumerate(instances):
        if not isinstance(row, dict):
            raise Refused(number, f"expected an object of features and their values, got {quoted(row)}")
        if not ignore_others and not row.keys() <= inputs.keys():
            raise Refused(number, _unknown(row, inputs))
    widths = (_width(column, (row.get(name) for row in instances)) for name, column in inputs.items())
    _check_cells(len(instances), sum(widths), most_cells)
    return {name: _column(column, [row.get(name) for row in instances]) for name, column in inputs.items()}


def plain_rows(inputs: Mapping[str, Input]) -> Converter:
    """Return a replacement of ``from_instances``, in a third of its time; it returns None for rows with other types."""
    if any(column.kind not in PLAIN or column.values is not None for column in inputs.values()):
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
        return {name: column.respelled(columns[name]) for name, column in inputs.items()}

    return convert


def _block(
    names: Sequence[str], kind: str, required: bool, dtype: np.dtype
) -> Callable[[Sequence[dict[str, Any]]], np.ndarray | None]:
    """Return a converter of columns of one kind, to [rows, columns]."""
    types = PLAIN[kind] if required else PLAIN[kind] | {type(None)}
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


def from_columns(values: Any, inputs: Mapping[str, Input], *, most_cells: int | None = None) -> dict[str, np.ndarray]:
    """Convert columns from JSON, TensorFlow Serving's "inputs", as ``from_instances`` converts rows."""
    if len(inputs) == 1 and not (isinstance(values, dict) and values.keys() == inputs.keys()):
        values = {next(iter(inputs)): values}
    if not isinstance(values, dict):
        raise Refused(None, f'"inputs": expected an object of features and lists of values, got {quoted(values)}')
    if not values.keys() <= inputs.keys():
        raise Refused(None, _unknown(values, inputs))
    for name, column in values.items():
        if not isinstance(column, list):
            raise Refused(None, f"feature {name!r}: expected a list of values, got {quoted(column)}")
    check_lengths(values)
    missing = [None] * row_count(values)
    _check_cells(len(missing), sum(_width(column, values.get(name, ())) for name, column in inputs.items()), most_cells)
    return {name: _column(column, values.get(name, missing)) for name, column in inputs.items()}


def from_table(rows: Rows, file: str, inputs: Mapping[str, Input]) -> dict[str, np.ndarray]:
    """Convert rows of a file to columns of the values that ExampleGen writes into tf.Examples."""
    if take_examples(inputs):
        records = serialize(as_lists(rows, file))
        return {name: np.array(records, object) for name in inputs}
    check_columns(file, rows.table.column_names, inputs)
    present = [name for name in inputs if name in rows.table.column_names]
    lists = as_lists(Rows(rows.table.select(present), rows.numbers), file)
    absent = pa.nulls(len(rows.numbers))
    return {
        name: _from_lists(column, lists.column(name) if name in present else absent, rows.numbers, file)
        for name, column in inputs.items()
    }


def lacking(rows: Rows, inputs: Mapping[str, Input]) -> dict[int, str]:
    """Return the rows of a file that lack a value which the model needs, by place from 0, and the reason."""
    found: dict[int, str] = {}
    for name, column in inputs.items():
        if column.required and name in rows.table.column_names:
            values = one_array(rows.table.column(name))
            lengths = pc.list_value_length(values) if is_list(values.type) else values.is_valid().cast(pa.int32())
            for place in np.flatnonzero(np.asarray(pc.fill_null(lengths, 0)) == 0).tolist():
                found.setdefault(place, f"feature {name!r} is missing; expected {column.expected}")
    return dict(sorted(found.items()))


def check_columns(file: str, columns: Sequence[str], inputs: Mapping[str, Input]) -> list[str]:
    """Return the optional features that a file lacks; raise a UserError if it lacks a required one, or all."""
    absent = [name for name in inputs if name not in columns]
    required = [repr(name) for name in absent if inputs[name].required]
    if required:
        raise UserError(
            f"{file} has no column {shortened(required)}, which the model needs; it has {shortened(columns)}"
            f"{column_hint(file, columns, inputs)}"
        )
    check_common_columns(file, columns, inputs)
    return absent


def check_common_columns(file: str, columns: Sequence[str], inputs: Mapping[str, Input]) -> None:
    """Raise a UserError where a file has none of the features."""
    if inputs.keys().isdisjoint(columns):
        raise UserError(
            f"{file} has no column in common with the model: is it a file of another table? The model takes "
            f"{shortened(inputs)}; the file has {shortened(columns)}{column_hint(file, columns, inputs)}"
        )


def joined(parts: Sequence[np.ndarray], column: Input) -> np.ndarray:
    """Return the rows of a column of several requests, [rows] or [rows, values]."""
    if column.values == ANY:
        width = max(part.shape[1] for part in parts)
        fill = [((0, 0), (0, width - part.shape[1])) for part in parts]
        parts = [np.pad(part, of, constant_values=column.missing) for part, of in zip(parts, fill, strict=True)]
    return np.concatenate(parts)


def check_lengths(columns: Mapping[str, Sized]) -> None:
    """Raise Refused where columns have different numbers of rows."""
    lengths = sorted((len(column), name) for name, column in columns.items())
    if lengths and lengths[0][0] != lengths[-1][0]:
        (fewest, shortest), (most, longest) = lengths[0], lengths[-1]
        raise Refused(None, f"features of different length: {shortest!r} has {fewest} values, {longest!r} has {most}")


def row_count(columns: Mapping[str, Sized]) -> int:
    """Return the number of rows in columns."""
    return len(next(iter(columns.values()))) if columns else 0


def _width(column: Input, values: Iterable[Any]) -> int:
    """Return the values in a row of a column's tensor."""
    if column.values != ANY:
        return column.values or 1
    return max((len(value) for value in values if isinstance(value, list)), default=1)


def _check_cells(rows: int, width: int, most: int | None) -> None:
    if most is not None and rows * width > most:
        raise Refused(
            None,
            f"{rows:,} rows of {width:,} values, each list filled up to the longest, are {rows * width:,} values; "
            f"expected at most {most:,}: send fewer rows, or those with long lists apart",
        )


def _column(column: Input, values: Sequence[Any]) -> np.ndarray:
    """Convert the values of one feature, None where it is missing, to its tensor."""
    is_text = column.dtype == object
    converted: list[Any] = []
    for row, value in enumerate(values):
        try:
            if value is None or (type(value) is float and math.isnan(value) and not is_text):
                if column.required:
                    raise Refused(row, f"feature {column.name!r} is missing; expected {column.expected}")
                converted.append(column.missing if column.values is None else [column.missing] * column.values)
            elif column.values is None:
                converted.append(column.convert(value))
            elif isinstance(value, list) and column.values in (len(value), ANY):
                converted.append([column.convert(item) for item in value])
            else:
                raise ValueError(quoted(value))
        except ValueError as error:
            raise Refused(row, f"feature {column.name!r}: expected {column.expected}, got {error}") from error
    if column.values == ANY:
        flat = [value for row in converted for value in row]
        return _filled_up(column, np.array([*flat, None], object)[:-1], np.array([len(row) for row in converted], int))
    # np.array() would make NumPy's own text of it, which ends at a zero byte.
    tensor = np.empty(column.shape(len(converted)), column.dtype)
    if converted:
        tensor[:] = converted
    return tensor


def _unknown(row: Collection[str], inputs: Mapping[str, Input]) -> str:
    """Say which name of a row is not a feature, and suggest one that the row lacks."""
    name = next(name for name in row if name not in inputs)
    absent = [feature for feature in inputs if feature not in row]
    close = difflib.get_close_matches(name[:100], absent, 1)
    if close:
        return f"unknown feature {quoted(name)}; did you mean {close[0]!r}?"
    others = f", or use one of {shortened(absent)}" if absent else ""
    return f"unknown feature {quoted(name)}: the model does not take it; leave it out{others}"


def _from_lists(column: Input, lists: Any, numbers: np.ndarray, file: str) -> np.ndarray:
    """Convert a column of lists, as ``as_lists`` makes them, to the tensor of an input."""
    rows, width = len(numbers), column.values or 1
    lists = one_array(lists)
    if pa.types.is_null(lists.type):
        lists = pa.nulls(rows, pa.list_(pa.large_binary() if column.dtype == object else pa.float32()))
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
    wrong = (lengths != width) & ((lengths != 0) | column.required) & (column.values != ANY)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        problem = f"has {lengths[row]} values; expected {width}"
        if not lengths[row]:
            problem = f"is missing; expected {column.expected}"
        raise UserError(f"{file}, row {numbers[row]}: feature {column.name!r} {problem}")
    flat = lists.flatten()
    is_text = pa.types.is_large_binary(flat.type)
    if is_text and column.kind in EXPECTED:
        values = _numbers_of(column, flat, np.repeat(numbers, lengths), file)
    elif column.kind == "text" and not is_text:
        values = _texts_of(column, flat, file)
    else:
        values = flat.to_numpy(zero_copy_only=False)
    has_fractions = column.kind == "integers" and values.dtype.kind == "f" and (values[np.isfinite(values)] % 1).any()
    if (len(values) and (values.dtype == object) != (column.dtype == object)) or has_fractions:
        raise UserError(f"{file}: the column {column.name!r} holds {_kind_of(flat)}; the model takes {column.kind}")
    values = column.respelled(values)
    if column.values == ANY:
        return _filled_up(column, values, lengths)
    if (lengths == width).all():
        return values.astype(column.dtype, copy=False).reshape(column.shape(rows))
    tensor = np.full((rows, width), column.missing, column.dtype)
    tensor[lengths == width] = values.reshape(-1, width)
    return tensor.reshape(column.shape(rows))


def _kind_of(flat: pa.Array) -> str:
    return (
        "text" if pa.types.is_large_binary(flat.type) else "floats" if pa.types.is_floating(flat.type) else "integers"
    )


def _numbers_of(column: Input, flat: pa.Array, rows: np.ndarray, file: str) -> np.ndarray:
    """Read text as the numbers of a column, as in a CSV file, NaN where it stands for a missing value."""
    texts = [column.spelled(text.decode(errors="replace")) for text in flat.to_pylist()]
    read, wrong = parse(pa.chunked_array([pa.array([str(text) for text in texts], pa.string())]), column.kind)
    if wrong is not None:
        at = int(np.flatnonzero(wrong)[0])
        expected = EXPECTED[column.kind]
        raise UserError(f"{file}, row {rows[at]}: column {column.name!r}: found {texts[at]!r}, expected {expected}")
    if read.null_count and column.required:
        at = pc.index(pc.is_null(read), True).as_py()
        raise UserError(f"{file}, row {rows[at]}: feature {column.name!r} is missing; expected {column.expected}")
    return read.to_numpy()


def _texts_of(column: Input, flat: pa.Array, file: str) -> np.ndarray:
    """Return numbers and truth values as the known texts that they stand for; UserError: not one of them does."""
    coded = flat.dictionary_encode()
    words = [column.spelled(value) for value in coded.dictionary.to_pylist()]
    if len(flat) and not any(isinstance(word, str) for word in words):
        such = f" such as {', '.join(map(repr, column.known[:3]))}" if column.known else ""
        raise UserError(f"{file}: the column {column.name!r} holds {_kind_of(flat)}; the model takes text{such}")
    texts = [b"" if word != word else str(word).encode() for word in words]
    return np.array([*texts, None], object)[:-1][np.asarray(coded.indices)]


def typed_examples(records: Iterable[bytes], inputs: Mapping[str, Input]) -> np.ndarray:
    """Return serialized tf.Examples with values in the types and the spelling of a model's raw features.

    Raises:
        Refused: a record is no tf.Example, or a feature is missing, of a wrong type or has too many values.
    """
    from google.protobuf.message import DecodeError
    from tensorflow.train import Example  # pipeline.vertex imports this file, without TensorFlow

    typed = []
    for row, record in enumerate(records):
        try:
            example = Example.FromString(record)
        except DecodeError as error:
            raise Refused(row, "it is no serialized tf.Example") from error
        for name, column in inputs.items():
            feature = example.features.feature[name]
            kind = feature.WhichOneof("kind")
            values = getattr(feature, kind).value if kind else ()
            if not values:
                if column.required:
                    raise Refused(row, f"feature {name!r} is missing; expected {column.expected}")
                continue
            if column.values != ANY and len(values) != (column.values or 1):
                raise Refused(row, f"feature {name!r}: expected {column.expected}, got {len(values)} values")
            if kind == FIELDS.get(column.kind, "bytes_list") and not column.spellings:
                continue
            try:
                converted = [_of_example(column, value) for value in values]
            except ValueError as error:
                raise Refused(row, f"feature {name!r}: expected {column.expected}, got {error}") from error
            feature.Clear()
            getattr(feature, FIELDS.get(column.kind, "bytes_list")).value.extend(converted)
        typed.append(example.SerializeToString())
    return np.array([*typed, None], object)[:-1]


def _of_example(column: Input, value: bytes | int | float) -> Any:
    """Convert a value of a tf.Example; raise a ValueError that says what was found instead."""
    if not isinstance(value, bytes):
        return column.convert(value)
    try:
        return column.convert(value.decode())
    except UnicodeDecodeError:
        if column.kind in FIELDS:
            raise ValueError("bytes") from None
        return value


def _filled_up(column: Input, values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the concatenated values of all rows as [rows, most values], padded with the missing value."""
    tensor = np.full((len(lengths), max(1, lengths.max(initial=0))), column.missing, column.dtype)
    tensor[np.arange(tensor.shape[1]) < lengths[:, None]] = values
    return tensor
