"""Find and count values that the schema does not allow, or that are not in its notation.

Statistics say only that there are values outside a domain or a range, and nothing about notations. Text in another
notation than its column's counts as missing.
"""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline.data import csv_files
from pipeline.settings.notations import DATES, described, is_in, notation_of
from pipeline.validation.findings import SHOWN, Finding
from pipeline.validation.statistics import ROWS, listed_values, range_of

# Kinds of findings about values.
KINDS = ("domain", "range", "label")
# Values [n] → whether each is wrong, booleans [n].
Test = Callable[[pa.Array], pa.Array]


def with_values(
    findings: Sequence[Finding], tables: Iterable[pa.Table], schema: schema_pb2.Schema, classes: int = 2
) -> list[Finding]:
    """Return the findings of a split; those about values say how many rows have them, and which are most frequent.

    Args:
        findings: Of ``statistics.validate``.
        tables: The rows of the split, as columns of lists; read only if a finding is about values.
        schema: That the values do not fit.
        classes: How many classes the label has; 0 where it is a number.
    """
    tests = {finding.feature: test for finding in findings if (test := _test_of(finding, schema, classes))}
    wrong = count(tables, tests) if tests else {}
    counted = []
    for finding in findings:
        if finding.kind in KINDS:
            rows, values = wrong[finding.feature]
            finding = dataclasses.replace(
                finding, found=finding.found.replace(ROWS, f"{rows:,} rows"), values=tuple(values)
            )
        counted.append(finding)
    return counted


def count(tables: Iterable[pa.Table], tests: Mapping[str, Test]) -> dict[str, tuple[int, tuple[tuple[str, int], ...]]]:
    """Count, column by column, the rows with a wrong value, and the most frequent such values.

    Args:
        tables: Of lists.
        tests: By column.
    """
    counts: dict[str, Counter[str]] = {name: Counter() for name in tests}
    for table in tables:
        for name, is_wrong in tests.items():
            # A column without any value in these rows has no type either.
            if name in table.column_names and not pa.types.is_null(table.column(name).type):
                values = pc.list_flatten(table.column(name)).combine_chunks()
                for item in pc.value_counts(values.filter(is_wrong(values))).tolist():
                    counts[name][_text(item["values"])] += item["counts"]
    return {name: (counter.total(), tuple(counter.most_common(SHOWN))) for name, counter in counts.items()}


def _test_of(finding: Finding, schema: schema_pb2.Schema, classes: int) -> Test | None:
    """Return what tells a finding's wrong values from right ones; None where it is not about values."""
    if finding.kind not in KINDS:
        return None
    if finding.kind == "label":
        return lambda values: (
            pc.invert(pc.is_in(values.cast(pa.float64()), pa.array(range(classes), pa.float64())))
            if pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
            else pa.array(np.ones(len(values), bool))
        )
    feature = next(feature for feature in schema.feature if feature.name == finding.feature)
    if finding.kind == "domain":
        allowed = pa.array(listed_values(feature, schema), pa.string())
        return lambda values: pc.invert(pc.is_in(values.cast(pa.string()), allowed))
    low, high = range_of(feature)
    return lambda values: pc.or_(pc.less(values, low), pc.greater(values, high))


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return f"{value:g}" if isinstance(value, float) else str(value)


def in_another_notation(split: str, tables: Iterable[pa.Table], schema: schema_pb2.Schema) -> list[Finding]:
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
    places = {
        name: "TIMES in the module file and time_domain in the schema"
        if notation in DATES
        else f'AMOUNTS in the module file and "{notation}" in the schema'
        for name, notation in notations.items()
    }
    return [
        Finding(
            "notation",
            split,
            name,
            f"{rows:,} of {total:,} rows looked at have text in another notation, which counts as missing",
            described(notations[name]),
            f"write them alike, or change {places[name]}",
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


def _test(values: pa.Array, notation: str) -> pa.Array:
    coded = values.dictionary_encode()
    return pa.array(are_in_another(coded.dictionary.to_pylist(), notation), pa.bool_()).take(coded.indices)
