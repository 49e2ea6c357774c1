"""Find the files that hold the rows, on this machine or in a bucket, and open them."""

import bz2
import gzip
import lzma
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, cast

from pipeline import filesystem
from pipeline.errors import UserError

FORMATS = {"csv": ".csv", "parquet": ".parquet", "tfrecord": ".tfrecord"}
EXPECTED = (
    "expected .csv (also .csv.gz, .csv.bz2, .csv.xz), .parquet or .tfrecord (also .tfrecord.gz) files of one kind"
)
SPAN = "{SPAN}"
_DECOMPRESSED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


@dataclass(frozen=True)
class Files:
    """The files of every split.

    Attributes:
        folder: That the patterns start at.
        patterns: File pattern by split.
        by_split: Sorted paths by split; one split "all" where rows are dealt to splits by what is in them.
        format: A key of ``FORMATS``.
        span: The newest span read; 0 where the patterns have no ``{SPAN}``.
    """

    folder: str
    patterns: Mapping[str, str]
    by_split: dict[str, tuple[str, ...]]
    format: str
    span: int = 0

    @property
    def all(self) -> tuple[str, ...]:
        """Return every file, split by split."""
        return tuple(file for files in self.by_split.values() for file in files)


def find(folder: str, patterns: Mapping[str, str], last_spans: int | None = 1) -> Files:
    """Find the files of every split.

    Args:
        folder: That the patterns start at.
        patterns: File pattern by split, with "*" for any text in one name and "{SPAN}" for the number of a span.
        last_spans: How many of the newest spans are read; None reads all.

    Raises:
        UserError: a split has no files, the splits have other spans, or files are of an unknown or of several formats.
    """
    found = {split: _matching(folder, pattern) for split, pattern in patterns.items()}
    for split, files in found.items():
        if not files:
            rows = "rows" if split == "all" else f"the {split} split"
            raise UserError(f"no files for {rows}: nothing matches {_join(folder, patterns[split])}; {EXPECTED}")
    span = 0
    spans = {split: {number for number in files.values() if number is not None} for split, files in found.items()}
    if any(spans.values()):
        kept = set(sorted(set().union(*spans.values()))[-last_spans if last_spans else None :])
        span = max(kept)
        for split, numbers in spans.items():
            if kept - numbers:
                listed = ", ".join(map(str, sorted(numbers))) or "none"
                raise UserError(
                    f"no files for the {split} split in span {min(kept - numbers)}: {_join(folder, patterns[split])} "
                    f"matches the spans {listed} only; expected files of every split in every span"
                )
        found = {
            split: {file: number for file, number in files.items() if number in kept} for split, files in found.items()
        }
    by_split = {split: tuple(sorted(files)) for split, files in found.items()}

    kinds = {file: format_of(file) for files in by_split.values() for file in files}
    if len(set(kinds.values())) > 1 or None in kinds.values():
        odd = next((file for file, kind in kinds.items() if kind is None), None)
        names = [odd] if odd else sorted({kind: file for file, kind in kinds.items()}.values())
        sheet = odd is not None and odd.lower().endswith((".xlsx", ".xls", ".xlsm", ".ods", ".numbers"))
        hint = "export the spreadsheet as CSV; " if sheet else ""
        raise UserError(f"{folder}: found {' and '.join(os.path.basename(name) for name in names)}; {hint}{EXPECTED}")
    return Files(folder, patterns, by_split, cast(str, next(iter(kinds.values()))), span)


def format_of(file: str) -> str | None:
    """Return the format by a file's name, a key of ``FORMATS``; None for another name."""
    name = os.path.basename(file).lower()
    for ending in _DECOMPRESSED:
        name = name.removesuffix(ending)
    for format, ending in FORMATS.items():
        if name.endswith((ending, ending + "s")):
            return format
    # Beam and TFX name theirs data_tfrecord-00000-of-00001.gz.
    return "tfrecord" if re.search(r"tfrecords?-\d+-of-\d+$", name) else None


def is_compressed(file: str) -> bool:
    """Return whether a file is compressed, by its name."""
    return file.lower().endswith(tuple(_DECOMPRESSED))


def wildcard(pattern: str) -> str:
    """Return the pattern with any span."""
    return pattern.replace(SPAN, "*")


def open_decompressed(file: str) -> IO[bytes]:
    """Open a file for reading bytes; seekable only where its name does not say that it is compressed."""
    stream = filesystem.open_file(file)
    if is_compressed(file):
        return cast(IO[bytes], _DECOMPRESSED[os.path.splitext(file.lower())[1]](stream))
    return stream


def _matching(folder: str, pattern: str) -> dict[str, int | None]:
    """Return the files that match, each with its span; files that start with "." or "_" are left out."""
    files = [
        file
        for file in filesystem.find_files(folder, wildcard(pattern))
        if not os.path.basename(file).startswith((".", "_"))
    ]
    if SPAN not in pattern:
        return dict.fromkeys(files)
    head, tail = (regular_expression(part) for part in _join(folder, pattern).split(SPAN, 1))
    spans = {file: re.fullmatch(rf"{head}(\d+){tail}", file) for file in files}
    return {file: int(match[1]) for file, match in spans.items() if match}


def regular_expression(glob: str) -> str:
    """Return what a pattern means: "*" and "?" stand for text within one name, "**/" for any folders."""
    return re.escape(glob).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*").replace(r"\?", "[^/]")


def _join(folder: str, pattern: str) -> str:
    return f"{folder.rstrip('/')}/{pattern}"
