"""Read images for ``predict``: a folder of them, or a table of their paths or contents.

An invalid image gets an error message instead of an answer; the other images are still answered.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline import filesystem
from pipeline.data.image_checks import BadImage, facts_of
from pipeline.data.image_dataset import NOT_ONE, address_of, read_file
from pipeline.data.table import Rows, single_values, type_name
from pipeline.errors import UserError
from pipeline.model.features import from_table
from pipeline.model.inputs import IMAGE, Input
from pipeline.model.signatures import Signature
from pipeline.settings.image_data import Images, facts
from pipeline.settings.names import printable, shortened

# Limits of images that are read together.
ROWS_AT_ONCE, BYTES_AT_ONCE = 64, 64 << 20
REFUSED = "refused"
PATH = facts("")[0]
# Inputs of the signature, of the valid rows; columns to write next to the answers, and an error message, "" if valid,
# of every row.
Batch = tuple[dict[str, Any], dict[str, Any], list[str]]


def image_input(signature: Signature) -> Input | None:
    """Return the input that takes images, if any."""
    return next((column for column in signature.inputs.values() if column.kind == IMAGE), None)


def read_files(files: Sequence[str], folder: str, signature: Signature) -> Iterator[Batch]:
    """Yield batches of image files, with their paths relative to a folder."""
    image = image_input(signature)
    if image is None:
        raise UserError(
            f"{files[0]} is an image, and the model takes none; it takes {shortened(signature.inputs)}; expected "
            "CSV, Parquet, TFRecord or JSON lines files"
        )
    others = [name for name, column in signature.inputs.items() if column.required and name != image.name]
    if others:
        raise UserError(
            f"the model takes {shortened(others)} beside {image.name}; give a CSV or Parquet table with these columns "
            f"and one named {image.name!r}, with the paths of the images relative to the table"
        )
    paths = [os.path.relpath(file, folder) if folder else file for file in files]
    rows = Rows(pa.table({image.name: [b""] * len(files)}), np.arange(len(files)) + 1)
    yield from _batches(rows, files[0], image, files, {facts(image.name)[0]: pa.array(paths)}, signature.inputs)


def of_table(
    rows: Rows, file: str, image: Input, kept: Mapping[str, Any], inputs: Mapping[str, Input]
) -> Iterator[Batch]:
    """Yield batches of a table's rows, with the images whose paths or contents they hold."""
    column = single_values(rows.table.column(image.name))
    values: list[Any] = column.to_pylist()
    if any(isinstance(value, str) for value in values):
        names, found = values, [_found(os.path.dirname(file), value) for value in values]
    elif column.null_count == len(column) or any(isinstance(value, bytes) for value in values):
        names = [f"{os.path.basename(file)}:{number}" for number in rows.numbers]
        found = [BadImage(NOT_ONE) if value is None else value for value in values]
    else:
        raise UserError(
            f"{file}: the column {image.name!r} holds {type_name(column.type)}; expected paths of images relative to "
            "the file's folder, or encoded images"
        )
    yield from _batches(rows, file, image, found, {facts(image.name)[0]: pa.array(names, pa.string()), **kept}, inputs)


def _batches(
    rows: Rows,
    file: str,
    image: Input,
    found: Sequence[str | bytes | BadImage],
    kept: Mapping[str, Any],
    inputs: Mapping[str, Input],
) -> Iterator[Batch]:
    """Yield batches of rows; the column of images holds ``found``, or the images at these addresses."""
    place = rows.table.column_names.index(image.name)
    sizes = [
        filesystem.size(one) if isinstance(one, str) else 0 if isinstance(one, BadImage) else len(one) for one in found
    ]
    for part in _parts(sizes):
        images, reasons = checked([_content(one, image) for one in found[part]], image)
        valid = np.array([not reason for reason in reasons])
        table = rows.table.slice(part.start, len(reasons)).filter(pa.array(valid))
        table = table.set_column(place, image.name, pa.array(images, pa.large_binary()))
        columns = {name: values.slice(part.start, len(reasons)) for name, values in kept.items()}
        yield from_table(Rows(table, rows.numbers[part][valid]), file, inputs), columns, reasons


def checked(data: Sequence[bytes | BadImage], image: Input) -> tuple[list[bytes], list[str]]:
    """Return the images that a model can decode, and an error message for each one, "" if valid."""
    images: list[bytes] = []
    reasons: list[str] = []
    for encoded in data:
        try:
            if isinstance(encoded, BadImage):
                raise encoded
            facts_of(encoded, image.limits or Images())
            images.append(encoded)
            reasons.append("")
        except BadImage as error:
            reasons.append(str(error))
    return images, reasons


def answered(answers: Mapping[str, Any], reasons: Sequence[str]) -> dict[str, Any]:
    """Return columns of answers of the valid rows, with null for the others, and a column of error messages."""
    refused = np.array([bool(reason) for reason in reasons])
    places = pa.array(np.cumsum(~refused) - 1, mask=refused)
    columns = {name: column.take(places) for name, column in answers.items()}
    return {**columns, REFUSED: pa.array([reason or None for reason in reasons], pa.string())}


def first_refused(file: str, kept: Mapping[str, Any], reasons: Sequence[str]) -> str:
    """Return the first invalid image of a batch with its error message, for a terminal; else ""."""
    row = next((row for row, reason in enumerate(reasons) if reason), None)
    if row is None:
        return ""
    path = next((column[row].as_py() for name, column in kept.items() if name.endswith(PATH)), None)
    return printable(f"{path or file}: {reasons[row]}")


def _parts(sizes: Sequence[int]) -> Iterator[slice]:
    start, total = 0, 0
    for place, size in enumerate(sizes):
        if place > start and (place - start == ROWS_AT_ONCE or total + size > BYTES_AT_ONCE):
            yield slice(start, place)
            start, total = place, 0
        total += size
    if len(sizes) > start:
        yield slice(start, len(sizes))


def _found(folder: str, path: str | None) -> str | BadImage:
    """Return the file of a path in a table, which must not lead out of the table's folder."""
    if not path:
        return BadImage("the row has no path")
    file = address_of(folder, path)
    if file is None:
        return BadImage("its path leads out of the table's folder; expected one relative to it")
    return file if filesystem.exists(file) else BadImage("there is no such file")


def _content(found: str | bytes | BadImage, image: Input) -> bytes | BadImage:
    try:
        return read_file(found, image.limits or Images()) if isinstance(found, str) else found
    except BadImage as error:
        return error
