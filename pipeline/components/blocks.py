"""Read examples in blocks whose sizes depend on the data alone, on any Beam runner.

TFX passes single records between steps in Python, and makes batches whose sizes depend on the clock.
"""

from __future__ import annotations

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


class ReadBlocks(beam.PTransform):
    """Serialized tf.Examples in gzipped TFRecords → Arrow record batches of at most ``BLOCK`` rows.

    Args:
        paths: Files; each is read by one worker.
        schema: Features to decode, and their types; None decodes all, with the types they have.
        raw: Name of one more column, with the serialized examples.
    """

    def __init__(self, paths: list[str], schema: schema_pb2.Schema | None = None, raw: str | None = None):
        super().__init__()
        self._paths = paths
        self._schema = schema.SerializeToString() if schema else None
        self._raw = raw

    def expand(self, pipeline: beam.Pipeline) -> beam.PCollection:
        """Return the batches; the rows of a file stay in their order."""
        decoded = beam.FlatMap(_decode, self._schema, self._raw).with_output_types(pa.RecordBatch)
        return pipeline | "Files" >> Spread(self._paths) | "Decode" >> decoded


class Spread(beam.PTransform):
    """Distribute elements over the workers in a fixed order; Reshuffle draws its keys at random."""

    def __init__(self, elements: list[Any]):
        super().__init__()
        self._elements = list(enumerate(elements))

    def expand(self, pipeline: beam.Pipeline) -> beam.PCollection:
        """Return the elements."""
        return pipeline | beam.Create(self._elements) | beam.GroupByKey() | beam.FlatMap(lambda pair: pair[1])


def files_of(examples: types.Artifact, split: str) -> list[str]:
    """Return the paths of the files of a split."""
    folder = artifact_utils.get_split_uri([examples], split)
    return list(files.find(folder, {split: "*"}).by_split[split])


def _decode(file: str, schema: bytes | None, raw: str | None) -> Iterator[pa.RecordBatch]:
    decoder = ExamplesToRecordBatchDecoder(schema)
    for records in read_records(file, BLOCK):
        batch = decoder.DecodeBatch(records)
        yield record_based_tfxio.AppendRawRecordColumn(batch, raw, records) if raw else batch
