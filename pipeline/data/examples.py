"""Convert tables to serialized tf.Examples, a whole column at a time, always the same bytes for the same row.

docs/data.md has the table of types. tfx_bsl's C++ encoder orders features randomly, so that the bytes and hashes of
equal rows differ; here they are sorted by name, in half the time (benchmarks/example_gen.py). An example is ``features
{ feature { key: name value { int64_list | float_list | bytes_list } } ... }``; in the wire format each of these is a
tag byte, a length and the content.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data.table import (
    IN_AN_EXAMPLE,
    LARGEST,
    TIMES,
    Rows,
    as_integers,
    is_list,
    one_array,
    too_large,
    type_name,
)
from pipeline.errors import UserError, first_line
from pipeline.settings.names import how_to_leave_out

# Tag bytes: field number << 3 | 2, "content of a given length".
FIELD_1, FIELD_2, FIELD_3 = b"\x0a", b"\x12", b"\x1a"
ROWS_AT_ONCE = 8_192
_NO_SEPARATOR = pa.scalar(b"", pa.large_binary())


def as_lists(rows: Rows, file: str) -> pa.Table:
    """Return the table with columns sorted by name, each list<int64>, list<float>, list<large_binary> or null."""
    columns = {}
    for name in sorted(rows.table.column_names):
        column = rows.table.column(name)
        try:
            columns[name] = _lists(column)
        except (_NoPlace, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            where = f"{file}, between rows {rows.numbers[0]} and {rows.numbers[-1]}, column {name!r}"
            raise UserError(f"{where}: {first_line(error)}; correct it, or {how_to_leave_out(name)}") from error
    return pa.table(columns)


class _NoPlace(ValueError):
    """A value that a tf.Example cannot hold."""


def _lists(column: pa.ChunkedArray) -> pa.Array:
    array = one_array(column)
    if pa.types.is_null(array.type):
        return array
    if is_list(array.type):
        values = array.flatten()  # leaves out what lies under nulls
        if values.null_count:
            raise _NoPlace("a list holds a null; a tf.Example has no missing value inside a list")
        lengths = pc.fill_null(pc.list_value_length(array), 0)
    else:
        lengths = pc.cast(array.is_valid(), pa.int32())
        values = array.drop_null()
    starts = np.concatenate([[0], np.cumsum(np.asarray(lengths))]).astype(np.int32)
    # A null offset makes a null list; the last one only ends the array.
    missing: np.ndarray = np.append(np.asarray(array.is_null()), False)
    return pa.ListArray.from_arrays(pa.array(starts, pa.int32(), mask=missing), _values(values))


def _values(values: pa.Array) -> pa.Array:
    kind = type_name(values.type)
    if kind in ("integers", "booleans"):
        try:
            return values.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise _NoPlace(
                f"a value is beyond the largest int64, {2**63 - 1}; a tf.Example holds int64 only"
            ) from error
    if kind == "nothing":
        return values.cast(pa.int64())
    if kind == "floats":
        numbers = values.cast(pa.float64())
        large = too_large(np.asarray(numbers))
        if large.any():
            raise _NoPlace(
                f"found {numbers.filter(pa.array(large))[0].as_py():g}; a tf.Example holds 32-bit floats, up to "
                f"{LARGEST:.2g}"
            )
        return numbers.cast(pa.float32())
    if kind == "text":
        return values.cast(pa.large_binary())
    if kind in TIMES:
        return as_integers(values)
    raise _NoPlace(f"of type {values.type}; expected {IN_AN_EXAMPLE}")


def serialize(table: pa.Table) -> list[bytes]:
    """Serialize every row of ``as_lists``; a null list, as every row of type null, is a feature without a value."""
    if not table.num_columns:
        return [b"\x0a\x00"] * table.num_rows
    records: list[bytes] = []
    for batch in table.to_batches(max_chunksize=ROWS_AT_ONCE):
        columns = [_entries(name, column) for name, column in zip(batch.schema.names, batch.columns, strict=True)]
        features = pc.binary_join_element_wise(*columns, _NO_SEPARATOR)
        whole = pc.binary_join_element_wise(_heads(features), features, _NO_SEPARATOR)
        records += whole.to_numpy(zero_copy_only=False).tolist()  # to_pylist makes a scalar of each on the way
    return records


def feature(value: int | float | bytes) -> bytes:
    """Return a serialized ``tf.train.Feature`` of one value."""
    if isinstance(value, bytes):
        return _bytes_feature([value])
    if isinstance(value, float):
        return _numbers_feature(FIELD_2, np.float32(value).tobytes())
    return _numbers_feature(FIELD_3, _varint(value & 0xFFFFFFFFFFFFFFFF))


def _heads(features: pa.Array) -> pa.Array:
    """Return the tag and length in front of each example's features."""
    lengths = pc.binary_length(features).dictionary_encode()
    heads = pa.array([FIELD_1 + _varint(length) for length in lengths.dictionary.to_pylist()], pa.large_binary())
    return heads.take(lengths.indices)


def _entries(name: str, lists: pa.Array) -> pa.Array:
    """Return one column's entry in the map of features, for every row."""
    key = _content(FIELD_1, name.encode())

    def entry(feature: bytes) -> bytes:
        return _content(FIELD_1, key + _content(FIELD_2, feature))

    if pa.types.is_null(lists.type):
        return pa.array([entry(b"")] * len(lists), pa.large_binary())
    values = lists.flatten()
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
    missing = np.asarray(lists.is_null())
    widths = np.unique(lengths[~missing])
    width = int(widths[0]) if len(widths) == 1 else 0
    if width and pa.types.is_floating(values.type):
        tails = np.asarray(values).view(np.uint8).reshape(-1, 4 * width)
        present = _with_tail(entry(_numbers_feature(FIELD_2, bytes(4 * width))), tails)
    elif width == 1 and pa.types.is_integer(values.type):
        present = _int_entries(np.asarray(values).view(np.uint64), entry)
    elif width == 1:
        coded = values.dictionary_encode()
        distinct = [entry(_bytes_feature([value])) for value in coded.dictionary.to_pylist()]
        present = pa.array(distinct, pa.large_binary()).take(coded.indices)
    else:
        return _entries_of_many(lists, values, lengths, missing, entry)
    if not missing.any():
        return present
    nothing = pa.array([entry(b"")], pa.large_binary())
    return pa.concat_arrays([present, nothing]).take(
        pa.array(np.where(missing, len(present), np.cumsum(~missing) - 1), pa.int64())
    )


def _int_entries(values: np.ndarray, entry: Callable[[bytes], bytes]) -> pa.Array:
    """Return entries of one integer each; those whose varint takes as many bytes are made together."""
    sizes = _varint_sizes(values)
    pieces, rows = [], []
    for size in np.unique(sizes):
        chosen = np.flatnonzero(sizes == size)
        shifts: np.ndarray = (7 * np.arange(size)).astype(np.uint64)
        tail = ((values[chosen, None] >> shifts) & np.uint64(0x7F)).astype(np.uint8)
        tail[:, :-1] |= 0x80
        pieces.append(_with_tail(entry(_numbers_feature(FIELD_3, bytes(int(size)))), tail))
        rows.append(chosen)
    if len(pieces) == 1:
        return pieces[0]
    place: np.ndarray = np.empty(len(values), np.int64)
    if rows:
        place[np.concatenate(rows)] = np.arange(len(values))
    return pa.concat_arrays(pieces or [pa.array([], pa.large_binary())]).take(pa.array(place))


def _with_tail(sample: bytes, tails: np.ndarray) -> pa.Array:
    """Return, for every row of ``tails``, uint8 [rows, bytes], the sample with its last bytes replaced by the row."""
    rows, size = tails.shape
    whole = np.empty((rows, len(sample)), np.uint8)
    whole[:, : len(sample) - size] = np.frombuffer(sample, np.uint8)[: len(sample) - size]
    whole[:, len(sample) - size :] = tails
    offsets: np.ndarray = np.arange(rows + 1, dtype=np.int64) * len(sample)
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(whole.reshape(-1))]
    )


def _entries_of_many(
    lists: pa.Array, values: pa.Array, lengths: np.ndarray, missing: np.ndarray, entry: Callable[[bytes], bytes]
) -> pa.Array:
    """Return entries where some row has several values or an empty list."""
    ends = np.concatenate([[0], np.cumsum(lengths)])  # of each row's values
    if pa.types.is_floating(values.type):
        tag, packed, ends = FIELD_2, np.asarray(values).view(np.uint8), 4 * ends
    elif pa.types.is_integer(values.type):
        tag, (packed, starts) = FIELD_3, _varints(np.asarray(values).view(np.uint64))
        ends = starts[ends]
    else:
        texts = values.to_pylist()
        made = [
            entry(b"" if absent else _bytes_feature(texts[end - length : end]))
            for end, length, absent in zip(ends[1:].tolist(), lengths.tolist(), missing.tolist(), strict=True)
        ]
        return pa.array(made, pa.large_binary())
    # Before the numbers of a row stands what depends on their bytes' number alone; of a missing value that is all.
    sizes = np.where(missing, -1, np.diff(ends))
    kinds, kind_of_row = np.unique(sizes, return_inverse=True)
    heads = [entry(_numbers_feature(tag, bytes(size)))[: -size or None] if size >= 0 else entry(b"") for size in kinds]
    numbers = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(lists), [None, pa.py_buffer(ends.astype(np.int64)), pa.py_buffer(packed)]
    )
    before = pa.array(heads, pa.large_binary()).take(pa.array(kind_of_row))
    return pc.binary_join_element_wise(before, numbers, _NO_SEPARATOR)


def _varints(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the varints of uint64 values in a row, uint8 [bytes], and where each begins and the last one ends."""
    sizes = _varint_sizes(values)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    packed = np.zeros(starts[-1], np.uint8)
    for place in range(sizes.max(initial=0)):
        longer = np.flatnonzero(sizes > place)
        part = ((values[longer] >> np.uint64(7 * place)) & np.uint64(0x7F)).astype(np.uint8)
        packed[starts[longer] + place] = part | np.where(sizes[longer] > place + 1, 0x80, 0).astype(np.uint8)
    return packed, starts


def _varint_sizes(values: np.ndarray) -> np.ndarray:
    """Return how many bytes the varint of each uint64 value takes, int64 [values]."""
    sizes: np.ndarray = np.ones(len(values), np.int64)
    for bits in range(7, int(values.max(initial=0)).bit_length(), 7):
        sizes += values >= np.uint64(1 << bits)
    return sizes


def _numbers_feature(kind: bytes, packed: bytes) -> bytes:
    return _content(kind, _content(FIELD_1, packed) if packed else b"")


def _bytes_feature(values: Sequence[bytes]) -> bytes:
    return _content(FIELD_1, b"".join(_content(FIELD_1, value) for value in values))


def _content(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
