"""Find the image files of data, whose changes are other data, without reading an image."""

import hashlib
from collections.abc import Iterator

from pipeline import filesystem
from pipeline.data import csv_files, files, parquet_files
from pipeline.data.image_listings import address_of, holds_paths, list_table
from pipeline.data.table import Unit
from pipeline.settings.image_data import Images


def in_tables(found: files.Files, images: Images) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield file and row, path, and address of every image that tables name; none where rows hold the images.

    The address is None where there is no path, or one that leaves the table's folder.
    """
    for file in dict.fromkeys(found.all):
        if found.format == files.IMAGES or not holds_paths(file, found.format, images):
            continue
        unit, column = Unit(file, found.format), [images.column]
        is_csv = found.format == "csv"
        batches = csv_files.read(unit, {column[0]: "text"}, column) if is_csv else parquet_files.read(unit, column)
        for rows in batches:
            listing = list_table(file, found.format, [rows], images)
            paths = listing.rows.table.column(images.column).to_pylist()
            for number, path in zip(rows.numbers.tolist(), paths, strict=True):
                yield f"{file}, row {number}", path, address_of(listing.folder, path) if path else None


def fingerprint(found: files.Files, images: Images) -> str:
    """Return a text that changes with the names, sizes and times of images, in folders or named by tables."""
    if found.format == files.IMAGES:
        addresses: Iterator[str] = iter(found.all)
    else:
        addresses = (address for _, _, address in in_tables(found, images) if address)
    digest = hashlib.sha256()
    start = len(files.prefix_of(found.folder))
    for address, stamp in filesystem.stamps(found.folder, addresses):
        digest.update(repr((address[start:], stamp)).encode())
    return digest.hexdigest()
