"""Makes a pipeline of your own from your data: python -m pipeline new NAME --data my.csv --label churned.

Writes configs/NAME.py, models/NAME.py and schema/NAME/schema.pbtxt, for you to edit; then
python local_runner.py --pipeline NAME trains and pushes a model.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from pipeline import filesystem
from pipeline.cli.terminal import silence_stderr
from pipeline.errors import UserError
from pipeline.settings.config import SPLITS, Data
from pipeline.settings.names import printable
from pipeline.settings.repository import find_root, runner, shown
from pipeline.settings.tasks import Task

if TYPE_CHECKING:
    from pipeline.scaffold.table import Table


def main(argv: list[str]) -> int:
    """The command line."""
    arguments = parse_arguments(argv)
    targets = targets_of(arguments.name, arguments.replace)
    data = Path(arguments.data).absolute()
    if not data.exists():
        raise UserError(f"no data at {arguments.data}; give a .csv or .parquet file, or a folder of them")
    with silence_stderr():
        # TensorFlow greets whoever imports it; and it takes seconds, so not before the arguments are known.
        import pipeline.validation.schema_text  # noqa: F401
        from pipeline.scaffold import beforehand, files
        from pipeline.scaffold.table import look
    table = look(Data(str(data)), arguments.label, arguments.task, arguments.leave_out)
    beforehand.check_leaks(table, arguments.keep)
    root = find_root()
    inside = data.is_relative_to(root)
    path = data.relative_to(root).as_posix() if inside else str(data)
    texts = (
        files.config_text(arguments.name, path, table),
        files.module_text(arguments.name, table),
        schema_text(table, arguments.keep),
    )
    for target, text in zip(targets, texts, strict=True):
        filesystem.write(target, text)
    rows = table.rows
    print(f"{arguments.name}: {rows.num_rows:,} rows, {rows.num_columns} columns{'' if table.whole else ' looked at'}")
    for kind, line in files.summary(table):
        print(printable(f"  {kind:<9} {line}"))
    print("wrote", ", ".join(map(shown, targets)))
    print(f"next: {runner()} --pipeline {arguments.name}")
    return 0


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline new",
        description="Make a pipeline of your own from your data: config, module file and schema, for you to edit.",
        epilog="Then: python local_runner.py --pipeline NAME",
    )
    parser.add_argument("name", metavar="NAME", help="of the pipeline: lower-case letters, digits and _")
    parser.add_argument("--data", required=True, help="CSV file with a header, Parquet file, or a folder of one kind")
    parser.add_argument("--label", required=True, help="column to predict: classes, in words or numbers, or a number")
    parser.add_argument("--task", choices=get_args(Task), help="what the label is (found out from its values)")
    parser.add_argument(
        "--leave-out", action="append", default=[], metavar="COLUMN", help="that the model shall not use; may repeat"
    )
    parser.add_argument(
        "--keep", action="append", default=[], metavar="COLUMN", help="known whenever the model is asked; may repeat"
    )
    parser.add_argument("--replace", action="store_true", help="write the files anew where they exist")
    return parser.parse_args(argv)


def targets_of(name: str, replace: bool) -> tuple[Path, Path, Path]:
    """Config, module file and schema.

    Raises:
        UserError: the name cannot be one, or is taken.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,48}", name):
        raise UserError(
            f'a name has lower-case letters, digits and "_", starts with a letter and has at most 49 characters, got '
            f"{name!r}"
        )
    root = find_root()
    targets = (root / f"configs/{name}.py", root / f"models/{name}.py", root / f"schema/{name}/schema.pbtxt")
    there = [shown(target) for target in targets if target.exists()]
    if there and not replace:
        raise UserError(f"{', '.join(there)} exists; take another name, or --replace to write it anew")
    # The module file is imported by its name, and must not hide another module.
    spec = importlib.util.find_spec(name)
    if name in sys.stdlib_module_names or (spec and spec.origin):  # a folder without code has no origin
        raise UserError(f"{name!r} is the name of a Python package; take another, such as {name}_model")
    return targets


def schema_text(table: Table, keep: Collection[str]) -> str:
    """The schema of the data, in which serving does without the label and no step uses the columns left out."""
    import tensorflow_data_validation as tfdv
    from tensorflow_data_validation.statistics import stats_impl
    from tensorflow_metadata.proto.v0 import schema_pb2

    from pipeline.cli.schema import inferred
    from pipeline.validation.schema_text import to_text

    statistics = []
    for split in SPLITS:
        (batch,) = table.split(split).combine_chunks().to_batches()
        statistics.append(stats_impl.generate_statistics_in_memory(batch, tfdv.StatsOptions()))
    schema = inferred(statistics, table.label.name)
    columns = {column.name: column for column in table.columns}
    for feature in schema.feature:
        column = columns.get(feature.name)
        if column and column.left_out:
            feature.lifecycle_stage = schema_pb2.DISABLED
        if column and (column.left_out or column.role in ("time", "amount")):
            # Tomorrow's dates and prices are others; and nobody reviews the values of a column that is not used.
            domain = feature.WhichOneof("domain_info")
            if domain:
                feature.ClearField(domain)
        if feature.name in keep:
            feature.annotation.tag.append("leak: ignore")
        if feature.name == table.label.name and table.label.classes:
            feature.int_domain.min, feature.int_domain.max = 0, len(table.label.classes) - 1
    named = {feature.domain for feature in schema.feature}
    domains = [domain for domain in schema.string_domain if domain.name in named]
    del schema.string_domain[:]
    schema.string_domain.extend(domains)
    return to_text(schema)
