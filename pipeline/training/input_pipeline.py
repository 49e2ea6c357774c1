"""Transformed examples → batches, fast enough that the model does not wait."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import tensorflow as tf

# Records are parsed, kept and shuffled in blocks of this many. One parse of a whole batch reads ten times as fast as a
# parse per record; small blocks still mix well.
BLOCK = 128
RECORDS_SHUFFLED = 50_000


def dataset(
    patterns: Sequence[str],
    spec: Mapping[str, tf.io.FixedLenFeature],
    label: str,
    batch_size: int,
    *,
    shuffle_seed: int | None = None,
) -> tf.data.Dataset:
    """Reads the examples of a split, keeping them parsed in memory after the first pass.

    Args:
        patterns: File patterns of gzipped TFRecords, as in ``fn_args.train_files``.
        spec: How to parse a record, as in ``transform_output.transformed_feature_spec()``.
        label: The feature that is returned apart from the others.
        batch_size: Examples in a batch; the last one may be smaller.
        shuffle_seed: Shuffle anew in every epoch, from this seed; None keeps one order.

    Returns:
        Batches of ({name: [batch, values]}, label [batch, 1]), of known cardinality.

    Raises:
        ValueError: there are no files, or no examples in them.
    """
    files = sorted(file for pattern in patterns for file in tf.io.gfile.glob(pattern))
    if not files:
        raise ValueError(f"no examples: nothing matches {', '.join(patterns)}")

    def parse(serialized: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        features = tf.io.parse_example(serialized, spec)
        return features, features.pop(label)

    records = tf.data.TFRecordDataset(files, compression_type="GZIP", num_parallel_reads=len(files))
    examples = int(records.batch(BLOCK).reduce(0, lambda count, block: count + tf.size(block)))
    if not examples:
        raise ValueError(f"no examples in {', '.join(patterns)}")
    if shuffle_seed is not None:
        records = records.shuffle(RECORDS_SHUFFLED, seed=shuffle_seed, reshuffle_each_iteration=False)
    blocks = records.batch(BLOCK).map(parse, num_parallel_calls=tf.data.AUTOTUNE).cache()
    if shuffle_seed is not None:
        blocks = blocks.shuffle(RECORDS_SHUFFLED // BLOCK * 8, seed=shuffle_seed)
    batches = blocks.rebatch(batch_size).prefetch(tf.data.AUTOTUNE)
    return batches.apply(tf.data.experimental.assert_cardinality(math.ceil(examples / batch_size)))
