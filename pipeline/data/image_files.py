"""Read images, by the paths of a listing or from a column of encoded ones, and add their facts to the rows."""

import posixpath
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import pyarrow as pa

from pipeline import filesystem
from pipeline.data import files
from pipeline.data.image_listings import Listing, address_of, check_columns
from pipeline.data.images import BadImage, Facts, facts_of, too_many_bytes
from pipeline.data.table import BadRow, Rows, single_values
from pipeline.errors import UserError
from pipeline.settings.image_data import Images, facts

# Files read and decoded at once; in a bucket, most of the time goes into waiting.
THREADS = 8
BATCH_BYTES = 16 << 20
NOT_ONE = "no image, or several; expected one in every row"
# Path, content and facts of an image.
Loaded: TypeAlias = tuple[str, bytes, Facts]


def read(listing: Listing, images: Images) -> Iterator[Rows]:
    """Read the images of a listing, some megabytes at once; the paths become the images, and their facts are added.

    Yields:
        Rows whose images TensorFlow decodes; bad ones, of a missing or broken image, with path and reason.
    """
    paths = listing.rows.table.column(images.column).to_pylist()
    is_folder = listing.format == files.IMAGES

    def load(at: int) -> Loaded | BadRow:
        path = paths[at]
        address = address_of(listing.folder, path) if path else None
        try:
            if address is None:
                raise BadImage("no path of an image" if not path else f"expected a path below {listing.folder}")
            content = read_file(address, images)
            return posixpath.normpath(path), content, facts_of(content, images)
        except BadImage as error:
            if is_folder:
                return BadRow(f"{files.prefix_of(listing.folder)}{path}", 0, str(error), "")
            reason = f"{path}: {error}" if path else str(error)
            return BadRow(listing.file, int(listing.rows.numbers[at]), reason, path or "")

    yield from _collected(listing.rows, load, images)


def with_facts(rows: Rows, file: str, folder: str, images: Images) -> Iterator[Rows]:
    """Add their facts to rows with encoded images; the path is the file's, relative to the folder, and the row.

    Args:
        rows: Of one file, the images as bytes or lists of one.
        file: That they are from.
        folder: Of the data.
        images: Limits, and the name of the column.

    Raises:
        UserError: there is no column of images, it holds no bytes, or a column has the name of a fact.
    """
    check_columns(rows.table.column_names, file, images)
    column = single_values(rows.table.column(images.column))
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type) or pa.types.is_null(column.type)):
        raise UserError(f"{file}: the column {images.column!r} is {column.type}; expected bytes of encoded images")
    relative = file.removeprefix(files.prefix_of(folder))

    def load(at: int) -> Loaded | BadRow:
        content = column[at].as_py()
        try:
            if content is None:
                raise BadImage(NOT_ONE)
            return f"{relative}:{rows.numbers[at]}", content, facts_of(content, images)
        except BadImage as error:
            return BadRow(file, int(rows.numbers[at]), f"column {images.column!r}: {error}", "")

    yield from _collected(rows, load, images)


def _collected(rows: Rows, load: Callable[[int], Loaded | BadRow], images: Images) -> Iterator[Rows]:
    """Load image by image, and yield rows as soon as their images take some megabytes, and at the end."""
    kept: list[int] = []
    loaded: list[Loaded] = []
    bad, size = list(rows.bad), 0
    others = rows.table.drop_columns([images.column])
    with ThreadPoolExecutor(THREADS) as pool:
        for start in range(0, len(rows.table), THREADS):
            chunk = range(start, min(start + THREADS, len(rows.table)))
            # Pillow warns of sizes that the limits allow, and of EXIF data that do not matter.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outcomes = list(pool.map(load, chunk))
            for at, outcome in zip(chunk, outcomes, strict=True):
                if isinstance(outcome, BadRow):
                    bad.append(outcome)
                else:
                    kept.append(at)
                    loaded.append(outcome)
                    size += len(outcome[1])
            if size > BATCH_BYTES:
                yield Rows(
                    _with_images(others.take(pa.array(kept, pa.int64())), loaded, images), rows.numbers[kept], bad
                )
                kept, loaded, bad, size = [], [], [], 0
    if loaded or bad:
        yield Rows(_with_images(others.take(pa.array(kept, pa.int64())), loaded, images), rows.numbers[kept], bad)


def _with_images(table: pa.Table, loaded: Sequence[Loaded], images: Images) -> pa.Table:
    """Return the table with a column of the images, and those of their facts."""
    paths = [path for path, _, _ in loaded]
    found = [known for _, _, known in loaded]
    columns = (
        pa.array(paths, pa.string()),
        pa.array([posixpath.dirname(path) for path in paths], pa.string()),
        pa.array([known.format for known in found], pa.string()),
        pa.array([known.width for known in found], pa.int64()),
        pa.array([known.height for known in found], pa.int64()),
        pa.array([known.brightness for known in found], pa.float32()),
    )
    table = table.append_column(images.column, pa.array([content for _, content, _ in loaded], pa.large_binary()))
    for name, column in zip(facts(images.column), columns, strict=True):
        table = table.append_column(name, column)
    return table


def read_file(address: str, images: Images) -> bytes:
    """Return the content of a file, of a too large one not more than shows that it is."""
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
