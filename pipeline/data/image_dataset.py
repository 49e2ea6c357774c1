"""Read image datasets: a folder for each class, a table of paths, or encoded images in a column of a table."""

import hashlib
import itertools
import posixpath
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline import filesystem
from pipeline.data import csv_files, files, labels, parquet_files
from pipeline.data.image_checks import BadImage, facts_of, too_many_bytes
from pipeline.data.table import BadRow, Rows, Unit, is_list, single_values
from pipeline.errors import UserError, first_line
from pipeline.settings.image_data import Images, facts

# Files read and decoded in parallel; in a bucket, most of the time is spent waiting.
THREADS = 8
BATCH_BYTES = 16 << 20
# Files whose sizes are read to estimate the mean.
SIZE_SAMPLE = 256
NOT_ONE = "no image, or several; expected one in every row"
# Types of the image's column and of its facts, in the order of ``pipeline.settings.image_data.FACTS``.
_TYPES = (pa.large_binary(), pa.string(), pa.string(), pa.string(), pa.int64(), pa.int64(), pa.float32())


@dataclass(frozen=True)
class Listing(Unit):
    """Rows with paths of images, from a folder or from one file of a table; bad rows of the table too."""

    folder: str = ""
    rows: Any = None  # Rows


def holds_paths(file: str, format: str, images: Images) -> bool:
    """Return whether a column of images holds paths, not the encoded images; UserError: it holds neither."""
    if format != "parquet":
        return format in ("csv", files.IMAGES)
    with filesystem.open_file(file) as stream:
        schema = parquet_files.open_parquet(stream, file).schema_arrow
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
    """Raise a UserError if the column of images is missing, or a column has the name of a fact."""
    if images.column not in names:
        raise UserError(
            f"{file} has no column {images.column!r}, the images; it has {', '.join(names) or 'no columns'}; name "
            "another with data.images: Images(column=...)"
        )
    taken = [name for name in facts(images.column) if name in names]
    if taken:
        raise UserError(f"{file}: the column {taken[0]!r} has the name of a fact of images; rename it")


def classes_of(paths: Sequence[str], folder: str, pattern: str, numbers: Mapping[str, int]) -> list[str]:
    """Return the class of every image file: the name of the first folder below the pattern's fixed part."""
    if not numbers:
        raise UserError(
            f"{folder}: folders name classes, and the label is a number; give a table of paths and labels as data.path"
        )
    prefix, folders = len(files.prefix_of(folder)), pattern.split("/")[:-1]
    fixed = next((place for place, name in enumerate(folders) if "*" in name or "?" in name), len(folders))
    classes = []
    for path in paths:
        parts = path[prefix:].split("/")
        found = parts[fixed] if len(parts) > fixed + 1 else None
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
    """Return the listing of a folder: relative paths and class names."""
    prefix = len(files.prefix_of(folder))
    classes = pa.array(classes_of(paths, folder, pattern, numbers), pa.string())
    try:
        relative = pa.array((path[prefix:] for path in paths), pa.large_string())
    except UnicodeError as error:
        raise UserError(f"{folder}: the name of a file is not UTF-8: {first_line(error)}; rename it") from error
    rows = Rows(pa.table({images.column: relative, label: classes}), np.zeros(len(paths), np.int64))
    return Listing(folder, files.IMAGES, folder=folder, rows=rows)


def list_table(file: str, format: str, batches: Sequence[Rows], images: Images) -> Listing:
    """Return the listing of one file of a table, whose paths are relative to its folder."""
    table = pa.concat_tables([rows.table for rows in batches], promote_options="default")
    check_columns(table.column_names, file, images)
    at = table.column_names.index(images.column)
    # Wide offsets: a column of millions of paths is larger than 2 GB.
    table = table.set_column(at, images.column, table.column(at).cast(pa.large_string())).combine_chunks()
    numbers = np.concatenate([rows.numbers for rows in batches])
    rows = Rows(table, numbers, [row for rows in batches for row in rows.bad])
    return Listing(file, format, folder=posixpath.dirname(file), rows=rows)


def mean_bytes(listings: Sequence[Listing], images: Images) -> float:
    """Return the mean size of a listed file, estimated from a sample; 0 for no files."""
    step = max(1, sum(len(listing.rows.table) for listing in listings) // SIZE_SAMPLE)
    addresses = [
        address_of(listing.folder, path)
        for listing in listings
        for path in listing.rows.table.column(images.column)[::step].to_pylist()
    ]

    def size(address: str | None) -> int | None:
        try:
            return filesystem.size(address) if address else None
        except (OSError, IndexError, ValueError):
            return None  # reading it makes its row a bad one

    with ThreadPoolExecutor(THREADS) as pool:
        sizes = [size for size in pool.map(size, addresses) if size]
    return sum(sizes) / len(sizes) if sizes else 0.0


def deal(listings: Sequence[Listing], number: int) -> Iterator[tuple[Listing, ...]]:
    """Assign the rows of listings to shards, each with every n-th of them in a reproducible random order."""
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


def address_of(folder: str, path: str | None) -> str | None:
    """Return the address of a row's file; None for no path, or one that leaves the folder."""
    path = path or ""
    normal = posixpath.normpath(path)  # "." for no path
    if filesystem.is_remote(path) or "\0" in path or normal.startswith(("/", "../")) or normal in (".", ".."):
        return None
    return posixpath.join(folder, normal)


def in_tables(found: files.Files, images: Images | None) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield file and row, path, and address (None: no valid path) of every image that tables name."""
    for file in dict.fromkeys(found.all):
        if images is None or found.format == files.IMAGES or not holds_paths(file, found.format, images):
            continue
        unit, column = Unit(file, found.format), [images.column]
        is_csv = found.format == "csv"
        for rows in csv_files.read(unit, {column[0]: "text"}, column) if is_csv else parquet_files.read(unit, column):
            listing = list_table(file, found.format, [rows], images)
            paths = listing.rows.table.column(images.column).to_pylist()
            for number, path in zip(rows.numbers.tolist(), paths, strict=True):
                yield f"{file}, row {number}", path, address_of(listing.folder, path)


def fingerprint(found: files.Files, images: Images | None) -> str:
    """Return a text that changes with the names, sizes and times of files and images, without reading an image."""
    listed = (address for _, _, address in in_tables(found, images) if address)
    addresses = itertools.chain(found.all, listed)
    digest = hashlib.sha256()
    start = len(files.prefix_of(found.folder))
    for address, stamp in filesystem.stamps(found.folder, addresses):
        digest.update(repr((address[start:], stamp)).encode())
    return digest.hexdigest()


def read(listing: Listing, images: Images) -> Iterator[Rows]:
    """Read the images of a listing, some megabytes at a time; images replace their paths, and facts are added."""
    paths = listing.rows.table.column(images.column).to_pylist()

    def load(at: int) -> tuple[str, bytes]:
        address = address_of(listing.folder, paths[at])
        if address is None:
            raise BadImage(f"expected a path below {listing.folder}" if paths[at] else "no path of an image")
        return posixpath.normpath(paths[at]), read_file(address, images)

    def bad(at: int, reason: str) -> BadRow:
        if listing.format == files.IMAGES:
            return BadRow(f"{files.prefix_of(listing.folder)}{paths[at]}", 0, reason, "")
        number = int(listing.rows.numbers[at])
        return BadRow(listing.file, number, f"{paths[at]}: {reason}" if paths[at] else reason, paths[at] or "")

    yield from _loaded(listing.rows, images, load, bad)


def with_facts(rows: Rows, file: str, folder: str, images: Images) -> Iterator[Rows]:
    """Add facts to rows of a file with encoded images (bytes or lists of one); paths are relative to ``folder``."""
    check_columns(rows.table.column_names, file, images)
    column = single_values(rows.table.column(images.column))
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type) or pa.types.is_null(column.type)):
        raise UserError(f"{file}: the column {images.column!r} is {column.type}; expected bytes of encoded images")
    relative = file.removeprefix(files.prefix_of(folder))

    def load(at: int) -> tuple[str, bytes]:
        content = column[at].as_py()
        if content is None:
            raise BadImage(NOT_ONE)
        return f"{relative}:{rows.numbers[at]}", content

    def bad(at: int, reason: str) -> BadRow:
        return BadRow(file, int(rows.numbers[at]), f"column {images.column!r}: {reason}", "")

    yield from _loaded(rows, images, load, bad)


def _loaded(
    rows: Rows, images: Images, load: Callable[[int], tuple[str, bytes]], bad_row: Callable[[int, str], BadRow]
) -> Iterator[Rows]:
    """Load images, and yield rows each time these take some megabytes; ``load`` returns path and content."""

    def values_of(at: int) -> tuple[Any, ...] | BadRow:
        try:
            path, content = load(at)
            image = facts_of(content, images)
        except BadImage as error:
            return bad_row(at, str(error))
        return content, path, posixpath.dirname(path), image.format, image.width, image.height, image.brightness

    def good() -> Rows:
        table = rows.table.drop_columns([images.column]).take(pa.array(list(loaded), pa.int64()))
        for place, (name, type_) in enumerate(zip((images.column, *facts(images.column)), _TYPES, strict=True)):
            table = table.append_column(name, pa.array([values[place] for values in loaded.values()], type_))
        return Rows(table, rows.numbers[list(loaded)], bad)

    loaded: dict[int, tuple[Any, ...]] = {}
    bad, size = list(rows.bad), 0
    with ThreadPoolExecutor(THREADS) as pool:
        for start in range(0, len(rows.table), THREADS):
            chunk = range(start, min(start + THREADS, len(rows.table)))
            # Pillow warns of sizes that the limits allow, and of EXIF data that do not matter.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outcomes = list(pool.map(values_of, chunk))
            for at, outcome in zip(chunk, outcomes, strict=True):
                if isinstance(outcome, BadRow):
                    bad.append(outcome)
                else:
                    loaded[at] = outcome
                    size += len(outcome[0])
            if size > BATCH_BYTES:
                yield good()
                loaded, bad, size = {}, [], 0
    if loaded or bad:
        yield good()


def read_file(address: str, images: Images) -> bytes:
    """Return the content of an image file, of which not more than the allowed bytes are read; raise BadImage."""
    try:
        with filesystem.open_file(address) as stream:
            content = stream.read(images.max_bytes + 1)
    except OSError as error:
        raise BadImage(
            f"it cannot be read: {error.strerror or type(error).__name__}; expected an image file"
        ) from error
    if len(content) > images.max_bytes:
        raise BadImage(too_many_bytes(filesystem.size(address), images))
    return content
