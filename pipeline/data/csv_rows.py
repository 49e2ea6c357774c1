"""Split CSV bytes into whole rows with a known number of fields, so that no row is dropped or shifted silently.

Vectorized over blocks. A row ends at a line break outside quotes; quotes enclose a whole field and are doubled inside
it (RFC 4180). A row that breaks these rules ends at its line's end.
"""

import bisect
import contextlib
import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np

from pipeline.errors import UserError

# Small enough to assign the blocks of one file to many shards, large enough that the rows dominate the time.
BLOCK_BYTES = 2 << 20
# A row of more bytes than this is taken for a quote that was never closed.
MOST_ROW_BYTES = 16 << 20
QUOTE, COMMA, RETURN, NEWLINE = b'",\r\n'
REPEATED_HEADER = "repeats the header, as in files that were put one after another"
# What may stand around a name: spaces, quotes, a byte-order mark, line breaks.
_AROUND_NAMES = ' \t"\ufeff\r\n'
_IN_NAMES = ~np.isin(np.arange(256), list(_AROUND_NAMES.encode()))


@dataclass(frozen=True)
class Block:
    """Whole rows of a CSV file."""

    data: bytes  # the good rows, without blank lines
    numbers: np.ndarray  # of the good rows, int64 [rows]; blank lines are not counted
    start: int  # first byte of the block in the decompressed file
    length: int  # bytes in the file, with those left out of data
    bad: list[tuple[int, str, str]]  # number, reason and text

    @property
    def rows(self) -> int:
        """Return the number of rows, including bad ones."""
        return len(self.numbers) + len(self.bad)


def read_blocks(
    stream: IO[bytes], file: str, names: Sequence[str], *, start: int = 0, length: int | None = None, first_row: int = 1
) -> Iterator[Block]:
    """Read whole rows from a stream after the header, at ``start`` of the file, block by block.

    Raises:
        UserError: a row has no end, or is a header with the columns in another order.
    """
    rest = b""
    end = None if length is None else start + length
    position = start
    while True:
        room = BLOCK_BYTES if end is None else min(BLOCK_BYTES, end - position - len(rest))
        chunk = stream.read(room) if room else b""
        data, at_end = rest + chunk, not chunk
        if not data:
            return
        block = _block(data, at_end, names, position, first_row, file)
        if not at_end and not block.length and len(data) > MOST_ROW_BYTES:
            raise UserError(
                f"{file}: row {first_row} has no end within {MOST_ROW_BYTES >> 20} MB; expected a line break after "
                "each row"
            )
        yield block
        first_row += block.rows
        position += block.length
        rest = data[block.length :]


def _bad_lines(codes: np.ndarray, quotes: np.ndarray, breaks: np.ndarray, at_end: bool) -> dict[tuple[int, int], str]:
    """Return (start, end) of lines that begin a row with a misplaced quote, with the reason.

    Each line is judged both as if it began outside and inside quotes; which applies is then found from odd line to odd
    line, so that the time is linear in the lines however many are bad.
    """
    line_ends: np.ndarray = np.flatnonzero(breaks) + 1
    if at_end and (not len(line_ends) or line_ends[-1] < len(codes)):
        line_ends = np.append(line_ends, len(codes))
    if not len(line_ends):
        return {}
    first: np.ndarray = np.asarray(np.searchsorted(quotes, np.concatenate([[0], line_ends])))  # quote of each line
    quotes = quotes[: first[-1]]
    lines: np.ndarray = np.repeat(np.arange(len(line_ends)), np.diff(first))
    is_even = (np.arange(len(quotes)) - first[lines]) % 2 == 0
    cannot_open = ~(_BESIDE_QUOTES[codes[np.maximum(quotes - 1, 0)]] | (quotes == 0))
    cannot_close = ~(_BESIDE_QUOTES[codes[np.minimum(quotes + 1, len(codes) - 1)]] | (quotes + 1 == len(codes)))

    def wrong(opens: np.ndarray) -> dict[int, bool]:
        """Return, by line in order, whether its first misplaced quote would open a field."""
        misplaced = np.flatnonzero(np.where(opens, cannot_open, cannot_close))
        of_line, at = np.unique(lines[misplaced], return_index=True)
        return dict(zip(of_line.tolist(), opens[misplaced[at]].tolist(), strict=True))

    odd = np.flatnonzero(np.diff(first) % 2).tolist()
    from_outside = wrong(is_even)
    from_inside = wrong(~is_even) if odd else {}
    if not from_outside and not from_inside and len(odd) % 2 == 0:
        return {}
    wrong_inside, ends, bad, line = list(from_inside), line_ends.tolist(), dict[tuple[int, int], str](), 0
    for at in sorted({*from_outside, *odd}):
        if at < line:
            continue  # within a row of several lines
        start, opens = ends[at - 1] if at else 0, from_outside.get(at)
        if opens is None:
            last, error = _first_after(odd, at), _first_after(wrong_inside, at)
            if error is not None and (last is None or error <= last):
                opens = from_inside[error]
            elif last is not None:
                line = last + 1
                continue
            elif not at_end and len(codes) - start <= MOST_ROW_BYTES:
                break  # it may be closed in what comes next
        bad[start, ends[at]] = _NEVER_CLOSED if opens is None else _INNER_QUOTE if opens else _TEXT_AFTER_QUOTE
    return bad


def _first_after(numbers: list[int], number: int) -> int | None:
    place = bisect.bisect_right(numbers, number)
    return numbers[place] if place < len(numbers) else None


def _outside_quotes(codes: np.ndarray, quotes: np.ndarray, bad_lines: Mapping[tuple[int, int], str]) -> np.ndarray:
    """Return a mask of the bytes outside quotes; the line after a bad one begins outside."""
    if not len(quotes):
        return np.ones(len(codes), bool)
    toggles = (codes == QUOTE).view(np.uint8)
    for start, end in bad_lines:
        if end < len(codes):
            toggles[end] ^= (np.searchsorted(quotes, end) - np.searchsorted(quotes, start)) % 2
    return np.asarray(np.bitwise_xor.accumulate(toggles) == 0)


_BESIDE_QUOTES = np.isin(np.arange(256), (COMMA, NEWLINE, RETURN, QUOTE))
_INNER_QUOTE = (
    "found a quote inside a field that does not start with one; expected the whole field in quotes, its own doubled"
)
_TEXT_AFTER_QUOTE = "found a quote that is not closed, or text after a closing quote; expected a comma or the row's end"
_NEVER_CLOSED = "found a quote that is never closed; expected one more quote"


def _headers(body: bytes, starts: np.ndarray, ends: np.ndarray, names: Sequence[str]) -> Iterator[tuple[int, bool]]:
    """Yield the rows whose cells are the columns' names, and whether they are in the same order.

    A file of one column has none: there, the name may be a value.
    """
    if len(names) < 2 or max(names, key=len).encode().replace(b'"', b'""') not in body:
        return
    wanted = [name.strip(_AROUND_NAMES) for name in names]
    length = len(",".join(wanted).encode().translate(None, _AROUND_NAMES.encode()))
    lengths = np.add.reduceat(_IN_NAMES[np.frombuffer(body, np.uint8)], starts, dtype=np.int64)
    for row in np.flatnonzero(lengths == length).tolist():
        line = body[starts[row] : ends[row]].decode("utf-8", "replace").strip("\ufeff\r\n")
        cells: list[str] = []
        with contextlib.suppress(csv.Error):  # a field is too long for a name
            cells = next(csv.reader(io.StringIO(line, newline=""), skipinitialspace=True), [])
        cells = [cell.strip(_AROUND_NAMES) for cell in cells]
        if sorted(cells) == sorted(wanted):
            yield row, cells == wanted


def _block(data: bytes, at_end: bool, names: Sequence[str], start: int, first_row: int, file: str) -> Block:
    """Return the rows that end in some bytes; an end includes the line break."""
    columns = len(names)
    codes = np.frombuffer(data, np.uint8)
    breaks = codes == NEWLINE
    if b"\r" in data:
        # A return ends a row too, unless a newline follows; the very last one cannot be judged yet.
        returns = codes == RETURN
        breaks[:-1] |= returns[:-1] & (codes[1:] != NEWLINE)
        breaks[-1] |= at_end and returns[-1]
    quotes = np.flatnonzero(codes == QUOTE)
    bad_lines = _bad_lines(codes, quotes, breaks, at_end) if len(quotes) else {}
    outside = _outside_quotes(codes, quotes, bad_lines)
    ends: np.ndarray = np.flatnonzero(breaks & outside) + 1
    if bad_lines:
        ends = np.union1d(ends, [end for _, end in bad_lines])
    if at_end and len(codes) and (not len(ends) or ends[-1] < len(codes)):
        ends = np.append(ends, len(codes))  # the last row may lack its line break
    ends = ends.astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64) if len(ends) else ends
    commas = np.flatnonzero((codes == COMMA) & outside)
    fields: np.ndarray = np.diff(np.searchsorted(commas, ends), prepend=0) + 1
    fields[(codes[starts] == NEWLINE) | (codes[starts] == RETURN)] = 0  # a blank line
    bad_starts = np.array([start for start, _ in bad_lines], np.int64)
    bad_rows: list[int] = np.asarray(np.searchsorted(starts, bad_starts)).tolist()
    reasons = dict(zip(bad_rows, bad_lines.values(), strict=True))
    fields[bad_rows] = -1

    length = int(ends[-1]) if len(ends) else 0
    # In a file of one column a blank line is a row whose value is missing.
    blank = (fields == 0) & (columns > 1)
    numbers = np.cumsum(~blank) + first_row - 1
    for row in np.flatnonzero(~blank & (np.maximum(fields, 1) != columns) & (fields != -1)).tolist():
        reasons[row] = f"found {fields[row]} fields, expected {columns}"
    body = data[:length]
    for row, in_order in _headers(body, starts, ends, names):
        if not in_order:
            raise UserError(
                f"{file}, row {numbers[row]}: the header again, with the columns in another order, which the rows "
                "after it follow; expected one order in a file: write these rows to a separate file"
            )
        reasons[row] = REPEATED_HEADER

    def text(row: int) -> bytes:
        return body[starts[row] : ends[row]]

    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        for row in np.flatnonzero(~blank).tolist():
            try:
                text(row).decode("utf-8")
            except UnicodeDecodeError as error:
                column, byte = text(row)[: error.start].count(b",") + 1, text(row)[error.start]
                reasons.setdefault(
                    row,
                    f"field {column}: found the byte 0x{byte:02x}, which is not UTF-8 "
                    f"({text(row).decode('latin-1').strip()[:40]!r} if it is Latin-1); expected UTF-8, write the file "
                    "in it",
                )

    bad = [
        (int(numbers[row]), reason, text(row).decode("utf-8", "backslashreplace").rstrip("\r\n"))
        for row, reason in sorted(reasons.items())
    ]
    good = ~blank
    good[list(reasons)] = False
    if not good.all():
        body = b"".join(map(text, np.flatnonzero(good).tolist()))
    return Block(body, numbers[good].astype(np.int64), start, length, bad)
