"""Batches from real TFRecord shards: complete, shuffled by the seed, of known number."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from pipeline.training.input_pipeline import dataset

SPEC = {"x": tf.io.FixedLenFeature([2], tf.float32), "y": tf.io.FixedLenFeature([1], tf.int64)}
ROWS = 1000


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    for shard in range(2):
        options = tf.io.TFRecordOptions(compression_type="GZIP")
        with tf.io.TFRecordWriter(str(folder / f"part-{shard}.gz"), options) as writer:
            for row in range(shard * ROWS // 2, (shard + 1) * ROWS // 2):
                x = tf.train.Feature(float_list=tf.train.FloatList(value=[row, -row]))
                y = tf.train.Feature(int64_list=tf.train.Int64List(value=[row % 2]))
                writer.write(tf.train.Example(features=tf.train.Features(feature={"x": x, "y": y})).SerializeToString())
    return folder


def rows(batches: tf.data.Dataset) -> list[int]:
    return [int(value) for features, _ in batches for value in features["x"][:, 0]]


def test_every_example_comes_once_an_epoch_with_its_label(shards):
    batches = dataset([f"{shards}/*"], SPEC, "y", 300, shuffle_seed=1)
    assert batches.cardinality() == 4
    assert [features["x"].shape for features, _ in batches] == [(300, 2), (300, 2), (300, 2), (100, 2)]
    for _ in range(2):
        assert sorted(rows(batches)) == list(range(ROWS))
    for features, label in batches:
        assert set(features) == {"x"}
        tf.debugging.assert_equal(label, tf.cast(features["x"][:, :1], tf.int64) % 2)


def test_epochs_are_shuffled_anew_and_the_seed_decides_how(shards):
    first, again = (dataset([f"{shards}/*"], SPEC, "y", 300, shuffle_seed=1) for _ in range(2))
    other = dataset([f"{shards}/*"], SPEC, "y", 300, shuffle_seed=2)
    one, two = rows(first), rows(first)
    assert one != sorted(one)
    assert one != two
    assert rows(again) == one
    assert rows(other) != one


def test_without_a_seed_the_order_is_that_of_the_files(shards):
    batches = dataset([f"{shards}/*"], SPEC, "y", 300)
    assert sorted(rows(batches)) == list(range(ROWS))


def test_no_files_and_no_examples_are_refused(shards, tmp_path):
    with pytest.raises(ValueError, match="no examples: nothing matches .*/nothing"):
        dataset([f"{shards}/nothing*"], SPEC, "y", 300)
    tf.io.TFRecordWriter(str(tmp_path / "empty.gz"), tf.io.TFRecordOptions(compression_type="GZIP")).close()
    with pytest.raises(ValueError, match="no examples in .*/empty.gz"):
        dataset([f"{tmp_path}/empty.gz"], SPEC, "y", 300)
