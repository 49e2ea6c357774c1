"""Rows of the train split from which explanations begin; Transform samples them into the transform graph's folder."""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

FOLDER = "background"
# Rows kept of a file: this number at least, if it has them, and fewer than twice as many.
KEPT = 128
# Larger rows are not explained by columns.
MOST_BYTES = 64 << 10
# Rows that have a length and can be sliced.
Block = TypeVar("Block", bound=Any)
logger = logging.getLogger("pipeline.training")


class Picked:
    """Sample rows of one file evenly as they pass; ``records_of`` serializes rows of a block as tf.Examples."""

    def __init__(self, records_of: Callable[[Any], Iterable[bytes]] = list) -> None:
        self._records_of = records_of
        self._rows: list[bytes] = []
        self._every, self._seen = 1, 0

    def passing(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the blocks as they come, each a sequence of rows."""
        for block in blocks:
            self._rows += self._records_of(block[-self._seen % self._every :: self._every])
            self._seen += len(block)
            while len(self._rows) >= 2 * KEPT:
                self._rows, self._every = self._rows[::2], 2 * self._every
            yield block

    def write(self, graph: str, file: int) -> None:
        """Write the rows below a transform graph; the name contains the number of the file's rows."""
        tf.io.gfile.makedirs(f"{graph}/{FOLDER}")
        with tf.io.TFRecordWriter(f"{graph}/{FOLDER}/{file:05d}-{self._seen}") as writer:
            for row in self._rows:
                if len(row) <= MOST_BYTES:
                    writer.write(row)


def read(graph: str, most: int) -> list[bytes]:
    """Return up to ``most`` rows, evenly from all files, as serialized tf.Examples; an older graph has none."""
    rows: list[bytes] = []
    shares: list[float] = []  # of all rows, that each stands for
    for path in sorted(tf.io.gfile.glob(f"{graph}/{FOLDER}/*")) if most else ():
        of_file = list(tf.data.TFRecordDataset(path).as_numpy_iterator())
        rows += of_file
        shares += [int(path.rpartition("-")[2]) / max(1, len(of_file))] * len(of_file)
    if len(rows) <= most:
        if len(rows) < most:
            logger.info(
                "Explanations begin from %d rows, not training.explain_rows=%d: no more are kept.", len(rows), most
            )
        return rows
    ends = np.cumsum(shares)
    places = np.searchsorted(ends, (np.arange(most) + 0.5) / most * ends[-1])
    return [rows[place] for place in np.unique(places)]
