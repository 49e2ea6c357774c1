"""Make a pipeline of your own from your data: python -m pipeline new NAME --data my.csv --label churned.

Writes configs/NAME.py, models/NAME.py and schema/NAME/schema.pbtxt, for you to edit; then
python local_runner.py --pipeline NAME trains and pushes a model.
"""

import argparse
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any, get_args

from pipeline import filesystem
from pipeline.cli.command_line import make_parser
from pipeline.cli.terminal import silence_stderr
from pipeline.errors import UserError
from pipeline.settings.config import Data
from pipeline.settings.names import printable
from pipeline.settings.repository import find_root, runner, shown
from pipeline.settings.tasks import Task


def main(argv: list[str]) -> int:
    """Run the command; return the exit code."""
    arguments = parse_arguments(argv)
    targets = targets_of(arguments.name, arguments.replace)
    data = Path(arguments.data).absolute()
    if not data.exists():
        raise UserError(f"no data at {arguments.data}; give a .csv or .parquet file, or a folder of them")
    with silence_stderr():
        # TensorFlow prints warnings and takes seconds to import, so not before the arguments are checked.
        from pipeline.scaffold import files
        from pipeline.scaffold.table import check_leaks, look
    table = look(Data(str(data)), arguments.label, arguments.task, arguments.leave_out)
    check_leaks(table, arguments.keep)
    root = find_root()
    inside = data.is_relative_to(root)
    path = data.relative_to(root).as_posix() if inside else str(data)
    texts = (
        files.config_text(arguments.name, path, table),
        files.module_text(arguments.name, table),
        files.schema_text(table, arguments.keep),
    )
    for target, text in zip(targets, texts, strict=True):
        filesystem.write(target, text)
    size = f"{table.rows.num_rows:,} rows, {table.rows.num_columns} columns"
    print(f"{arguments.name}: {size}{'' if table.whole else ' read (the run reads all)'}")
    for kind, line in files.summary(table):
        print(printable(f"  {kind:<9} {line}"))
    print("wrote", ", ".join(map(shown, targets)))
    print(f"next: {runner()} --pipeline {arguments.name}")
    return 0


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser(
        "python -m pipeline new",
        "Make a pipeline from your data: write a config, a module file and a schema, for you to edit.",
        {0: "written"},
        "Then: python local_runner.py --pipeline NAME.",
    )
    parser.add_argument("name", metavar="NAME", help="name of the pipeline: lower-case letters, digits and _")
    parser.add_argument("--data", required=True, help="CSV file with a header, Parquet file, or folder of either")
    parser.add_argument("--label", required=True, help="column to predict: classes (text or numbers) or a quantity")
    parser.add_argument("--task", choices=get_args(Task), help="kind of prediction (default: inferred from the label)")
    several: dict[str, Any] = {"action": "append", "default": [], "metavar": "COLUMN"}
    parser.add_argument("--leave-out", **several, help="column the model must not use; may be repeated")
    parser.add_argument("--keep", **several, help="column to use though it alone predicts the label; may be repeated")
    parser.add_argument("--replace", action="store_true", help="overwrite existing files")
    return parser.parse_args(argv)


def targets_of(name: str, replace: bool) -> tuple[Path, Path, Path]:
    """Return the paths of config, module file and schema.

    Raises:
        UserError: the name cannot be one, or is taken.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,48}", name):
        raise UserError(
            f"{name!r} cannot be a pipeline's name; expected at most 49 lower-case letters, digits and underscores, a "
            "letter first"
        )
    root = find_root()
    targets = (root / f"configs/{name}.py", root / f"models/{name}.py", root / f"schema/{name}/schema.pbtxt")
    existing = [shown(target) for target in targets if target.exists()]
    if existing and not replace:
        verb, them = ("exists", "it") if len(existing) == 1 else ("exist", "them")
        raise UserError(f"{', '.join(existing)} {verb}; take another name, or --replace to overwrite {them}")
    # The module file is imported by its name, and must not hide another module.
    spec = importlib.util.find_spec(name)
    if name in sys.stdlib_module_names or (spec and spec.origin):  # a folder without code has no origin
        raise UserError(f"{name!r} is the name of a Python package; take another, such as {name}_model")
    return targets
