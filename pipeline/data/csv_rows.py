"""Split CSV bytes into whole rows, each with a known number of fields, so that no row is dropped or shifted unseen.

Vectorised over blocks. A row ends at a line break outside quotes; quotes enclose a whole field and are doubled inside
it (RFC 4180). A row that breaks these rules ends where its line ends, and the next line is a row again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np

# Read at once. Small enough to deal the blocks of one file to many shards, large enough that its cost is its rows.
BLOCK_BYTES = 2 << 20
# A row of more bytes than this is taken for a quote that was never closed.
MOST_ROW_BYTES = 16 << 20
QUOTE, COMMA, RETURN, NEWLINE = b'",\r\n'


@dataclass(frozen=True)
class Block:
    """Whole rows of a CSV file.

    Attributes:
        data: The good rows, one after the other, without blank lines.
        numbers: Their numbers, int64 [rows]; blank lines are not counted.
        start: First byte of the block in the (decompressed) file.
        length: Bytes of the block in the file, with what is left out of ``data``.
        bad: (number, reason, text) of the others.
    """

    data: bytes
    numbers: np.ndarray
    start: int
    length: int
    bad: list[tuple[int, str, str]]

    @property
    def rows(self) -> int:
        """Return the number of rows, bad ones too."""
        return len(self.numbers) + len(self.bad)


def read_blocks(
    stream: IO[bytes], columns: int, *, start: int = 0, length: int | None = None, first_row: int = 1
) -> Iterator[Block]:
    """Read whole rows, block by block.

    Args:
        stream: Positioned at ``start``, after the header.
        columns: Fields that a row must have.
        start: Position in the file, for ``Block.start``.
        length: Bytes to read; None reads to the end.
        first_row: Number of the first row.
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
        rows = _Rows.find(data, at_end)
        block = _block(data, rows, columns, position, first_row)
        yield block
        first_row += block.rows
        position += block.length
        rest = data[block.length :]


@dataclass(frozen=True)
class _Rows:
    """Places where the rows of some bytes start and end; a row's end includes its line break."""

    starts: np.ndarray
    ends: np.ndarray
    fields: np.ndarray
    broken: dict[int, str]

    @classmethod
    def find(cls, data: bytes, at_end: bool) -> "_Rows":
        codes = np.frombuffer(data, np.uint8)
        breaks = codes == NEWLINE
        if b"\r" in data:
            # A return ends a row too, unless a newline follows; the very last one cannot be judged yet.
            returns = codes == RETURN
            breaks[:-1] |= returns[:-1] & (codes[1:] != NEWLINE)
            breaks[-1] |= at_end and returns[-1]
        quotes = np.flatnonzero(codes == QUOTE)
        broken_at: dict[int, str] = {}
        pieces: list[tuple[np.ndarray, np.ndarray]] = []
        begin = 0
        while begin < len(codes):
            outside, wrong = _outside_quotes(codes, quotes, begin)
            ends: np.ndarray = np.flatnonzero(breaks[begin:] & outside) + begin + 1
            never_closed = not outside[-1] and (at_end or (not len(ends) and len(codes) - begin > MOST_ROW_BYTES))
            if wrong is None and never_closed:
                last = quotes[-1]
                wrong = int(last), "found a quote that is never closed; expected one more quote"
            if at_end and (not len(ends) or ends[-1] < len(codes)):
                ends = np.append(ends, len(codes))  # the last row may lack its line break
            if wrong is None or not (never_closed or (len(ends) and wrong[0] < ends[-1])):
                pieces.append((ends, _count_fields(codes, begin, outside, ends)))
                break
            # Rows before the broken one are whole; its line is one row, and the next line starts anew.
            at, reason = wrong
            good = ends[ends <= at]
            pieces.append((good, _count_fields(codes, begin, outside, good)))
            row_start = int(good[-1]) if len(good) else begin
            line = np.flatnonzero(breaks[row_start:])
            row_end = row_start + int(line[0]) + 1 if len(line) else len(codes)
            broken_at[row_start] = reason
            pieces.append((np.array([row_end]), np.array([-1])))
            begin = row_end
        ends = np.concatenate([piece[0] for piece in pieces]).astype(np.int64)
        starts = np.concatenate([[0], ends[:-1]]).astype(np.int64) if len(ends) else ends
        fields = np.concatenate([piece[1] for piece in pieces])
        broken = {int(row): broken_at[int(starts[row])] for row in np.flatnonzero(fields == -1)}
        return cls(starts=starts, ends=ends, fields=fields, broken=broken)


def _outside_quotes(codes: np.ndarray, quotes: np.ndarray, begin: int) -> tuple[np.ndarray, tuple[int, str] | None]:
    """Return a mask of the bytes from ``begin`` on outside quotes, and the first misplaced quote with what is wrong."""
    here = quotes[np.searchsorted(quotes, begin) :]
    if not len(here):
        return np.ones(len(codes) - begin, bool), None
    outside = np.bitwise_xor.accumulate((codes[begin:] == QUOTE).view(np.uint8)) == 0

    opens, closes = here[0::2], here[1::2]
    wrong_opens = opens[~(_BESIDE_QUOTES[codes[np.maximum(opens - 1, 0)]] | (opens == begin))]
    followed = closes[closes + 1 < len(codes)]
    wrong_closes = followed[~_BESIDE_QUOTES[codes[followed + 1]]]
    found = [
        *((int(at), _INNER_QUOTE) for at in wrong_opens[:1]),
        *((int(at), _TEXT_AFTER_QUOTE) for at in wrong_closes[:1]),
    ]
    return outside, min(found, default=None)


_BESIDE_QUOTES = np.isin(np.arange(256), (COMMA, NEWLINE, RETURN, QUOTE))
_INNER_QUOTE = (
    "found a quote inside a field that does not start with one; expected the whole field in quotes, its own doubled"
)
_TEXT_AFTER_QUOTE = "found a quote that is not closed, or text after a closing quote; expected a comma or the row's end"


def _count_fields(codes: np.ndarray, begin: int, outside: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the number of fields of every row that ends at ``ends``; 0 for a blank line."""
    if not len(ends):
        return np.zeros(0, np.int64)
    commas: np.ndarray = np.flatnonzero((codes[begin:] == COMMA) & outside) + begin
    fields = np.diff(np.searchsorted(commas, ends), prepend=0) + 1
    first = codes[np.concatenate([[begin], ends[:-1]])]
    fields[(first == NEWLINE) | (first == RETURN)] = 0
    return fields


def _block(data: bytes, rows: _Rows, columns: int, start: int, first_row: int) -> Block:
    length = int(rows.ends[-1]) if len(rows.ends) else 0
    # In a file of one column a blank line is a row whose value is missing.
    blank = (rows.fields == 0) & (columns > 1)
    numbers = np.cumsum(~blank) + first_row - 1
    reasons: dict[int, str] = dict(rows.broken)
    for row in np.flatnonzero(~blank & (np.maximum(rows.fields, 1) != columns) & (rows.fields != -1)):
        reasons[int(row)] = f"found {rows.fields[row]} fields, expected {columns}"
    body = data[:length]

    def text(row: int) -> bytes:
        return body[rows.starts[row] : rows.ends[row]]

    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        for row in np.flatnonzero(~blank).tolist():
            if row not in reasons and (reason := _not_utf8(text(row))):
                reasons[row] = reason

    bad = [
        (int(numbers[row]), reason, text(row).decode("utf-8", "backslashreplace").rstrip("\r\n"))
        for row, reason in sorted(reasons.items())
    ]
    good = ~blank
    good[list(reasons)] = False
    if not good.all():
        body = b"".join(map(text, np.flatnonzero(good).tolist()))
    return Block(body, numbers[good].astype(np.int64), start, length, bad)


def _not_utf8(row: bytes) -> str | None:
    try:
        row.decode("utf-8")
    except UnicodeDecodeError as error:
        column = row[: error.start].count(b",") + 1
        return (
            f"field {column}: found the byte 0x{row[error.start]:02x}, which is not UTF-8 "
            f"({row.decode('latin-1').strip()[:40]!r} if it is Latin-1); expected UTF-8, write the file in it"
        )
    return None
