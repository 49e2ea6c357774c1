"""Look at images: a folder with one of them for each class, or a table of their paths and labels."""

import io
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from pipeline.data import labels
from pipeline.data.files import format_of
from pipeline.data.image_checks import BadImage, facts_of
from pipeline.errors import UserError
from pipeline.scaffold.columns import Column, describe
from pipeline.scaffold.labels import label_of
from pipeline.scaffold.table import FEWEST_ROWS, SHARES, SMALL, read_columns
from pipeline.settings.config import SPLITS, Data, Label
from pipeline.settings.image_data import ENDINGS, Images
from pipeline.settings.names import shortened
from pipeline.settings.tasks import Task

# Images that are opened; of the others only the names are read.
LOOKED_AT = 300
# Pillow's names of pixels without colour.
GREY_MODES = {"1", "L", "LA", "La", "I", "F", "I;16", "I;16B", "I;16L", "I;16N"}
LABEL = "label"
# Common names of the three folders.
NAMES_OF_SPLITS = {"train": ("train", "training"), "eval": ("eval", "val", "valid", "validation"), "test": ("test",)}


@dataclass(frozen=True)
class Pictures:
    """The inspected images."""

    label: Label
    values: np.ndarray  # the label of each: numbers of classes, int64, or numbers, float64, [images]
    note: str  # on spellings of classes
    column: str  # with the paths, of a table
    others: tuple[Column, ...]  # of a table
    nested: bool  # there are folders that are not classes
    splits: Mapping[str, str]  # file pattern by split, if the folders say it
    shares: Mapping[str, int]  # of the splits, if they do not
    sizes: np.ndarray  # width and height of the opened images, as people see them, [images, 2]
    formats: Mapping[str, int]  # number of opened images by format
    grey: bool  # the opened images have no colours


def look(path: Path, label_name: str | None, task: Task | None) -> Pictures:
    """Find images in a folder of classes, or by a table of paths relative to its folder; open some of them."""
    if path.is_dir():
        files, classes, splits = _by_folder(path)
        kind: Task = "binary" if len(set(map(labels.folded, pc.unique(classes).to_pylist()))) == 2 else "multiclass"
        label, values, note = label_of(label_name or LABEL, pa.chunked_array([classes]), task or kind)
        column = Images().column
        others: tuple[Column, ...] = ()
        nested = len({os.path.dirname(file) for file in files}) > max(1, len(splits)) * len(label.classes)
    else:
        if format_of(path.name) not in ("csv", "parquet"):
            raise UserError(
                f"{path} is neither a folder of images nor a CSV or Parquet file of their paths; give one with --images"
            )
        if not label_name:
            raise UserError(f"{path} is a table; say which of its columns is to be predicted with --label COLUMN")
        read = read_columns(Data(str(path)), label_name)
        if read.repeated:
            raise UserError(f"{read.repeated[0]}; leave this row out")
        columns = read.by_name
        column = _column_of_paths(path, columns, label_name)
        paths = columns[column]
        if paths.null_count:
            row = pc.index(pc.is_null(pa.concat_arrays(paths.chunks)), True).as_py() + 1
            raise UserError(f"{path}, row {row}: no path in {column!r}; every row needs one")
        files = [str(path.parent / name) for name in paths.to_pylist()]
        label, values, note = label_of(label_name, columns[label_name], task, read.place)
        others = tuple(
            describe(name, values, from_text=read.format == "csv", place=read.place)
            for name, values in columns.items()
            if name not in (column, label_name)
        )
        nested, splits = len({os.path.dirname(file) for file in files}) > 1, {}
    if len(files) < FEWEST_ROWS:
        raise UserError(f"{path} has {len(files):,} images; expected at least {FEWEST_ROWS} to train, choose and test")
    shares = SHARES[1 if len(files) < SMALL else 0]
    return Pictures(label, values, note, column, others, nested, splits, shares, *_opened(files))


def _by_folder(folder: Path) -> tuple[list[str], pa.Array, dict[str, str]]:
    """Return the images below a folder, the class of each, and the pattern of each split if it has a folder."""
    splits = _folders_of_splits(folder)
    expected = f"expected {folder}/CLASS/ with the images of each class, or a table of paths and labels"
    files: list[str] = []
    classes: list[str] = []
    for top in [folder / name for name in splits.values()] or [folder]:
        for parent, folders, names in os.walk(top):
            folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
            for name in sorted(name for name in names if not name.startswith((".", "_"))):
                file = os.path.join(parent, name)
                if not name.lower().endswith(ENDINGS):
                    raise UserError(
                        f"{file} is not an image by its name; expected images only, "
                        f"{', '.join(ENDINGS)}: move it elsewhere"
                    )
                if Path(parent) == top:
                    raise UserError(f"{file} is in no folder of a class; {expected}")
                files.append(file)
                classes.append(os.path.relpath(parent, top).split(os.sep)[0])
    if not files:
        raise UserError(f"no images in {folder}; {expected}")
    if len(set(classes)) == 1:
        raise UserError(f"all of {len(files):,} images are in one class, {classes[0]!r}; {expected}, two or more")
    return files, pa.array(classes), {split: f"{name}/**/*" for split, name in splits.items()}


def _folders_of_splits(folder: Path) -> dict[str, str]:
    """Return the folder of each split where all three, and no others, are there; else nothing."""
    names = {entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith((".", "_"))}
    found = {split: next((name for name in NAMES_OF_SPLITS[split] if name in names), "") for split in SPLITS}
    return found if set(found.values()) == names and all(found.values()) else {}


def _column_of_paths(table: Path, columns: Mapping[str, pa.ChunkedArray], label: str) -> str:
    """Return the column whose first values are paths of images, "image" if there are several."""
    missing = ""
    names = sorted((name for name in columns if name != label), key=lambda name: name != Images().column)
    for name in names:
        values = columns[name].slice(0, 20).drop_null().to_pylist()
        if values and all(isinstance(value, str) and value.lower().endswith(ENDINGS) for value in values):
            absent = next((value for value in values if not (table.parent / value).is_file()), None)
            if not absent:
                return name
            missing = f": there is no {table.parent / absent}"
    raise UserError(
        f"{table} has no column of paths of images that start at its folder{missing}; it has {shortened(columns)}"
    )


def _opened(files: Sequence[str]) -> tuple[np.ndarray, dict[str, int], bool]:
    """Open some of the images; return their sizes, the number of each format, and whether all are grey."""
    places = np.unique(np.linspace(0, len(files) - 1, LOOKED_AT).astype(int))
    facts, modes = [], set()
    for file in [files[place] for place in places]:
        try:
            data = Path(file).read_bytes()
            facts.append(facts_of(data, Images()))
            modes.add(Image.open(io.BytesIO(data)).mode)
        except OSError as error:
            raise UserError(f"{file}: {error.strerror or error}; expected an image that can be read") from error
        except BadImage as error:
            raise UserError(f"{file}: {error}. Take it out, or write it anew") from error
    sizes = np.array([(image.width, image.height) for image in facts])
    return sizes, dict(Counter(image.format for image in facts).most_common()), modes <= GREY_MODES
