"""Scan CSV files with a header for parts and types; read the parts with types that are fixed."""

import codecs
import contextlib
import csv
import io
import lzma
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pa_csv

from pipeline import filesystem
from pipeline.data import files
from pipeline.data.csv_rows import Block, read_blocks
from pipeline.data.table import LARGEST, BadRow, Rows, Unit, check_decoded, too_large
from pipeline.errors import UserError, first_line
from pipeline.settings.notations import MISSING

# What a CSV column can be, from the narrowest to the widest.
NOTHING, INTEGERS, FLOATS, TEXT = TYPES = ("nothing", "integers", "floats", "text")
EXPECTED = {INTEGERS: "an integer", FLOATS: f"a number up to {LARGEST:.2g}"}
# Of some hundred thousand columns.
MOST_HEADER_BYTES = 2 << 20
# Comments or titles of an export.
LINES_BEFORE_HEADER = 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Raised by gzip, bz2 and lzma for a file that is damaged or ends too early.
_DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError)


def scan(file: str, known: Mapping[str, str]) -> tuple[dict[str, str], list[Unit]]:
    """Read a whole file for the types of its columns and its parts; UserError: it is no CSV file with a header.

    ``known`` types are decided, by a reviewed schema; the narrowest fitting type is inferred for other columns. A part
    is a block of a plain file, or a compressed file as a whole.
    """
    with _opened(file) as stream:
        names, start = _read_header(stream, file)
        types = {name: known.get(name, NOTHING) for name in names}
        unknown = [name for name in names if name not in known]
        units, rows = list[Unit](), 0
        for block in _blocks(stream, file, names, start):
            text = _as_text(block, names, file, unknown)
            for name in unknown:
                types[name] = narrowest(text[name], types[name])
            units.append(Unit(file, "csv", block.start, block.length, rows + 1, 2 * block.length))
            rows += block.rows
    if files.is_compressed(file):
        # Nothing but its beginning can be found in a compressed file.
        units = [Unit(file, "csv", start, None, 1, sum(unit.bytes for unit in units))] if units else []
    return types, units


def read(unit: Unit, types: Mapping[str, str], columns: Sequence[str] | None = None) -> Iterator[Rows]:
    """Read the rows of a part, block by block; raise a UserError if the file is cut short.

    ``types`` are of ``TYPES``; a column of "nothing" becomes nulls. ``columns`` None: those with a type. A unit that
    starts at 0 is the whole file.
    """
    with _opened(unit.file) as stream:
        names, header = _read_header(stream, unit.file)
        start = unit.start or header
        stream.seek(start)
        wanted = [name for name in names if name in (types if columns is None else columns)]
        for block in _blocks(stream, unit.file, names, start, unit.length, unit.first_row):
            text = _as_text(block, names, unit.file, wanted)
            values, reasons = {}, dict[int, str]()
            for name in wanted:
                values[name], wrong = parse(text[name], types[name])
                if wrong is not None:
                    for at in np.flatnonzero(wrong).tolist():
                        found = text[name][at].as_py()
                        expected = EXPECTED[types[name]]
                        reasons.setdefault(at, f"column {name!r}: found {found!r}, expected {expected}")
            rows = Rows(pa.table(values), block.numbers, [BadRow(unit.file, *row) for row in block.bad])
            if reasons:
                lines, bad = block.data.splitlines(), {}
                for at, reason in reasons.items():
                    row = lines[at].decode() if len(lines) == len(block.numbers) else _row_again(text, at)
                    bad[at] = BadRow(unit.file, int(block.numbers[at]), reason, row)
                rows = rows.without(bad)
            yield rows


def read_header(file: str) -> list[str]:
    """Return the names of the columns."""
    with _opened(file) as stream:
        return _read_header(stream, file)[0]


@contextlib.contextmanager
def _opened(file: str) -> Iterator[IO[bytes]]:
    with files.open_decompressed(file) as stream:
        try:
            yield stream
        except _DAMAGED as error:
            raise UserError(f"{file} is damaged or cut short: {first_line(error)}; write or copy it again") from error


def _read_header(stream: IO[bytes], file: str) -> tuple[list[str], int]:
    """Return the names of the columns and the position after them; none and 0 for an empty file."""
    # The header is one row: read on while its last quote is open.
    header, quotes, blank = bytearray(), 0, True
    # A lone return ends a line, too.
    pieces = iter(lambda: stream.readline(MOST_HEADER_BYTES + 1), b"")
    for line in (line for piece in pieces for line in piece.splitlines(keepends=True)):
        header += line
        if len(header) > MOST_HEADER_BYTES:
            raise UserError(
                f"{file} is not a CSV file with a header, whatever its name says: found no end of its first row in "
                f"{MOST_HEADER_BYTES >> 20} MB, which begin with {bytes(header[:40])!r}; expected the "
                "names of the columns"
            )
        quotes += line.count(b'"')
        blank = blank and not line.strip(b"\r\n" + _BYTE_ORDER_MARK)
        if not blank and quotes % 2 == 0:
            break
    stream.seek(len(header))
    if header.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(f"{file} is in UTF-16; expected UTF-8: save it as CSV UTF-8")
    try:
        text = header.removeprefix(_BYTE_ORDER_MARK).decode("utf-8")
        names = next(csv.reader(io.StringIO(text.strip("\r\n"), newline=""), strict=True), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{file} is not a CSV file with a header, whatever its name says: its first line is {bytes(header[:40])!r} "
            f"({error}); expected the names of the columns in UTF-8, with commas between them"
        ) from error
    first: dict[str, int] = {}
    for position, name in enumerate(names, 1):
        if not name:
            raise UserError(
                f"{file}: column {position} has no name; expected one in the header (pandas writes its index so: "
                f"use to_csv(index=False)){header_hint(names)}"
            )
        if first.setdefault(name, position) != position:
            raise UserError(
                f"{file}: the column name {name!r} occurs twice in the header, in columns {first[name]} and "
                f"{position}; expected different names{header_hint(names)}"
            )
        if "\x00" in name:
            raise UserError(f"{file} is not a CSV file with a header, whatever its name says: {name[:40]!r}")
    return names, len(header)


def header_hint(names: Sequence[str]) -> str:
    """Return the end of a message if a header looks like a row of values, a comment or a title, else ""."""
    if names and 2 * sum(_is_number(name) for name in names) >= len(names):
        return ". Its first line looks like a row: the file needs a header"
    if names and (names[0].lstrip().startswith("#") or 2 * names.count("") >= len(names)):
        return ". Its first line looks like a comment or a title: delete the lines before the header"
    return ""


def column_hint(file: str, names: Sequence[str], wanted: Collection[str]) -> str:
    """Return the end of a message on columns that a file of any format lacks: the reason if it is known, or ""."""
    if files.format_of(file) != "csv":
        return ""
    header = ",".join(names)
    for name, sign in (("semicolons", ";"), ("tabs", "\t"), ("bars", "|")):
        parts = [part.strip().strip('"') for part in header.split(sign)]
        if len(parts) > 1 and not set(wanted).isdisjoint(parts):
            return f". Its header has {name} between the columns: write the file with commas"
    with _opened(file) as stream:
        lines = [stream.readline(MOST_HEADER_BYTES).decode("utf-8", "replace") for _ in range(LINES_BEFORE_HEADER)]
    for number, line in enumerate(lines[1:], 2):
        cells = [cell.strip(' "\r\n') for cell in re.split(r"[,;\t|]", line)]
        if len(cells) > 1 and not set(wanted).isdisjoint(cells) and not any(map(_is_number, cells)):
            return f". Its line {number} looks like the header: delete the lines before it"
    return header_hint(names)


def _is_number(text: str) -> bool:
    return bool(re.match(_FLOAT, text.strip()))


def _blocks(
    stream: IO[bytes], file: str, names: Sequence[str], start: int, length: int | None = None, first_row: int = 1
) -> Iterator[Block]:
    """Read whole rows; see ``csv_rows.read_blocks``."""
    stored = filesystem.size(file) if files.is_compressed(file) else None
    for block in read_blocks(stream, file, names, start=start, length=length, first_row=first_row):
        if stored is not None:
            check_decoded(file, block.start + block.length, stored)
        yield block


def _as_text(block: Block, names: list[str], file: str, wanted: list[str] | None = None) -> pa.Table:
    """Return the wanted fields of a block as text; an empty field is null."""
    if not len(block.numbers):
        return pa.table({name: pa.array([], pa.string()) for name in wanted or names})
    # pyarrow drops a mark at the beginning, as of a file; in a row it belongs to the value.
    data = _BYTE_ORDER_MARK + block.data if block.data.startswith(_BYTE_ORDER_MARK) else block.data
    table = pa_csv.read_csv(
        pa.BufferReader(data),
        read_options=pa_csv.ReadOptions(column_names=names, use_threads=False, block_size=max(len(data) + 1, 1 << 16)),
        parse_options=pa_csv.ParseOptions(newlines_in_values=b'"' in block.data, ignore_empty_lines=len(names) > 1),
        convert_options=pa_csv.ConvertOptions(
            include_columns=wanted or names,
            column_types=dict.fromkeys(names, pa.string()),
            strings_can_be_null=True,
            null_values=[""],
            check_utf8=False,
        ),
    )
    if table.num_rows != len(block.numbers):
        raise AssertionError(
            f"{file}: {table.num_rows} rows where {len(block.numbers)} were counted, rows {block.numbers[0]} to "
            f"{block.numbers[-1]}; this is an error in pipeline/data/csv_rows.py"
        )
    return table.combine_chunks()


def _row_again(text: pa.Table, at: int) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(value.as_py() for value in (column[at] for column in text.columns))
    return out.getvalue()


def narrowest(text: pa.ChunkedArray, type_: str = NOTHING) -> str:
    """Return the narrowest type, no narrower than ``type_``, of all values in a column of text."""
    if text.null_count == len(text):
        return type_
    for candidate in (INTEGERS, FLOATS):
        if TYPES.index(type_) <= TYPES.index(candidate):
            values, wrong = _cast(text, candidate, ends=_WHOLE if candidate == INTEGERS else "")
            if wrong is None:
                # Words for a missing value alone say nothing of the type.
                return candidate if values.null_count < len(text) else type_
        if candidate == INTEGERS and pc.any(_beyond_int64(pc.utf8_trim_whitespace(text))).as_py():
            return TEXT  # as a float it would lose digits
    return TEXT


def parse(text: pa.ChunkedArray, type_: str) -> tuple[pa.ChunkedArray, np.ndarray | None]:
    """Parse a column of text; return the values, and a mask of the invalid ones (null among the values) or None.

    An integer may end in ".0", as pandas writes integers with gaps; a number must fit a tf.Example's float32. Where
    every value is true or false, in any case, or 1 or 0, they are 1 and 0.
    """
    if type_ == TEXT:
        return text, None
    if type_ == NOTHING:
        return pa.nulls(len(text)), None
    values, wrong = _cast(_as_digits(text), type_)
    if type_ == FLOATS:
        large = too_large(np.asarray(pc.fill_null(values, 0.0)))
        if large.any():
            wrong = large if wrong is None else wrong | large
            values = pc.if_else(pa.array(~large), values, None)
    return values, wrong


def _as_digits(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return 1 and 0 for true and false if all texts are one of these or missing; else return the texts."""
    if not pc.any(pc.match_substring_regex(text.slice(0, 1_000), "(?i)true|false")).as_py():
        return text
    trimmed = pc.utf8_lower(pc.utf8_trim_whitespace(text))
    at = pc.index_in(trimmed, pa.array(["false", "true", "0", "1", "0.0", "1.0"], text.type))
    if not pc.all(pc.or_(pc.is_valid(at), pc.or_(pc.is_null(text), is_missing(text)))).as_py():
        return text
    return pc.bit_wise_and(at, 1).cast(text.type)


def is_missing(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a mask of the texts that stand for a missing value among numbers."""
    return pc.is_in(pc.utf8_lower(pc.utf8_trim_whitespace(text)), pa.array(MISSING, text.type))


_WHOLE = r"[0-9]+"
_WHOLE_OR_POINT_ZERO = r"[0-9]+(\.0*)?"
_FLOAT = r"^[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|(?i:inf|infinity))$"


def _cast(
    text: pa.ChunkedArray, type_: str, ends: str = _WHOLE_OR_POINT_ZERO
) -> tuple[pa.ChunkedArray, np.ndarray | None]:
    """Return the numbers, null where one is invalid, and a mask of those, or None if all are valid."""
    target = pa.int64() if type_ == INTEGERS else pa.float64()
    try:
        values = text.cast(target)
        if type_ == FLOATS:
            not_numbers = pc.is_nan(values)
            if pc.any(not_numbers).as_py():
                values = pc.if_else(not_numbers, None, values)
            return values, None
        # pyarrow reads 0x1F as 31.
        if not pc.any(pc.match_substring_regex(text, "[xX]")).as_py():
            return values, None
    except pa.ArrowInvalid:
        pass
    trimmed = pc.if_else(is_missing(text), None, pc.utf8_trim_whitespace(text))
    fits = pc.match_substring_regex(trimmed, rf"^[+-]?{ends}$" if type_ == INTEGERS else _FLOAT)
    if type_ == INTEGERS:
        trimmed = pc.replace_substring_regex(pc.replace_substring_regex(trimmed, r"^\+", ""), r"\.0*$", "")
        fits = pc.and_(fits, pc.invert(_beyond_int64(trimmed)))
    values = pc.if_else(fits, trimmed, None).cast(target)
    wrong = np.asarray(pc.fill_null(pc.invert(fits), False))
    return values, wrong if wrong.any() else None


def _beyond_int64(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a mask of the texts that are integers which int64 cannot hold."""
    long = pc.greater_equal(pc.utf8_length(text), 19)
    if not pc.any(long).as_py():
        return long
    values = [
        value is not None and len(value) >= 19 and value.lstrip("+-").isdigit() and not -(2**63) <= int(value) < 2**63
        for value in text.to_pylist()
    ]
    return pa.chunked_array([pa.array(values)])
