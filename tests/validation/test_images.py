"""Images as data: no pixels in the statistics, equal images are found wherever they lie."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import tensorflow as tf
from PIL import Image
from tensorflow_transform.tf_metadata import schema_utils

from pipeline.data.examples import as_lists
from pipeline.data.serialize import serialize
from pipeline.data.table import Rows
from pipeline.settings.gates import DataChecks
from pipeline.validation import rows
from pipeline.validation.schema_text import inferred_from
from pipeline.validation.serving_skew import statistics_of
from pipeline.validation.statistics import SERVING, Remedies, image_column, validate

CLASSES = 3


def png(grey: int, size: int = 8) -> bytes:
    out = io.BytesIO()
    Image.new("L", (size, size), grey).save(out, "PNG")
    return out.getvalue()


def table(greys: Sequence[int], folder: str = "scans") -> pa.Table:
    """Return the columns of examples, as ExampleGen writes them; the class says how wide an image is."""
    labels = [grey % CLASSES for grey in greys]
    columns = {
        "image": [png(grey, 8 + label) for grey, label in zip(greys, labels, strict=True)],
        "image_path": [f"{folder}/{label}/{grey}.png" for grey, label in zip(greys, labels, strict=True)],
        "image_folder": [f"{folder}/{label}" for label in labels],
        "image_format": ["PNG"] * len(greys),
        "image_width": [8 + label for label in labels],
        "image_height": [8] * len(greys),
        "image_brightness": [float(grey) for grey in greys],
        "label": labels,
    }
    return as_lists(Rows(pa.table(columns), np.arange(len(greys))), folder)


def written(folder: Path, split: str, greys: Sequence[int]) -> list[str]:
    path = str(folder / f"{split}.gz")
    with tf.io.TFRecordWriter(path, "GZIP") as writer:
        for record in serialize(table(greys, split)):
            writer.write(record)
    return [path]


def test_statistics_count_images_and_hold_none_of_them():
    statistics = statistics_of(table(range(200)), "image")
    (column,) = (column for column in statistics.datasets[0].features if column.path.step[0] == "image")
    assert column.bytes_stats.common_stats.num_non_missing == 200
    assert column.bytes_stats.max_num_bytes_int == max(len(png(grey, 10)) for grey in range(200))
    assert b"IHDR" not in statistics.SerializeToString()


def test_an_inferred_schema_marks_the_images_and_serving_has_nothing_else():
    statistics = statistics_of(table(range(60)), "image")
    schema = inferred_from([statistics, statistics_of(table(range(60, 90), "more"), "image")], "label")
    assert image_column(schema) == "image"
    served = [feature.name for feature in schema.feature if SERVING not in feature.not_in_environment]
    assert served == ["image"]
    assert schema_utils.schema_as_feature_spec(schema).feature_spec["image"] == tf.io.FixedLenFeature([1], tf.string)
    assert [domain.name for domain in schema.string_domain] == ["image_format"]  # paths differ the next time
    _, found = validate({"train": statistics}, schema, "label", DataChecks(), Remedies(None, ""), {}, CLASSES)
    assert found == []


def test_the_same_image_in_two_splits_is_found_whatever_its_path_and_label(tmp_path):
    files = {"train": written(tmp_path, "train", range(90)), "test": written(tmp_path, "test", [*range(100, 110), 7])}
    (found,) = rows.repeated_rows(files, {"train": 90, "test": 11}, DataChecks(), "image")
    assert (found.kind, found.split) == ("shared_rows", "test")
    assert "9.1 % of 11 are in train too: test/1/7.png is train/1/7.png of train (2 rows)" in str(found)


def test_an_image_that_is_there_twice_is_named_with_both_paths(tmp_path):
    files = {"train": written(tmp_path, "train", [*range(9), 4])}
    (found,) = rows.repeated_rows(files, {"train": 10}, DataChecks(), "image")
    assert (found.kind, found.values) == ("repeated_rows", (("train/1/4.png is train/1/4.png", 2),))


def test_a_size_that_tells_the_class_is_a_leak_and_a_folder_is_none(tmp_path):
    sample = rows.sampled(written(tmp_path, "train", range(200)), "image")
    assert not {"image", "image_path", "image_folder"} & set(sample.column_names)
    (found,) = rows.leaks(sample, "label", DataChecks(), CLASSES, "image")
    assert found.feature == "image_width"
    assert "take the images of all classes in the same way" in found.remedy
