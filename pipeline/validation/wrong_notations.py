"""Find text that is no time or amount in the notation that the schema names: it counts as missing."""

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline.data import csv_files
from pipeline.settings.notations import DATES, described, is_in, notation_of
from pipeline.validation.findings import SHOWN, Finding
from pipeline.validation.wrong_values import count


def in_another(split: str, tables: Iterable[pa.Table], schema: schema_pb2.Schema) -> list[Finding]:
    """Return a finding for each column with text in another notation than its own.

    Args:
        split: Name of the split.
        tables: Some rows of it, columns of lists; read only if the schema names a notation.
        schema: Of the data.
    """
    notations = {
        feature.name: notation
        for feature in schema.feature
        if feature.type == schema_pb2.BYTES
        and feature.lifecycle_stage != schema_pb2.DISABLED
        and (notation := notation_of(feature))
    }
    if not notations:
        return []
    looked_at = list(tables)
    counts = count(looked_at, {name: functools.partial(_test, notation=of) for name, of in notations.items()})
    total = sum(map(len, looked_at))
    return [
        Finding(
            "notation",
            split,
            name,
            f"{rows:,} of {total:,} rows looked at have text in another notation, which counts as missing",
            described(notations[name]),
            f"write them alike, or change {_places(notations[name])}",
            values,
        )
        for name, (rows, values) in counts.items()
        if rows
    ]


@dataclass
class Unread:
    """Text of a column in another notation, of however many rows.

    Attributes:
        notation: Of the column.
        rows: That have such text.
        texts: The first of them, ``findings.SHOWN`` at most.
    """

    notation: str
    rows: int = 0
    texts: list[str] = field(default_factory=list)

    def add(self, values: np.ndarray) -> None:
        """Look at more rows: text as bytes, [rows] or [rows, values]."""
        distinct = list(dict.fromkeys(values.ravel().tolist()))
        wrong = list(itertools.compress(distinct, are_in_another(distinct, self.notation)))
        if wrong:
            self.rows += int(np.isin(values, wrong).reshape(len(values), -1).any(axis=1).sum())
            shown = dict.fromkeys([*self.texts, *(text.decode(errors="replace") for text in wrong[:SHOWN])])
            self.texts = list(shown)[:SHOWN]

    def __str__(self) -> str:
        """Say what was found, and what the notation is."""
        texts = ", ".join(map(repr, self.texts))
        return f"have text in another notation, which counts as missing: {texts}; {described(self.notation)}"


def are_in_another(texts: Sequence[str | bytes], notation: str) -> list[bool]:
    """Return which texts are in another notation, and do not stand for a missing value."""
    read = [text.decode(errors="replace") if isinstance(text, bytes) else text for text in texts]
    missing = csv_files.is_missing(pa.array(read, pa.string())).to_pylist()
    return [
        not (absent or not text.strip() or is_in(text, notation)) for text, absent in zip(read, missing, strict=True)
    ]


def _places(notation: str) -> str:
    if notation in DATES:
        return "TIMES in the module file and time_domain in the schema"
    return f'AMOUNTS in the module file and "{notation}" in the schema'


def _test(values: pa.Array, notation: str) -> pa.Array:
    coded = values.dictionary_encode()
    return pa.array(are_in_another(coded.dictionary.to_pylist(), notation), pa.bool_()).take(coded.indices)
