"""Blocks that the Evaluator reads have the serialized examples as one more column."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.data.blocks import write_blocks
from pipeline.data.examples import serialize
from pipeline.data.shard_files import write_records
from pipeline.fast.blocks import _decode


@pytest.mark.parametrize("stored", [True, False])
def test_large_records_stand_next_to_their_rows(tmp_path: Path, monkeypatch, stored):
    """They are read in smaller lists than blocks have rows."""
    monkeypatch.setattr("pipeline.data.table.BYTES_AT_ONCE", 1000)
    rows = [[b"%03d" % number + b"x" * 300] for number in range(20)]
    table = pa.table({"text": pa.array(rows, pa.list_(pa.large_binary()))})
    file = str(tmp_path / "Split-test/rows.gz")
    write_records(serialize(table), file, str(tmp_path))
    if stored:
        write_blocks(file, table, np.arange(len(rows)))
    found = pa.Table.from_batches(_decode(file, None, "raw"))
    assert found["text"].to_pylist() == rows
    assert found["raw"].to_pylist() == [[record] for record in serialize(table)]
