"""Read examples in blocks whose sizes depend on the data alone, on any Beam runner.

TFX passes single records between steps in Python, and makes batches whose sizes depend on the clock.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pyarrow as pa
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.tfxio import record_based_tfxio

from pipeline.data.blocks import BLOCK, read_blocks
from pipeline.data.tfrecord_files import read_records
from pipeline.fast import beam_options


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
def Spread(begin: beam.pvalue.PBegin, elements: list[Any]) -> beam.PCollection:
    """Distribute elements over the workers in a fixed order; Reshuffle draws its keys at random."""
    if beam_options.in_process(begin.pipeline.options):
        # There are no other workers. Beam would also take a group as the common source of all phases of Transform's
        # analysis, read for all of them in the first one, and keep the decoded rows in memory.
        return begin | beam.Create(elements, reshuffle=False)
    return begin | beam.Create(list(enumerate(elements))) | beam.GroupByKey() | beam.FlatMap(lambda pair: pair[1])


def _decode(file: str, schema: bytes | None, raw: str | None) -> Iterator[pa.RecordBatch]:
    batches = read_blocks(file, schema)
    if not raw:
        yield from batches
        return
    records = itertools.chain.from_iterable(read_records(file, BLOCK))  # large records come in smaller lists
    for batch in batches:
        rows = list(itertools.islice(records, batch.num_rows))
        yield record_based_tfxio.AppendRawRecordColumn(batch, raw, rows)
