"""Make a pipeline of your own from your data: python -m pipeline new NAME --data my.csv --label churned.

Or of images: python -m pipeline new NAME --images FOLDER, with a folder of images for each class.

Writes configs/NAME.py, models/NAME.py and schema/NAME/schema.pbtxt, for you to edit; then
python local_runner.py --pipeline NAME trains and pushes a model.
"""

import argparse
import importlib.util
import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias, get_args

from pipeline import filesystem
from pipeline.cli.command_line import make_parser
from pipeline.cli.printing import say
from pipeline.cli.terminal import silence_stderr
from pipeline.errors import UserError
from pipeline.settings.config import Data
from pipeline.settings.image_data import Images
from pipeline.settings.repository import find_root, runner, shown
from pipeline.settings.tasks import Task

# Networks that ``training.backbone`` knows, by the size of data and machine: the smallest first.
BACKBONES = ("MobileNetV3Small", "EfficientNetV2B0", "DenseNet121", "ResNet50")
# Size of the data, lines of kind and columns, and the texts of config, module file and schema.
Made: TypeAlias = tuple[str, Iterable[tuple[str, str]], tuple[str, str, str]]


def main(argv: list[str]) -> int:
    """Run the command; return the exit code."""
    arguments = parse_arguments(argv)
    targets = targets_of(arguments.name, arguments.replace)
    check_options(arguments)
    data = Path(arguments.images or arguments.data).absolute()
    if not data.exists():
        expected = (
            "a folder of images, or a table of their paths"
            if arguments.images
            else ("a .csv or .parquet file, or a folder of them")
        )
        raise UserError(f"no data at {arguments.images or arguments.data}; give {expected}")
    root = find_root()
    path = data.relative_to(root).as_posix() if data.is_relative_to(root) else str(data)
    size, lines, texts = (from_images if arguments.images else from_table)(arguments, data, path)
    for target, text in zip(targets, texts, strict=True):
        filesystem.write(target, text)
    say(f"{arguments.name}: {size}")
    for kind, line in lines:
        say(f"  {kind:<9} {line}")
    say(f"wrote {', '.join(map(shown, targets))}")
    say(f"next: {runner()} --pipeline {arguments.name}")
    return 0


def from_table(arguments: argparse.Namespace, data: Path, path: str) -> Made:
    """Look at a table; return what was found, and the texts of config, module file and schema."""
    with silence_stderr():
        # TensorFlow prints warnings and takes seconds to import, so not before the arguments are checked.
        from pipeline.data.location import notes
        from pipeline.scaffold import files
        from pipeline.scaffold.table import check_leaks, look
    leave_out = tuple(dict.fromkeys(arguments.leave_out))
    source = Data(str(data), leave_out=leave_out)
    table = look(source, arguments.label, arguments.task, arguments.weight)
    table, warnings = files.with_groups(table, arguments.keep, f"configs/{arguments.name}.py")
    check_leaks(table, arguments.keep)
    size = f"{table.rows.num_rows:,} rows, {table.rows.num_columns} columns"
    texts = (
        files.config_text(arguments.name, path, table),
        files.module_text(arguments.name, table),
        files.schema_text(table, arguments.keep),
    )
    lines = [*files.summary(table), *warnings, *(("note", note) for note in notes(source))]
    return f"{size}{'' if table.whole else ' read (the run reads all)'}", lines, texts


def from_images(arguments: argparse.Namespace, data: Path, path: str) -> Made:
    """Do the same for images."""
    with silence_stderr():
        from pipeline.data.location import notes
        from pipeline.scaffold import image_files
        from pipeline.scaffold.image_inspection import look

        pictures = look(data, arguments.label, arguments.task)  # TensorFlow decodes, and prints what it looks for
    texts = (
        image_files.config_text(arguments.name, path, pictures, arguments.backbone),
        image_files.module_text(arguments.name, pictures, arguments.backbone),
        image_files.schema_text(pictures),
    )
    lines = [*image_files.summary(pictures), *(("note", note) for note in notes(Data(str(data), images=Images())))]
    return f"{len(pictures.values):,} images", lines, texts


def check_options(arguments: argparse.Namespace) -> None:
    """Refuse options of tables with images, and the other way round."""
    if bool(arguments.data) == bool(arguments.images):
        raise UserError("give either --data, of a table, or --images, of a folder of images or a table of their paths")
    if arguments.data and not arguments.label:
        raise UserError("give the column to predict with --label COLUMN")
    if arguments.data and arguments.backbone:
        raise UserError("--backbone is for --images")
    if arguments.images and (arguments.leave_out or arguments.keep or arguments.weight):
        raise UserError("--leave-out, --keep and --weight are for --data: a model of images takes the image alone")


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser(
        "python -m pipeline new",
        "Make a pipeline from your data: write a config, a module file and a schema, for you to edit.",
        {0: "written"},
        "Then: python local_runner.py --pipeline NAME.",
    )
    parser.add_argument("name", metavar="NAME", help="name of the pipeline: lower-case letters, digits and _")
    parser.add_argument("--data", help="CSV file with a header, Parquet file, or folder of either")
    parser.add_argument(
        "--images", help="instead: folder with a folder of images for each class, or CSV or Parquet file of their paths"
    )
    parser.add_argument(
        "--label",
        help="column to predict: classes (text or numbers) or a quantity; of a folder of images, a name for it "
        "(default: label)",
    )
    parser.add_argument("--task", choices=get_args(Task), help="kind of prediction (default: inferred from the label)")
    parser.add_argument("--weight", metavar="COLUMN", help="column of how much each row counts, 0 or more")
    several: dict[str, Any] = {"action": "append", "default": [], "metavar": "COLUMN"}
    parser.add_argument("--leave-out", **several, help="column the model must not use; may be repeated")
    parser.add_argument("--keep", **several, help="column to use though it alone predicts the label; may be repeated")
    parser.add_argument(
        "--backbone", choices=BACKBONES, help="of images: start from this network, trained on other images"
    )
    parser.add_argument("--replace", action="store_true", help="overwrite existing files")
    return parser.parse_args(argv)


def targets_of(name: str, replace: bool) -> tuple[Path, Path, Path]:
    """Return the paths of config, module file and schema."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,48}", name):
        hint = f". Give a name and this file: new NAME --data {shlex.quote(name)}" if Path(name).exists() else ""
        raise UserError(
            f"{name!r} cannot be a pipeline's name; expected at most 49 lower-case letters, digits and underscores, a "
            f"letter first{hint}"
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
