"""The inferred schema keeps columns that have no value in one of the splits."""

from pathlib import Path

import pytest
import tensorflow as tf
import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import schema_pb2
from tensorflow_transform.tf_metadata import schema_utils
from tfx.types import standard_artifacts

from pipeline.components import schema_gen
from pipeline.fast.statistics_gen import FastStatisticsGenExecutor
from pipeline.quality.schema_text import proposed
from pipeline.settings.config import SPLITS, Data
from tests.components.example_gen import run

VALUES = {"number": 7, "decimal": 1.5, "text": "word"}


def described(folder: Path, empty_in: str, gap_in: str = "") -> tuple[schema_pb2.Schema, Path]:
    """Run ExampleGen, StatisticsGen and SchemaGen on small splits: one has no values, or one lacks them in one row."""
    for split in SPLITS:
        rows = ["row,number,decimal,text,always"]
        for row in range(30):
            cells = [
                "" if split == empty_in or (row == 3 and gap_in in (split, "")) else str(value)
                for value in VALUES.values()
            ]
            rows.append(",".join([f"{split}{row}", *cells, str(row)]))
        (folder / f"{split}.csv").write_text("\n".join(rows) + "\n")
    examples = run(Data(str(folder), splits={split: f"{split}.csv" for split in SPLITS}), folder / "examples")
    statistics = standard_artifacts.ExampleStatistics()
    statistics.uri = str(folder / "statistics")
    options = {"stats_options_json": tfdv.StatsOptions().to_json()}
    FastStatisticsGenExecutor().Do({"examples": [examples]}, {"statistics": [statistics]}, options)
    schema = standard_artifacts.Schema()
    schema.uri = str(folder / "schema")
    schema_gen.SchemaGenExecutor().Do({"statistics": [statistics]}, {"schema": [schema]}, {})
    return tfdv.load_schema_text(str(folder / "schema/schema.pbtxt")), folder / "statistics"


@pytest.mark.slow
@pytest.mark.parametrize("empty_in", SPLITS)
def test_a_column_without_a_value_in_one_split_is_there_and_may_be_missing(tmp_path, empty_in):
    schema, statistics = described(tmp_path, empty_in)

    spec = schema_utils.schema_as_feature_spec(schema).feature_spec
    assert {name: spec[name] for name in VALUES} == {
        "number": tf.io.VarLenFeature(tf.int64),
        "decimal": tf.io.VarLenFeature(tf.float32),
        "text": tf.io.VarLenFeature(tf.string),
    }
    assert spec["always"] == tf.io.FixedLenFeature([1], tf.int64)
    for split in SPLITS:
        found = tfdv.load_stats_binary(str(statistics / f"Split-{split}/FeatureStats.pb"))
        assert not tfdv.validate_statistics(found, schema).anomaly_info


@pytest.mark.slow
@pytest.mark.parametrize("gap_in", SPLITS)
def test_a_column_that_lacks_a_value_in_one_split_only_is_no_list(tmp_path, gap_in):
    schema, _ = described(tmp_path, "", gap_in)
    for feature in schema.feature:
        if feature.name in VALUES:
            assert (feature.value_count.min, feature.value_count.max) == (1, 1)


def test_accepting_such_data_keeps_what_a_person_has_set(tmp_path):
    schema, statistics = described(tmp_path, "eval")
    for feature in schema.feature:
        if feature.name == "number":
            feature.presence.min_count = 1
            feature.skew_comparator.jensen_shannon_divergence.threshold = 0.25
    found = [tfdv.load_stats_binary(str(statistics / f"Split-{split}/FeatureStats.pb")) for split in SPLITS]
    after = {feature.name: feature for feature in proposed(schema, found).feature}["number"]
    assert after.lifecycle_stage != schema_pb2.DEPRECATED
    assert after.skew_comparator.jensen_shannon_divergence.threshold == 0.25
    assert after.presence.min_count == 0
