"""Read tables and JSON lines for ``predict``.

A batch has the inputs of the rows that the model can answer, and for every row an error message, "" if it can.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.cli import predict_images
from pipeline.cli.predict_images import Batch
from pipeline.cli.printing import say
from pipeline.data import csv_files, parquet_files, shards
from pipeline.data.files import open_decompressed, partitions_of
from pipeline.data.table import BadRow, Unit
from pipeline.errors import UserError
from pipeline.filesystem import is_remote
from pipeline.model.features import Refused, check_columns, check_common_columns, from_instances, from_table, lacking
from pipeline.model.inputs import Input, take_examples
from pipeline.model.signatures import Signature
from pipeline.settings.names import shortened

BATCH_ROWS = 8_192
# Ends of a message on a row that the model cannot answer.
CORRECT = "; correct it, for every row needs its answer"
ALLOW = ", or allow a share of rows without one: --max-bad-rows 0.01"


def read_table(file: str, format: str, signature: Signature, kept: list[str], may_refuse: bool) -> Iterator[Batch]:
    """Yield the rows of a CSV, Parquet or TFRecord file, batch by batch."""
    inputs, examples = signature.inputs, take_examples(signature.inputs)
    image = predict_images.image_input(signature)
    partitions = _partitions_of(file)
    names: list[str] | None = None  # TFRecord files do not list them
    if format != "tfrecord":
        names = csv_files.read_header(file) if format == "csv" else list(parquet_files.scan(file)[0])
    if names == [] and format == "csv":
        return  # an empty file has no header
    if names is not None:
        names += [name for name in partitions if name not in names]
    if names is not None:
        absent = [name for name in kept if name not in names]
        if absent:
            raise UserError(
                f"{file} has no column {', '.join(absent)}, as --columns asks for; it has {shortened(names)}"
            )
        missing = [] if examples else check_columns(file, names, inputs)
        if missing:
            others = [name for name in names if name not in inputs and name not in kept]
            beside = f"; it has {shortened(map(repr, others))}, which the model does not take" if others else ""
            say(f"note: {file} has no column {shortened(map(repr, missing))}, taken as missing{beside}", error=True)
    types = dict.fromkeys(kept, csv_files.TEXT) | {name: column.kind for name, column in inputs.items()}
    types |= {image.name: csv_files.TEXT} if image else {}  # their paths
    if examples and names is not None:  # the signature does not name their columns
        types = csv_files.scan(file, {})[0] if format == "csv" else parquet_files.scan(file)[0]
        types = dict.fromkeys(partitions, csv_files.TEXT) | types
    wanted = [name for name in (*inputs, *kept) if names is None or name in names]
    unit = Unit(file, format, partitions=tuple(partitions.items()))
    for rows in shards.read(unit, types, None if examples else wanted):
        columns = {name: rows.table.column(name) for name in kept}
        if image:
            if rows.bad:
                raise UserError(f"{rows.bad[0]}{CORRECT}")
            if len(rows.numbers):
                yield from predict_images.of_table(rows, file, image, columns, inputs)
            continue
        reasons = {} if examples else lacking(rows, inputs)
        good = rows.without({at: BadRow(file, int(rows.numbers[at]), why, "") for at, why in reasons.items()})
        if good.bad and not may_refuse:
            raise UserError(f"{good.bad[0]}{CORRECT}{ALLOW}")
        if not good.bad:
            if len(rows.numbers):
                yield from_table(rows, file, inputs), columns, [""] * len(rows.numbers)
            continue
        numbers = [*rows.numbers.tolist(), *(row.row for row in rows.bad)]
        order = np.argsort(numbers, kind="stable").tolist()
        # A row that could not be read has no values.
        places = pa.array([place if place < len(rows.numbers) else None for place in order], pa.int64())
        refused = {row.row: f"row {row.row}: {row.reason}" for row in good.bad}
        columns = {name: column.take(places) for name, column in columns.items()}
        yield from_table(good, file, inputs), columns, [refused.get(numbers[place], "") for place in order]


def _partitions_of(file: str) -> dict[str, str | None]:
    """Return the columns and values that the names of all folders above a file say."""
    return partitions_of(file if is_remote(file) else str(Path(file).absolute()), "")


def read_json_lines(file: str, format: str, signature: Signature, kept: list[str], may_refuse: bool) -> Iterator[Batch]:
    """Yield the rows of a JSON lines file."""
    integers = {name for name, column in signature.inputs.items() if column.kind == csv_files.INTEGERS}
    partitions = {
        name: int(value) if name in integers and value and value.isdecimal() else value
        for name, value in _partitions_of(file).items()
        if name in signature.inputs or name in kept
    }
    image = predict_images.image_input(signature)
    with open_decompressed(file) as stream:
        numbered = ((number, line) for number, line in enumerate(stream, 1) if line.strip())
        while lines := list(itertools.islice(numbered, predict_images.ROWS_AT_ONCE if image else BATCH_ROWS)):
            instances, refused = _parsed([line for _, line in lines])
            instances = [{**partitions, **row} if isinstance(row, dict) else row for row in instances]
            values = [row if isinstance(row, dict) else {} for row in instances]
            objects = all(isinstance(row, dict) for row in instances) and not take_examples(signature.inputs)
            if objects and len(refused) < len(lines):
                check_common_columns(file, list(dict.fromkeys(itertools.chain(*values))), signature.inputs)
            columns = _columns(instances, signature.inputs, refused)
            if refused and not may_refuse:
                place, reason = min(refused.items())
                raise UserError(f"{file}, line {lines[place][0]}: {reason}{CORRECT}{ALLOW}")
            try:
                arrays = {name: pa.array([row.get(name) for row in values]) for name in kept}
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise UserError(f"{file}: the values of {', '.join(kept)} are of several types: {error}") from error
            reasons = [f"line {number}: {refused[at]}" if at in refused else "" for at, (number, _) in enumerate(lines)]
            if image:
                images, found = predict_images.checked(columns[image.name].tolist(), image)
                valid = np.array([not reason for reason in found], bool)
                columns = {name: column[valid] for name, column in columns.items()}
                columns[image.name][:] = images
                of_images = iter(found)
                reasons = [reason or next(of_images) for reason in reasons]
            yield columns, arrays, reasons


def _parsed(lines: Sequence[bytes]) -> tuple[list[Any], dict[int, str]]:
    """Return the values of lines of JSON, {} for invalid ones, and the reasons for these by place from 0."""
    instances: list[Any] = []
    refused: dict[int, str] = {}
    for place, line in enumerate(lines):
        try:
            instances.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            instances.append({})
            refused[place] = f"no JSON: {error}; expected one object a line"
    return instances, refused


def _columns(instances: Sequence[Any], inputs: Mapping[str, Input], refused: dict[int, str]) -> dict[str, np.ndarray]:
    """Convert the rows that are not refused; refuse more of them, by place and reason."""
    places = [place for place in range(len(instances)) if place not in refused]
    try:
        return from_instances([instances[place] for place in places], inputs, ignore_others=True)
    except Refused:
        for place in places:
            try:
                from_instances([instances[place]], inputs, ignore_others=True)
            except Refused as one:
                refused[place] = one.reason
    good = [instances[place] for place in places if place not in refused]
    return from_instances(good, inputs, ignore_others=True)
