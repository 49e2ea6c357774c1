"""Find and open the files that hold the rows, on this machine or in a bucket."""

import bz2
import gzip
import lzma
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from pipeline import filesystem
from pipeline.errors import UserError
from pipeline.settings.image_data import ENDINGS

FORMATS = {"csv": ".csv", "parquet": ".parquet", "tfrecord": ".tfrecord"}
EXPECTED = (
    "expected .csv (also .csv.gz, .csv.bz2, .csv.xz), .parquet or .tfrecord (also .tfrecord.gz) files of one kind"
)
# A folder of image files, where the settings say that rows are images.
IMAGES = "images"
EXPECTED_IMAGES = f"expected images ({', '.join(ENDINGS)}), or .csv, .parquet or .tfrecord files"
# Written by Windows into folders of images.
_BY_WINDOWS = ("thumbs.db", "desktop.ini")
SPAN = "{SPAN}"
_DECOMPRESSED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


@dataclass(frozen=True)
class Files:
    """The files of every split."""

    folder: str
    patterns: Mapping[str, str]  # by split, relative to the folder
    by_split: dict[str, tuple[str, ...]]  # sorted; one split "all" if rows are assigned by content
    format: str  # a key of FORMATS, or IMAGES
    span: int = 0  # the newest one; 0 without {SPAN}
    spans: Mapping[str, int] = field(default_factory=dict)  # by path

    @property
    def all(self) -> tuple[str, ...]:
        """Return every file, split by split."""
        return tuple(file for files in self.by_split.values() for file in files)


def find(
    folder: str,
    patterns: Mapping[str, str],
    last_spans: int | None = 1,
    *,
    images: bool = False,
    until_span: int | None = None,
    test_newest: bool = False,
) -> Files:
    """Find the files of every split; raise a UserError for missing or mixed files and spans.

    Patterns: "*" is any text in one name, "**" any folders, "{SPAN}" the number of a span. Of the spans up to
    ``until_span`` the ``last_spans`` newest are read (None: all); ``test_newest`` makes the newest one the test split.
    With ``images``, files may be images at any depth.
    """
    expected = EXPECTED_IMAGES if images else EXPECTED
    found = {split: _matching(folder, pattern, images) for split, pattern in patterns.items()}
    for split, files in found.items():
        if not files:
            rows = "rows" if split == "all" else f"the {split} split"
            raise UserError(f"no files for {rows}: nothing matches {_join(folder, patterns[split])}; {expected}")
    span = 0
    spans = {split: {number for number in files.values() if number is not None} for split, files in found.items()}
    if any(spans.values()):
        counted = {number for number in set().union(*spans.values()) if until_span is None or number <= until_span}
        kept = set(sorted(counted)[-last_spans if last_spans else None :])
        if len(kept) < 1 + test_newest:
            raise UserError(
                f"{_join(folder, next(iter(patterns.values())))}: found {len(counted)} spans"
                f"{'' if until_span is None else f' up to {until_span}'}, expected {1 + test_newest} or more"
                f"{': the newest is the test split, and a model learns from the others' if test_newest else ''}"
            )
        span = max(kept)
        for split, numbers in spans.items():
            if kept - numbers:
                listed = ", ".join(map(str, sorted(numbers))) or "none"
                raise UserError(
                    f"no files for the {split} split in span {min(kept - numbers)}: {_join(folder, patterns[split])} "
                    f"matches the spans {listed} only; expected files of every split in every span"
                )
        of_split = dict.fromkeys(found, kept)
        if test_newest and len(found) > 1:
            of_split = {split: {span} if split == "test" else kept - {span} for split in found}
        found = {
            split: {file: number for file, number in files.items() if number in of_split[split]}
            for split, files in found.items()
        }
    by_split = {split: tuple(sorted(files)) for split, files in found.items()}

    # One file for each kind: image files may be millions.
    kinds: dict[str | None, str] = {}
    for paths in by_split.values():
        for file in paths:
            kinds.setdefault(IMAGES if images and file.lower().endswith(ENDINGS) else format_of(file), file)
    if len(kinds) > 1 or None in kinds:
        names = [kinds[None]] if None in kinds else sorted(kinds.values())
        sheet = None in kinds and kinds[None].lower().endswith((".xlsx", ".xls", ".xlsm", ".ods", ".numbers"))
        hint = "export the spreadsheet as CSV; " if sheet else ""
        if IMAGES in kinds:
            found_names = " and ".join(name.removeprefix(prefix_of(folder)) for name in sorted(kinds.values()))
            raise UserError(
                f"{folder}: found {found_names}; expected images only, or one kind of other files: name the table with "
                'the paths itself as data.path, narrow data.files, or begin the names of other files with "_"'
            )
        raise UserError(f"{folder}: found {' and '.join(os.path.basename(name) for name in names)}; {hint}{expected}")
    by_file = {file: number for files in found.values() for file, number in files.items() if number is not None}
    return Files(folder, patterns, by_split, cast(str, next(iter(kinds))), span, by_file)


def format_of(file: str) -> str | None:
    """Return the format by a file's name, a key of ``FORMATS``; None for another name."""
    name = os.path.basename(file).lower()
    for ending in _DECOMPRESSED:
        name = name.removesuffix(ending)
    for format, ending in FORMATS.items():
        if name.endswith((ending, ending + "s")):
            return format
    # Beam and TFX name theirs data_tfrecord-00000-of-00001.gz, ours the second of a shard
    # data_tfrecord-00000-001-of-00001.gz.
    return "tfrecord" if re.search(r"tfrecords?-\d+(-\d+)?-of-\d+$", name) else None


def is_compressed(file: str) -> bool:
    """Return whether a file is compressed, by its name."""
    return file.lower().endswith(tuple(_DECOMPRESSED))


def wildcard(pattern: str) -> str:
    """Return the pattern with any span."""
    return pattern.replace(SPAN, "*")


def open_decompressed(file: str) -> IO[bytes]:
    """Open a file for reading bytes; not seekable if it is compressed."""
    stream = filesystem.open_file(file)
    if is_compressed(file):
        return cast(IO[bytes], _DECOMPRESSED[os.path.splitext(file.lower())[1]](stream))
    return stream


def _matching(folder: str, pattern: str, images: bool) -> dict[str, int | None]:
    """Return the matching files, each with its span, except those (of images, also folders) named ".*" or "_*"."""
    # Before Python 3.13, a trailing "**" of the standard library matches folders only.
    any_depth = pattern.endswith("**") and not filesystem.is_remote(folder)
    start = len(prefix_of(folder))
    files = [
        file
        for file in filesystem.find_files(folder, wildcard(pattern) + ("/*" if any_depth else ""))
        if not (images and _beside_images(file[start:])) and not os.path.basename(file).startswith((".", "_"))
    ]
    if SPAN not in pattern:
        return dict.fromkeys(files)
    head, tail = (regular_expression(part) for part in _join(folder, pattern).split(SPAN, 1))
    spans = {file: re.fullmatch(rf"{head}(\d+){tail}", file) for file in files}
    return {file: int(match[1]) for file, match in spans.items() if match}


def prefix_of(folder: str) -> str:
    """Return the prefix of the names of the files that were found in a folder."""
    folder = folder if filesystem.is_remote(folder) else str(Path(folder))
    return "" if folder == "." else f"{folder.rstrip('/')}/"


def _beside_images(path: str) -> bool:
    return path.lower().endswith(_BY_WINDOWS) or any(part.startswith((".", "_")) for part in path.split("/"))


def regular_expression(glob: str) -> str:
    """Return a pattern as a regular expression: "*" and "?" within one name, "**" for any folders and names."""
    parts = {r"\*\*/": "(?:.*/)?", r"\*\*": ".*", r"\*": "[^/]*", r"\?": "[^/]"}
    return re.sub(r"\\\*\\\*/|\\\*\\\*|\\\*|\\\?", lambda match: parts[match[0]], re.escape(glob))


def _join(folder: str, pattern: str) -> str:
    return f"{folder.rstrip('/')}/{pattern}"
