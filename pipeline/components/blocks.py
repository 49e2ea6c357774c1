"""Read examples in blocks whose sizes depend on the data alone, on any Beam runner.

TFX passes single records between steps in Python, and makes batches whose sizes depend on the clock.
"""

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pyarrow as pa
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx import types
from tfx.types import artifact_utils
from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder
from tfx_bsl.tfxio import record_based_tfxio

from pipeline.data import files
from pipeline.data.tfrecord_files import read_records

# Most examples that a step handles at once.
BLOCK = 4_096


@beam.ptransform_fn
def ReadBlocks(
    pipeline: beam.Pipeline, paths: list[str], schema: schema_pb2.Schema | None = None, raw: str | None = None
) -> beam.PCollection:
    """Read serialized tf.Examples in gzipped TFRecords as Arrow record batches of at most ``BLOCK`` rows.

    Args:
        pipeline: Left of the "|".
        paths: Files; each is read by one worker, and its rows stay in their order.
        schema: Features to decode, and their types; None decodes all, with the types they have.
        raw: Name of one more column, with the serialized examples.
    """
    decoded = beam.FlatMap(_decode, schema and schema.SerializeToString(), raw).with_output_types(pa.RecordBatch)
    return pipeline | "Files" >> Spread(paths) | "Decode" >> decoded


@beam.ptransform_fn
def Spread(pipeline: beam.Pipeline, elements: list[Any]) -> beam.PCollection:
    """Distribute elements over the workers in a fixed order; Reshuffle draws its keys at random."""
    return pipeline | beam.Create(list(enumerate(elements))) | beam.GroupByKey() | beam.FlatMap(lambda pair: pair[1])


def files_of(examples: types.Artifact, split: str) -> list[str]:
    """Return the paths of the files of a split."""
    folder = artifact_utils.get_split_uri([examples], split)
    return list(files.find(folder, {split: "*"}).by_split[split])


def _decode(file: str, schema: bytes | None, raw: str | None) -> Iterator[pa.RecordBatch]:
    decoder = ExamplesToRecordBatchDecoder(schema)
    for records in read_records(file, BLOCK):
        batch = decoder.DecodeBatch(records)
        yield record_based_tfxio.AppendRawRecordColumn(batch, raw, records) if raw else batch
