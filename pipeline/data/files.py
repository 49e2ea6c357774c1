"""Find and open the files that hold the rows, on this machine or in a bucket."""

import bz2
import gzip
import lzma
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import unquote

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
# Folders "column=value" below the files of a pattern, as Hive, Spark and pyarrow write them, and their missing value.
PARTITIONS = "*=*/**"
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
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
    other_spans: frozenset[str] = frozenset()  # files of spans that are not read

    @property
    def all(self) -> tuple[str, ...]:
        """Return every file, split by split."""
        return tuple(file for files in self.by_split.values() for file in files)

    @property
    def partitions(self) -> dict[str, str]:
        """Return the type of each partition column: integers if all values are, as pyarrow.dataset infers, or text."""
        values: dict[str, list[str]] = {}
        for file in self.all if self.format != IMAGES else ():
            for name, value in partitions_of(file, self.folder).items():
                values.setdefault(name, []).extend([] if value is None else [value])
        return {
            name: "integers" if all(re.fullmatch(r"-?[0-9]{1,18}", value) for value in found) else "text"
            for name, found in values.items()
        }


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

    Patterns: "*" is any text in one name, "**" any folders, "{SPAN}" the number of a span; a last "*" that matches no
    table stands for the folders of partitions. Of the spans up to ``until_span`` the ``last_spans`` newest are read
    (None: all); ``test_newest`` makes the newest one the test split. With ``images``, files may be images at any depth.
    """
    expected = EXPECTED_IMAGES if images else EXPECTED
    found = {split: _matching(folder, pattern, images) for split, pattern in patterns.items()}
    for split, files in found.items():
        if not files:
            rows = "rows" if split == "all" else f"the {split} split"
            others = [name for name in unread(folder) if format_of(name)]
            hint = f". Found {others[0]}: name such files with data.files or data.splits" if others else ""
            raise UserError(f"no files for {rows}: nothing matches {_join(folder, patterns[split])}; {expected}{hint}")
    span, matched = 0, {file for files in found.values() for file in files}
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
        hint = "export the spreadsheet as CSV, each sheet separately; " if sheet else ""
        if len(kinds) > 1:
            expected += (
                '; name the files to read with data.files, such as "*.csv", or begin the names of others with "_"'
            )
        if IMAGES in kinds:
            found_names = " and ".join(name.removeprefix(prefix_of(folder)) for name in sorted(kinds.values()))
            raise UserError(
                f"{folder}: found {found_names}; expected images only, or one kind of other files: name the table with "
                'the paths itself as data.path, narrow data.files, or begin the names of other files with "_"'
            )
        raise UserError(f"{folder}: found {' and '.join(os.path.basename(name) for name in names)}; {hint}{expected}")
    by_file = {file: number for files in found.values() for file, number in files.items() if number is not None}
    other_spans = frozenset(matched - {file for paths in by_split.values() for file in paths}) if span else frozenset()
    return Files(folder, patterns, by_split, cast(str, next(iter(kinds))), span, by_file, other_spans)


def partitions_of(file: str, folder: str) -> dict[str, str | None]:
    """Return the values by column that the folders "column=value" between a folder and a file say; None: missing."""
    names = file.removeprefix(prefix_of(folder)).split("/")[:-1]
    pairs = (name.split("=", 1) for name in names if "=" in name[1:])
    return {unquote(name): unquote(value) if value not in ("", _NO_VALUE) else None for name, value in pairs}


def unread(folder: str, used: Collection[str] = ()) -> list[str]:
    """Return the names below a folder of files, and of links to folders, that are not used.

    Files named ".*" or "_*" that are no tables are marks and remains of other programs.
    """
    start = len(prefix_of(folder))
    if filesystem.is_remote(folder):
        found = filesystem.find_files(folder, "**")
    else:
        found = []
        for parent, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            found += [str(Path(parent, name)) for name in names]
            # "**" does not follow links to folders.
            links = [str(Path(parent, name)) for name in folders if os.path.islink(os.path.join(parent, name))]
            found += [link for link in links if not any(file.startswith(f"{link}/") for file in used)]
    return [
        name[start:]
        for name in sorted(set(found).difference(used))
        if format_of(name) or not (is_hidden(name[start:]) or name.lower().endswith(_BY_WINDOWS))
    ]


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


def with_partitions(pattern: str) -> list[str]:
    """Return the patterns of which the first one that matches tables counts."""
    last = pattern.rpartition("/")[2] == "*"
    return [pattern, pattern[:-1] + PARTITIONS] if last else [pattern]


def _matching(folder: str, pattern: str, images: bool) -> dict[str, int | None]:
    """Return the matching files, each with its span, except hidden ones."""
    files = _listed(folder, pattern, images)
    if not images and not any(map(format_of, files)):
        for other in with_partitions(pattern)[1:]:
            if in_partitions := _listed(folder, other, images):
                pattern, files = other, in_partitions
    if SPAN not in pattern:
        return dict.fromkeys(files)
    head, tail = (regular_expression(part) for part in _join(folder, pattern).split(SPAN, 1))
    spans = {file: re.fullmatch(rf"{head}(\d+){tail}", file) for file in files}
    return {file: int(match[1]) for file, match in spans.items() if match}


def _listed(folder: str, pattern: str, images: bool) -> list[str]:
    # Before Python 3.13, a trailing "**" of the standard library matches folders only.
    any_depth = pattern.endswith("**") and not filesystem.is_remote(folder)
    start = len(prefix_of(folder))
    return [
        file
        for file in filesystem.find_files(folder, wildcard(pattern) + ("/*" if any_depth else ""))
        if not is_hidden(file[start:], pattern) and not (images and file.lower().endswith(_BY_WINDOWS))
    ]


def prefix_of(folder: str) -> str:
    """Return the prefix of the names of the files that were found in a folder."""
    folder = folder if filesystem.is_remote(folder) else str(Path(folder))
    return "" if folder == "." else f"{folder.rstrip('/')}/"


def is_hidden(path: str, pattern: str = "") -> bool:
    """Return whether a file, or a folder above it that the pattern does not name itself, is named ".*" or "_*"."""
    *folders, name = path.split("/")
    return name.startswith((".", "_")) or any(
        part.startswith((".", "_")) and part not in pattern.split("/") for part in folders
    )


def regular_expression(glob: str) -> str:
    """Return a pattern as a regular expression: "*" and "?" within one name, "**" for any folders and names."""
    parts = {r"\*\*/": "(?:.*/)?", r"\*\*": ".*", r"\*": "[^/]*", r"\?": "[^/]"}
    return re.sub(r"\\\*\\\*/|\\\*\\\*|\\\*|\\\?", lambda match: parts[match[0]], re.escape(glob))


def _join(folder: str, pattern: str) -> str:
    return f"{folder.rstrip('/')}/{pattern}"
