"""List the images of a folder or of a table of paths, and deal them to shards.

A listing is a table with a path in every row, which is small: of millions of images some hundred bytes each. It is
dealt to shards before an image is read.
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from pipeline import filesystem
from pipeline.data import files, labels
from pipeline.data.table import Rows, Unit, is_list
from pipeline.errors import UserError, first_line
from pipeline.settings.image_data import Images, facts

# Files whose sizes are looked at, at once some of them, to judge the others.
WEIGHED, THREADS = 256, 8


@dataclass(frozen=True)
class Listing(Unit):
    """Rows with paths of images, of a folder or from one file of a table.

    Attributes:
        folder: That the paths start at.
        rows: Their paths and other columns, and bad rows of the table.
    """

    folder: str = ""
    rows: Any = None  # Rows


def holds_paths(file: str, format: str, images: Images) -> bool:
    """Return whether a column of images holds paths, and not the encoded images themselves.

    Raises:
        UserError: a Parquet file has no such column, or one that holds neither.
    """
    if format != "parquet":
        return format in ("csv", files.IMAGES)
    try:
        with filesystem.open_file(file) as stream:
            schema = parquet.read_schema(stream)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{file} is not a Parquet file, or is cut short: {first_line(error)}") from error
    check_columns(schema.names, file, images)
    kind = schema.field(images.column).type
    kind = kind.value_type if pa.types.is_dictionary(kind) or is_list(kind) else kind
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return True
    if not pa.types.is_binary(kind) and not pa.types.is_large_binary(kind):
        raise UserError(
            f"{file}: the column {images.column!r} is {kind}; expected paths of images as text, or their bytes"
        )
    return False


def check_columns(names: Sequence[str], file: str, images: Images) -> None:
    """Check the names of a table's columns.

    Raises:
        UserError: there is no column of images, or one has the name of a fact.
    """
    if images.column not in names:
        raise UserError(
            f"{file} has no column {images.column!r}, the images; it has {', '.join(names) or 'no columns'}; name "
            "another with data.images: Images(column=...)"
        )
    taken = [name for name in facts(images.column) if name in names]
    if taken:
        raise UserError(f"{file}: the column {taken[0]!r} has the name of a fact of images; rename it")


def class_folder(path: str, pattern: str) -> str | None:
    """Return the first folder of a path below the pattern's fixed part, which names the class; None without one.

    Args:
        path: Relative to the folder that the pattern starts at.
        pattern: Of files; a "{SPAN}" counts as fixed.
    """
    fixed = 0
    for part in pattern.split("/")[:-1]:
        if "*" in part or "?" in part:
            break
        fixed += 1
    parts = path.split("/")
    return parts[fixed] if len(parts) > fixed + 1 else None


def classes_of(paths: Sequence[str], folder: str, pattern: str, numbers: Mapping[str, int]) -> list[str]:
    """Return the class of every image file.

    Args:
        paths: Of the files that were found.
        folder: That they were found in.
        pattern: That they were found by.
        numbers: Of the classes, by name.

    Raises:
        UserError: an image lies in the folder of no class; or there are no classes to expect.
    """
    if not numbers:
        raise UserError(
            f"{folder}: folders name classes, and the label is a number; give a table of paths and labels as data.path"
        )
    prefix = len(files.prefix_of(folder))
    classes = []
    for path in paths:
        found = class_folder(path[prefix:], pattern)
        if found is None or found not in numbers:
            where = "no folder of a class" if found is None else f"the folder {found!r}, which is no class"
            raise UserError(
                f"{path} lies in {where}; expected a folder for each class of the label: {labels.choices(numbers)}"
            )
        classes.append(found)
    return classes


def list_folder(
    folder: str, pattern: str, paths: Sequence[str], images: Images, label: str, numbers: Mapping[str, int]
) -> Listing:
    """Return the listing of a folder: paths relative to it, and the class by the folder's name, in words.

    Raises:
        UserError: see ``classes_of``.
    """
    prefix = len(files.prefix_of(folder))
    classes = pa.array(classes_of(paths, folder, pattern, numbers), pa.string())
    try:
        relative = pa.array((path[prefix:] for path in paths), pa.large_string())
    except UnicodeError as error:
        raise UserError(f"{folder}: the name of a file is not UTF-8: {first_line(error)}; rename it") from error
    return Listing(
        folder,
        files.IMAGES,
        folder=folder,
        rows=Rows(pa.table({images.column: relative, label: classes}), np.zeros(len(paths), np.int64)),
    )


def list_table(file: str, format: str, batches: Sequence[Rows], images: Images) -> Listing:
    """Return the listing of one file of a table, whose paths start at its folder.

    Raises:
        UserError: there is no column of paths, or a column has the name of a fact.
    """
    table = pa.concat_tables([rows.table for rows in batches], promote_options="default")
    check_columns(table.column_names, file, images)
    at = table.column_names.index(images.column)
    # Wide offsets: a column of millions of paths is larger than 2 GB.
    table = table.set_column(at, images.column, table.column(at).cast(pa.large_string()))
    return Listing(
        file,
        format,
        folder=posixpath.dirname(file),
        rows=Rows(
            table.combine_chunks(),
            np.concatenate([rows.numbers for rows in batches]),
            [row for rows in batches for row in rows.bad],
        ),
    )


def mean_bytes(listings: Sequence[Listing], images: Images) -> float:
    """Return the mean size of a listed file, by some of them; 0 where there are none."""
    rows = sum(len(listing.rows.table) for listing in listings)
    paths = []
    for listing in listings:
        column = listing.rows.table.column(images.column)
        step = max(1, rows // WEIGHED)
        chosen = column.take(pa.array(range(0, len(column), step)))
        paths += [address_of(listing.folder, path) for path in chosen.to_pylist() if path]

    def size(path: str | None) -> int | None:
        try:
            return filesystem.size(path) if path else None
        except (OSError, IndexError, ValueError):
            return None  # its row is a bad one, when it is read

    with ThreadPoolExecutor(THREADS) as pool:
        sizes = [size for size in pool.map(size, paths) if size]
    return sum(sizes) / len(sizes) if sizes else 0.0


def deal(listings: Sequence[Listing], number: int) -> Iterator[tuple[Listing, ...]]:
    """Deal the rows of listings to shards, each with every n-th of them in a random order that is always the same."""
    orders, before = [], 0
    for place, listing in enumerate(listings):
        # The legacy generator, whose numbers no release of NumPy may change.
        orders.append((before, np.random.RandomState(place).permutation(len(listing.rows.table))))
        before += len(listing.rows.table)
    for shard in range(number):
        parts = []
        for listing, (first, order) in zip(listings, orders, strict=True):
            chosen = order[(shard - first) % number :: number]
            bad = [] if shard else listing.rows.bad
            if len(chosen) or bad:
                rows = Rows(listing.rows.table.take(pa.array(chosen)), listing.rows.numbers[chosen], bad)
                parts.append(replace(listing, rows=rows))
        yield tuple(parts)


def address_of(folder: str, path: str) -> str | None:
    """Return where the file of a row is; None for a path that leaves the folder."""
    normal = posixpath.normpath(path)
    if filesystem.is_remote(path) or "\0" in path or normal.startswith(("/", "../")) or normal in (".", ".."):
        return None
    return posixpath.join(folder, normal)
