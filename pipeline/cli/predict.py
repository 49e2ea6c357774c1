"""Write a pushed model's answers for files of raw rows: python -m pipeline predict --help.

CSV, Parquet and TFRecord files are read in batches, as in ExampleGen. JSON lines are read like an instance of a server
request. Images are read individually. A row that the model cannot answer stops the command, or has no answer.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

from pipeline.cli import command_line
from pipeline.cli.printing import Terminal, say
from pipeline.cli.terminal import silence_stderr
from pipeline.errors import UserError
from pipeline.filesystem import is_remote, new_file
from pipeline.model.versions import Versions, model_at
from pipeline.settings.checks import Share, check_value
from pipeline.settings.config import BIGQUERY
from pipeline.settings.image_data import ENDINGS
from pipeline.settings.names import shortened
from pipeline.settings.repository import find_root, runner, shown
from pipeline.settings.tasks import ANSWERS, LABEL_SET

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from pipeline.cli.predict_images import Batch
    from pipeline.model.features import Columns
    from pipeline.model.signatures import Model, Signature

JSON_LINES, IMAGES = "JSON lines", "images"
JSON_ENDINGS = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".json")
# Rows explained per call and progress update: each row takes some thousand model evaluations.
EXPLAINED_ROWS = 64
OUTPUTS = (".parquet", ".csv", ".jsonl")


def main(argv: list[str]) -> int:
    """Write the answers as the command line says; return the exit code."""
    arguments = parse_arguments(argv)
    files = find_files(arguments.data)
    to = Path(arguments.to)
    if not to.name.endswith(OUTPUTS):
        raise UserError(f"--to {to}: expected a name that ends with one of {', '.join(OUTPUTS)}")
    if to.exists() and not arguments.replace:
        raise UserError(f"{to} exists; write to another file with --to, or over it with --replace")
    model, number = model_at(arguments.model or pushed_by(arguments)), 0
    if isinstance(model, Versions):
        number = model.resolve(arguments.version)
        model = str(model.path(number))
    with silence_stderr():
        from pipeline.model.signatures import load

        loaded = load(model, number)
    folder = arguments.data if Path(arguments.data).is_dir() else str(Path(arguments.data).parent)
    share = allowed_share(arguments)
    rows, seconds = predict(loaded, files, to, arguments.columns, folder, explain=arguments.explain, max_bad_rows=share)
    speed = f"{seconds:.1f} s ({rows / max(seconds, 1e-9):,.0f} rows/s)"
    if rows:
        say(f"{rows:,} rows by {shown(model)} in {speed}, written to {to}")
    else:
        say(f"no rows in {arguments.data}: {to} has none either")
    return 0


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = command_line.make_parser(
        "python -m pipeline predict",
        "Write a pushed model's answers for files of raw rows, of any size.",
        {0: "written", 1: "failed, and nothing is written"},
        "Columns that the model does not take, such as the label, are ignored. Rows keep their order. An image that "
        "cannot be read has no answer, and the column 'refused' says why; so have bad rows, with --max-bad-rows.",
    )
    command_line.add_pipeline_arguments(parser)
    parser.add_argument("--model", help="folder of versions, or of one model (output/<name>/serving/<name>)")
    parser.add_argument("--version", default="latest", help="latest, previous or a number (%(default)s)")
    parser.add_argument(
        "--data", required=True, help="file or folder of CSV, Parquet, TFRecord, JSON lines or image files"
    )
    parser.add_argument(
        "--explain", action="store_true", help="also write what each column has contributed to the answer; takes longer"
    )
    parser.add_argument("--columns", nargs="*", default=[], help="columns of the data to write next to the answers")
    parser.add_argument(
        "--max-bad-rows",
        type=float,
        metavar="SHARE",
        help="share of rows that may have no answer, 0 to 1, such as those that lack a value which the model needs "
        "(data.max_bad_rows of the config; without one 0; of images 1)",
    )
    parser.add_argument("--to", required=True, help="file to write: .parquet, .csv or .jsonl")
    parser.add_argument("--replace", action="store_true", help="write over an existing file")
    arguments = parser.parse_args(argv)
    if arguments.max_bad_rows is not None:
        check_value("--max-bad-rows", arguments.max_bad_rows, Share)
    return arguments


def pushed_by(arguments: argparse.Namespace) -> str:
    """Return the folder of versions that a run of the chosen pipeline pushes to."""
    root = find_root()
    config = command_line.chosen_config(arguments, root)
    folder = command_line.output_folder(arguments, root, config) / "serving" / config.name
    if not folder.is_dir():
        run = f"run {runner()}{command_line.pipeline_flags(arguments)}, which pushes one"
        raise UserError(f"{config.name} has no pushed model yet: there is no {shown(folder)}; {run}")
    return str(folder)


def allowed_share(arguments: argparse.Namespace) -> float | None:
    """Return the share of rows that may have no answer: as given, or as in the config of the chosen pipeline."""
    if arguments.max_bad_rows is not None or arguments.model:
        return arguments.max_bad_rows
    data = command_line.chosen_config(arguments, find_root()).data
    return None if data.images else data.max_bad_rows


def find_files(data: str) -> dict[str, str]:
    """Return the format of every file, in the order in which they are read."""
    if data.startswith(BIGQUERY) or data.endswith(".sql"):
        raise UserError(
            f"{data}: from BigQuery, Vertex AI predicts (docs/serving.md); here, export the rows to Parquet files first"
        )
    path = Path(data)
    if not is_remote(data) and not path.exists():
        raise UserError(f"no data at {data}; give a file or folder of CSV, Parquet, TFRecord or JSON lines files")
    names = [data]
    if path.is_dir():
        from pipeline.data.files import is_hidden, unread

        found = unread(data)
        names = [str(path / name) for name in found if not is_hidden(name)]
        if hidden := [name for name in found if is_hidden(name)]:
            say(f"note: hidden files of {data} that are not read: {len(hidden)}, {shortened(hidden)}", error=True)
    formats = {name: _format_of(name) for name in names}
    unknown = [name for name, format in formats.items() if format is None]
    if unknown or not formats:
        reason = f"found {unknown[0]}" if unknown else f"{data} has no files"
        raise UserError(f"{reason}; expected .csv, .parquet, .tfrecord or .jsonl files, also compressed, or images")
    if IMAGES in formats.values() and len(set(formats.values())) > 1:
        table = next(name for name, format in formats.items() if format != IMAGES)
        raise UserError(f"{data} has images, and {table} next to them; name the table, or a folder of images alone")
    return {name: format for name, format in formats.items() if format}


def _format_of(file: str) -> str | None:
    from pipeline.data.files import format_of

    if file.lower().endswith(JSON_ENDINGS):
        return JSON_LINES
    return IMAGES if file.lower().endswith(ENDINGS) else format_of(file)


def predict(
    model: Model,
    files: dict[str, str],
    to: Path,
    kept: Sequence[str] = (),
    folder: str = "",
    *,
    explain: bool = False,
    max_bad_rows: float | None = None,
) -> tuple[int, float]:
    """Write the model's answers for every row; the file appears when it is complete.

    Up to a share of the rows (None: all images, and no other rows) may have no answer; a column then says why.
    """
    import pyarrow as pa
    import tensorflow as tf

    from pipeline.cli import predict_images
    from pipeline.model import explanations
    from pipeline.model.signatures import refusal
    from pipeline.quality.wrong_values import Known, Unread
    from pipeline.serving.table_writer import TableWriter

    if explain and (reason := explanations.why_none(model)):
        raise UserError(f"--explain: {reason}")
    signature = (model.explains if explain else None) or model.rows
    written = explanations.written(signature) if explain else signature.outputs
    of_images = predict_images.image_input(signature) is not None
    may_refuse = of_images or bool(max_bad_rows)
    clash = [name for name in kept if name in written or (may_refuse and name == predict_images.REFUSED)]
    if clash:
        raise UserError(f"--columns {' '.join(clash)}: the model's answer has a column of that name")
    started = time.monotonic()
    rows, refused, first_reason = 0, 0, ""
    unread = {name: Unread(column.notation) for name, column in signature.inputs.items() if column.notation}
    known = {name: Known(column.known) for name, column in signature.inputs.items() if column.known}
    # In CSV, the values of the classes are columns with their names.
    value_names = dict.fromkeys((ANSWERS["multiclass"], LABEL_SET), model.classes) if model.classes else {}
    try:
        with new_file(to) as partial, _progress() as progress:
            with contextlib.closing(TableWriter(Path(partial), value_names)) as writer:
                batches = _read(files, signature, list(kept), folder, bool(max_bad_rows))
                for file, (columns, kept_columns, reasons) in batches:
                    try:
                        # At the first call, TensorFlow logs how it prepares the model.
                        with contextlib.nullcontext() if rows else silence_stderr():
                            answers = _answers(signature, columns, explain, progress)
                    except tf.errors.OpError as error:
                        raise UserError(
                            f"{file}, after {rows:,} rows: the model refuses a row: {refusal(error)}"
                        ) from error
                    arrays = {name: _as_arrow(values) for name, values in answers.items()}
                    if may_refuse:
                        arrays = predict_images.answered(arrays, reasons)
                        refused += sum(map(bool, reasons))
                        first_reason = first_reason or predict_images.first_refused(file, kept_columns, reasons)
                    for name, texts in unread.items():
                        texts.add(columns[name])
                    for name, values in known.items():
                        values.add(columns[name])
                    writer.write(pa.table({**kept_columns, **arrays}))
                    rows += len(reasons)
                if not rows:
                    with silence_stderr():
                        answers = _no_answers(signature, explain)
                    arrays = {name: _as_arrow(values) for name, values in answers.items()}
                    others = [*kept, *([predict_images.REFUSED] if may_refuse else [])]
                    writer.write(pa.table({**dict.fromkeys(others, pa.array([], pa.string())), **arrays}))
            noun, done = ("images", "read") if of_images else ("rows", "answered")
            if rows and refused == rows:
                raise UserError(f"none of {rows:,} {noun} can be {done}; the first: {first_reason}")
            if max_bad_rows is not None and refused > max_bad_rows * rows:
                raise UserError(
                    f"{first_reason}. {refused:,} of {rows:,} {noun} cannot be {done}, {refused / rows:.2%}, and "
                    f"--max-bad-rows allows {max_bad_rows:.2%}; correct them, or allow a larger share"
                )
    except OSError as error:
        raise UserError(f"cannot write {to} from {', '.join(list(files)[:3])}: {error}") from error
    if refused:
        say(f"note: {refused:,} of {rows:,} {noun} are refused, see 'refused'; the first: {first_reason}", error=True)
    for name, texts in unread.items():
        if texts.rows:
            say(f"note: column {name!r}: {texts.rows:,} of {rows:,} rows {texts}", error=True)
    for name, values in known.items():
        if values.are_few:
            say(f"note: column {name!r}: {values}", error=True)
    return rows, time.monotonic() - started


def _answers(signature: Signature, columns: Columns, explain: bool, progress: Progress) -> dict[str, np.ndarray]:
    """Return the columns to write for some rows; explain a few rows at a time and update the progress line."""
    import numpy as np

    from pipeline.model import explanations
    from pipeline.model.features import row_count

    if not row_count(columns):
        return _no_answers(signature, explain)
    parts = []
    size = EXPLAINED_ROWS if explain else row_count(columns)
    for start in range(0, row_count(columns), size):
        rows = {name: values[start : start + size] for name, values in columns.items()}
        outputs = signature.predict(rows)
        parts.append(explanations.by_column(outputs) if explain else dict(sorted(outputs.items())))
        progress.advance(progress.task_ids[0], row_count(rows))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _no_answers(signature: Signature, explain: bool) -> dict[str, np.ndarray]:
    """Return the columns to write, with no row."""
    import numpy as np

    from pipeline.model import explanations
    from pipeline.model.inputs import take_examples

    if take_examples(signature.inputs):  # which features they have is not known
        types = {name: object if kind == "string" else kind for name, kind in sorted(signature.outputs.items())}
        return {name: np.empty(0, kind) for name, kind in types.items()}
    outputs = signature.predict(signature.columns([signature.example]))
    answers = explanations.by_column(outputs) if explain else dict(sorted(outputs.items()))
    return {name: values[:0] for name, values in answers.items()}


def _read(
    files: dict[str, str], signature: Signature, kept: list[str], folder: str, may_refuse: bool
) -> Iterator[tuple[str, Batch]]:
    """Yield all rows in batches, each with its file."""
    from pipeline.cli import predict_images, predict_rows

    names = list(files)
    if IMAGES in files.values():
        if kept:
            raise UserError(f"--columns {' '.join(kept)}: image files have no columns; their paths are always written")
        yield from ((names[0], batch) for batch in predict_images.read_files(names, folder, signature))
        return
    for file, format in files.items():
        read = predict_rows.read_json_lines if format == JSON_LINES else predict_rows.read_table
        yield from ((file, batch) for batch in read(file, format, signature, kept, may_refuse))


def _as_arrow(values: Any) -> pa.Array:
    """Return an output [rows, ...] as a column; several values per row become lists of fixed size."""
    import pyarrow as pa

    if values.ndim > 1:
        return pa.FixedSizeListArray.from_arrays(_as_arrow(values.reshape(-1, *values.shape[2:])), values.shape[1])
    if values.dtype == object:
        texts = [item.decode(errors="replace") if isinstance(item, bytes) else item for item in values.tolist()]
        return pa.array(texts, pa.string())
    return pa.array(values)


def _progress() -> Progress:
    """Return the progress line, which is shown only on a terminal."""
    console = Terminal(stderr=True)
    columns = (SpinnerColumn(), "{task.completed:,} rows", TimeElapsedColumn())
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    progress.add_task("", total=None)
    return progress
