"""Images as data: no pixels in the statistics, equal images are found wherever they lie."""

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from PIL import Image
from tensorflow_transform.tf_metadata import schema_utils

from pipeline.data.examples import as_lists, serialize
from pipeline.data.table import Rows
from pipeline.quality import rows
from pipeline.quality.findings import with_severity
from pipeline.quality.request_rows import RequestRows
from pipeline.quality.schema_text import inferred_from
from pipeline.quality.serving_skew import report, statistics_of
from pipeline.quality.statistics import Remedies, image_column, validate
from pipeline.settings.config import load_config
from pipeline.settings.gates import DataChecks
from pipeline.settings.names import SERVING

CLASSES = 3
ROOT = Path(__file__).resolve().parents[2]


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


@pytest.mark.slow
def test_a_few_images_in_two_splits_are_a_warning_with_their_number_and_paths(tmp_path):
    files = {
        "train": written(tmp_path, "train", range(60)),
        "eval": written(tmp_path, "eval", range(60, 120)),
        "test": written(tmp_path, "test", [*range(120, 255), *range(120, 255), 7]),
    }
    counts = {"train": 60, "eval": 60, "test": 271}
    checks = DataChecks(max_repeated_rows=1.0)
    found = list(rows.repeated_rows(files, counts, checks, "image"))
    (only,) = with_severity(found, {}, inferred_from([statistics_of(table(range(60)), "image")], "label"))
    assert (only.kind, only.split, only.severity) == ("shared_images", "test", "warn")
    assert "rows of test: 1 of 271 are in train too: test/1/7.png is train/1/7.png of train (2 rows)" in str(only)
    assert "above 1 % the run stops" in str(only)


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


def compared(greys: Sequence[int], format: str, folder: Path) -> tuple[list[str], bool]:
    """Compare logged requests with images of 60 greys."""
    train = statistics_of(table(range(60)), "image")
    schema = inferred_from([train], "label")
    for feature in schema.feature:
        if feature.name == "image_brightness":
            feature.skew_comparator.jensen_shannon_divergence.threshold = 0.2
    facts = [
        {"image_format": format, "image_width": 8, "image_height": 8, "image_brightness": float(grey)} for grey in greys
    ]
    requests = RequestRows(7, facts, "first", "last", 0, 0)
    config = load_config(ROOT / "configs/digits.py")
    config = replace(config, label=replace(config.label, name="label"))
    return report(requests, schema, train, config, Remedies("schema.pbtxt", "there"), str(folder), None)


def test_requests_like_the_training_images_are_within_the_limits(tmp_path):
    lines, crossed = compared(range(60), "PNG", tmp_path)
    assert not crossed, lines


def test_darker_requests_of_another_format_are_found(tmp_path):
    lines, crossed = compared([200] * 60, "JPEG", tmp_path)
    assert crossed
    assert "crossed: image_format, image_brightness" in lines
    assert any("60 rows have a value that the schema does not list: JPEG (60 rows)" in line for line in lines)
    assert any("image_brightness in serving: Jensen-Shannon distance" in line for line in lines)
