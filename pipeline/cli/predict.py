"""Answers for files of raw rows: python -m pipeline predict --help.

CSV, Parquet and TFRecord files are read as ExampleGen reads them, batch by batch; JSON lines as the server reads an
instance.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli.command_line import add_pipeline_arguments, chosen_config, pipeline_flags
from pipeline.cli.terminal import silent
from pipeline.errors import UserError
from pipeline.settings.config import BIGQUERY
from pipeline.settings.repository import find_root, runner, shown
from pipeline.settings.tasks import ANSWERS

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.serving.features import Input
    from pipeline.serving.model import Model, Signature

JSON_LINES = "JSON lines"
JSON_ENDINGS = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".json")
BATCH_ROWS = 8_192
OUTPUTS = (".parquet", ".csv", ".jsonl")


@dataclass(frozen=True)
class Batch:
    """Some rows, in the order of their file.

    Attributes:
        columns: What the signature takes, [rows, ...] each.
        kept: The columns to be written beside the answers.
    """

    columns: dict[str, Any]
    kept: dict[str, pa.Array]


def main(argv: list[str]) -> int:
    """Runs what the command line asks for; returns the exit code."""
    arguments = parse_arguments(argv)
    files = find(arguments.data)
    to = Path(arguments.to)
    if not to.name.endswith(OUTPUTS):
        raise UserError(f"--to {to}: expected a name that ends with one of {', '.join(OUTPUTS)}")
    if to.exists() and not arguments.replace:
        raise UserError(f"{to} exists; write to another file with --to, or over it with --replace")
    address, number = locate(arguments.model or pushed_by(arguments), arguments.version)
    with silent():
        from pipeline.serving.model import load

        model = load(address, number)
    rows, seconds = predict(model, files, to, arguments.columns)
    speed = f"{seconds:.1f} s ({rows / max(seconds, 1e-9):,.0f} rows/s)"
    print(f"{rows:,} rows by {shown(address)} in {speed}, written to {to}")
    return 0


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline predict",
        description="Write a pushed model's answers for files of raw rows, of any size.",
        epilog="Columns that the model does not take, such as the label, are passed over. Rows keep their order. "
        "Exit codes: 0 written, 1 failed and nothing written, 2 wrong arguments, 130 interrupted.",
    )
    parser.add_argument("--data", required=True, help="file or folder of CSV, Parquet, TFRecord or JSON lines files")
    parser.add_argument("--to", required=True, help="file to write: .parquet, .csv or .jsonl")
    parser.add_argument("--columns", nargs="*", default=[], help="columns of the data to write beside the answers")
    parser.add_argument("--replace", action="store_true", help="write over an existing file")
    add_model_arguments(parser)
    return parser.parse_args(argv)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say which model, of every command that asks one."""
    add_pipeline_arguments(parser)
    parser.add_argument("--model", help="folder of versions, or of one model (output/<name>/serving/<name>)")
    parser.add_argument("--version", default="latest", help="latest, previous or a number (%(default)s)")


def locate(model: str, version: str) -> tuple[str, int]:
    """The address of a model and its number, 0 where it is in no folder of versions.

    Args:
        model: A folder of versions, or the address of one model.
        version: "latest", "previous" or a number.

    Raises:
        UserError: there is no such version.
    """
    from pipeline.serving.versions import model_at

    there = model_at(model)
    if isinstance(there, str):
        return there, 0
    number = there.resolve(version)
    return str(there.path(number)), number


def pushed_by(arguments: argparse.Namespace) -> str:
    """Return the folder of versions that a run of the chosen pipeline pushes to.

    Raises:
        UserError: there is no such pipeline, or it has pushed nothing.
    """
    root = find_root()
    name = chosen_config(arguments, root).name
    folder = root / "output" / name / "serving" / name
    if not folder.is_dir():
        command = f"{runner()}{pipeline_flags(arguments)}"
        raise UserError(f"{name} has no pushed model yet: there is no {shown(folder)}; run {command}, which pushes one")
    return str(folder)


def find(data: str) -> dict[str, str]:
    """The format of every file, in the order in which they are read.

    Raises:
        UserError: there are none, or of an unknown format.
    """
    from pipeline.data.files import format_of
    from pipeline.filesystem import is_remote

    if data.startswith(BIGQUERY) or data.endswith(".sql"):
        raise UserError(
            f"{data}: from BigQuery, Vertex AI predicts (docs/serving.md); here, export the rows to Parquet files first"
        )
    path = Path(data)
    if not is_remote(data) and not path.exists():
        raise UserError(f"no data at {data}; give a file or folder of CSV, Parquet, TFRecord or JSON lines files")
    names = [data]
    if path.is_dir():
        names = sorted(str(file) for file in path.rglob("*") if file.is_file() and file.name[0] not in "._")
    kinds = {name: JSON_LINES if name.lower().endswith(JSON_ENDINGS) else format_of(name) for name in names}
    unknown = [name for name, kind in kinds.items() if kind is None]
    if unknown or not kinds:
        found = f"found {unknown[0]}" if unknown else f"{data} has no files"
        raise UserError(f"{found}; expected .csv, .parquet, .tfrecord or .jsonl files, also compressed")
    return {name: kind for name, kind in kinds.items() if kind}


def predict(model: Model, files: dict[str, str], to: Path, kept: Sequence[str] = ()) -> tuple[int, float]:
    """Asks the model every row and writes its answers, which appear at ``to`` at once, when all are there.

    Args:
        model: Of which the signature for rows is asked.
        files: Format by file.
        to: A .parquet, .csv or .jsonl file.
        kept: Columns of the data to write too.

    Returns:
        Rows, and seconds.

    Raises:
        UserError: a row cannot be asked; nothing is written.
    """
    import pyarrow as pa
    import tensorflow as tf

    from pipeline.serving.features import rows_in
    from pipeline.serving.table_writer import TableWriter

    signature = model.rows
    clash = [name for name in kept if name in signature.outputs]
    if clash:
        raise UserError(f"--columns {' '.join(clash)}: the model's answer has a column of that name")
    started = time.monotonic()
    done = 0
    partial = to.with_name(f".{to.stem}.partial{to.suffix}")
    try:
        with _progress() as progress, TableWriter(partial, _value_names(model)) as writer:
            for file, kind in files.items():
                for batch in _read(file, kind, signature, list(kept)):
                    try:
                        answers = signature.answer(batch.columns)
                    except tf.errors.OpError as error:
                        raise UserError(
                            f"{file}, after {done:,} rows: the model refuses a row: {error.message}"
                        ) from error
                    columns = {name: _as_arrow(values) for name, values in sorted(answers.items())}
                    writer.write(pa.table({**batch.kept, **columns}))
                    done += rows_in(batch.columns)
                    progress(done)
        if not done:
            raise UserError(f"no rows in {', '.join(list(files)[:3])}; expected at least one")
        partial.replace(to)
    except OSError as error:
        raise UserError(f"cannot write {to} from {', '.join(list(files)[:3])}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return done, time.monotonic() - started


def _read(file: str, kind: str, signature: Signature, kept: list[str]) -> Iterator[Batch]:
    """The rows of a file, batch by batch.

    Raises:
        UserError: the file or a row is not usable.
    """
    from pipeline.data import csv_files, parquet_files
    from pipeline.data.shards import read
    from pipeline.data.table import Unit
    from pipeline.serving.features import check_columns, from_table, shortened

    if kind == JSON_LINES:
        yield from _read_json_lines(file, signature, kept)
        return
    inputs = signature.inputs
    wanted = [*inputs, *kept]
    types: dict[str, str] = {}
    names: list[str] | None = None
    if kind == "csv":
        names = csv_files.read_header(file)
        types = {name: one.kind for name, one in inputs.items()} | dict.fromkeys(
            set(kept) - set(inputs), csv_files.TEXT
        )
        if signature.takes_examples:  # which says nothing of their columns
            types = csv_files.scan(file, {}).types
    elif kind == "parquet":
        names = list(parquet_files.scan(file)[0])
        types = {name: one.kind for name, one in inputs.items()}
    absent = [name for name in kept if names is not None and name not in names]
    if absent:
        raise UserError(
            f"{file} has no column {', '.join(absent)}, as --columns asks for; it has {shortened(names or ())}"
        )
    if names is not None and not signature.takes_examples:
        lacking = check_columns(file, names, inputs)
        if lacking:
            print(f"note: {file} has no column {shortened(map(repr, lacking))}; taken as missing", file=sys.stderr)
    columns = None if signature.takes_examples else [name for name in wanted if names is None or name in names]
    for rows in read(Unit(file, kind), types, columns):
        if rows.bad:
            raise UserError(f"{rows.bad[0]}; correct it, for every row needs its answer")
        if len(rows.numbers):
            there = {name: rows.table.column(name) for name in kept}
            yield Batch(from_table(rows, file, inputs), there)


def _read_json_lines(file: str, signature: Signature, kept: list[str]) -> Iterator[Batch]:
    import pyarrow as pa

    from pipeline.data.files import open_decompressed
    from pipeline.serving.features import Refused, check_columns, from_instances

    with open_decompressed(file) as stream:
        numbered = ((number, line) for number, line in enumerate(stream, 1) if line.strip())
        while some := list(itertools.islice(numbered, BATCH_ROWS)):
            instances = []
            for number, line in some:
                try:
                    instances.append(json.loads(line))
                except (ValueError, RecursionError) as error:
                    raise UserError(f"{file}, line {number}: no JSON: {error}; expected one object a line") from error
            if not signature.takes_examples and all(isinstance(one, dict) for one in instances):
                check_columns(file, list(dict.fromkeys(itertools.chain(*instances))), _optional(signature.inputs))
            try:
                columns = from_instances(instances, signature.inputs, others=True)
            except Refused as refused:
                line_number = some[refused.row or 0][0]
                raise UserError(f"{file}, line {line_number}: {refused.reason}") from refused
            try:
                there = {name: pa.array([one.get(name) for one in instances]) for name in kept}
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise UserError(f"{file}: the values of {', '.join(kept)} are of several types: {error}") from error
            yield Batch(columns, there)


def _optional(inputs: Mapping[str, Input]) -> dict[str, Input]:
    """The inputs as if none were required: which row lacks one, and on which line, is said elsewhere."""
    return {name: replace(one, required=False) for name, one in inputs.items()}


def _value_names(model: Model) -> dict[str, Sequence[str]]:
    """Names of the values of list columns in CSV: of probabilities, the classes that the model names."""
    return {ANSWERS["multiclass"]: model.classes} if model.classes else {}


def _as_arrow(values: Any) -> pa.Array:
    """An answer [rows, ...] as a column; what a row has several of, as a list of fixed size."""
    import pyarrow as pa

    if values.ndim > 1:
        return pa.FixedSizeListArray.from_arrays(_as_arrow(values.reshape(-1, *values.shape[2:])), values.shape[1])
    if values.dtype == object:
        return pa.array(
            [item.decode(errors="replace") if isinstance(item, bytes) else item for item in values.tolist()]
        )
    return pa.array(values)


@contextlib.contextmanager
def _progress() -> Iterator[Any]:
    """Shows the rows so far, on a terminal only."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.completed:,.0f} rows, {task.speed:,.0f} rows/s")
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done: None
        return
    with Progress(SpinnerColumn(), text, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done: bar.update(task, completed=done)
