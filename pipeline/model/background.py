"""Raw rows of the train split, evenly picked by Transform on its way, that explanations begin from.

The Trainer gets transformed examples only, so they lie in the transform graph's artifact, a file for each file of the
split.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

FOLDER = "background"
# Rows kept of a file: this number at least, if it has them, and fewer than twice as many.
KEPT = 128
# Larger rows hold what nobody explains by columns.
MOST_BYTES = 64 << 10
# Rows that have a length and can be sliced.
Block = TypeVar("Block", bound=Any)
logger = logging.getLogger("pipeline.training")


class Picked:
    """Picks rows of one file, evenly, while they pass by.

    Args:
        records_of: Makes the rows of a part of a block serialized tf.Examples; they are some already if not given.
    """

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
        """Write the rows below a transform graph; the name has the number of the file's rows."""
        tf.io.gfile.makedirs(f"{graph}/{FOLDER}")
        with tf.io.TFRecordWriter(f"{graph}/{FOLDER}/{file:05d}-{self._seen}") as writer:
            for row in self._rows:
                if len(row) <= MOST_BYTES:
                    writer.write(row)


def read(graph: str, most: int) -> list[bytes]:
    """Return up to so many rows, evenly from all files by the number of their rows, as serialized tf.Examples.

    Args:
        graph: Folder of the transform graph; of one that an earlier release has written there are none.
        most: 0 for none.
    """
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
