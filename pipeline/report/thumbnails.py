"""Thumbnails of a run's images: some of every class, and those that the model is most wrong about."""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image, ImageOps

from pipeline.components.base import files_of
from pipeline.data import tfrecord_files
from pipeline.data.table import Unit, single_values
from pipeline.report import charts
from pipeline.report.blocks import Block, Text, Thumbnail, Thumbnails
from pipeline.report.finished_run import FinishedRun
from pipeline.settings.image_data import FORMATS, facts

# Pixels of the longer side, and images of a class, fewer of many classes: a page is to stay below some megabytes.
SIDE, OF_CLASS, IN_ALL, MOST_CLASSES = 64, 8, 160, 40
# Rows that are looked through, in which a rare class may be missing, and rows of one read.
MOST_ROWS, BLOCK = 5_000, 256


def contact_sheet(run: FinishedRun) -> list[Block]:
    """Return some images of every class of the train split."""
    examples, settings = run.artifact("ExampleGen", "examples"), run.config.data.images
    if examples is None or settings is None:
        return [Text("The run has not come as far as reading the images.")]
    label, classes = run.config.label.name, run.config.label.classes
    shown = classes[:MOST_CLASSES] or ("",)
    of_class = max(2, min(OF_CLASS, IN_ALL // len(shown)))
    by_class: dict[int, list[Thumbnail]] = {number: [] for number in range(len(shown))}
    for image, path, number in _images(files_of(examples, "train"), settings.column, label):
        sheet = by_class.get(int(number) if classes else 0)
        if sheet is not None and len(sheet) < of_class and (data := thumbnail(image)):
            sheet.append(Thumbnail(data, charts.shown(path, 80)))
        if all(len(sheet) == of_class for sheet in by_class.values()):
            break
    rows = [(charts.shown(name, 30), by_class[number]) for number, name in enumerate(shown)]
    blocks: list[Block] = [Thumbnails(rows, "Images of the train split")]
    empty = [name for name, thumbnails in rows if not thumbnails]
    if empty and classes:
        blocks.append(Text(f"None of {', '.join(empty)} among the first {MOST_ROWS:,} images.", "quiet"))
    if len(classes) > len(shown):
        blocks.append(Text(f"The first {len(shown)} of {len(classes):,} classes.", "quiet"))
    return blocks


def most_wrong(examples: Sequence[Mapping[str, Any]], labels: Sequence[str], answers: Sequence[str]) -> list[Block]:
    """Return the images with the largest errors by their label."""
    rows: dict[str, list[Thumbnail]] = {}
    for example, label, answer in zip(examples, labels, answers, strict=True):
        if example.get("image"):
            path = charts.shown(example.get("path", ""), 80)
            rows.setdefault(label, []).append(Thumbnail(example["image"], path, answer))
    return [Thumbnails(list(rows.items()), "By label, with what the model answers")] if rows else []


def thumbnail(encoded: bytes) -> str:
    """Return an image, as people see it, as a small PNG in base64; "" where it cannot be read."""
    try:
        file = Image.open(io.BytesIO(encoded), formats=FORMATS)
        file.draft("RGB", (SIDE, SIDE))  # decodes a JPEG file at a part of its size
        image: Image.Image = ImageOps.exif_transpose(file)
        if image.mode.startswith("I"):  # 16 bits, which Pillow would cut off at 255
            image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
        image = image.convert("RGB")
        image.thumbnail((SIDE, SIDE))
        out = io.BytesIO()
        image.save(out, "PNG")
    except Exception:  # an image that TensorFlow reads and Pillow does not costs its thumbnail only
        return ""
    return base64.b64encode(out.getvalue()).decode()


def _images(files: Sequence[str], image: str, label: str) -> Any:
    """Yield the image, path and label of the first rows, of all files in turn."""
    path = facts(image)[0]
    each = max(1, -(-MOST_ROWS // len(files)))
    for file in files:
        left = each
        for rows in tfrecord_files.read(Unit(file, "tfrecord"), [image, path, label], min(BLOCK, each)):
            columns = [_values(rows.table, name) for name in (image, path, label)]
            for data, at, number in zip(*columns, strict=True):
                if data is not None and number is not None:
                    yield data, (at or b"").decode(errors="replace"), number
            left -= len(rows.numbers)
            if left <= 0:
                break


def _values(table: pa.Table, name: str) -> list[Any]:
    return single_values(table.column(name)).to_pylist() if name in table.column_names else [None] * len(table)
