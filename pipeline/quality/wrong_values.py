"""Find and count values that the schema does not allow, or that are not in its notation and so count as missing."""

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
from pipeline.quality.findings import SHOWN, Finding
from pipeline.quality.statistics import ROWS, range_of
from pipeline.settings.names import shortened
from pipeline.settings.notations import DATES, described, is_in, listed_values, notation_of, plain

# Kinds of findings about values.
KINDS = ("domain", "range", "label", "infinite")
# Values [n] → whether each is wrong, booleans [n].
Test = Callable[[pa.Array], pa.Array]


def with_values(
    findings: Sequence[Finding], tables: Iterable[pa.Table], schema: schema_pb2.Schema, classes: int = 2
) -> list[Finding]:
    """Return the findings of ``statistics.validate`` for a split, those about values with counts and examples.

    ``tables`` are the rows of the split, as columns of lists; they are read only if a finding is about values.
    """
    tests = {one.feature: _test_of(one, schema, classes) for one in findings if one.kind in KINDS}
    wrong = count(tables, tests) if tests else {}
    counted = []
    for finding in findings:
        if finding.kind in KINDS:
            rows, values = wrong[finding.feature]
            finding = dataclasses.replace(finding, found=finding.found.replace(ROWS, f"{rows:,} rows"), values=values)
        counted.append(finding)
    return counted


def count(tables: Iterable[pa.Table], tests: Mapping[str, Test]) -> dict[str, tuple[int, tuple[tuple[str, int], ...]]]:
    """Count by column of lists the rows with a wrong value, and the most frequent such values."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in tests}
    for table in tables:
        for name, is_wrong in tests.items():
            # A column without any value in these rows has no type either.
            if name in table.column_names and not pa.types.is_null(table.column(name).type):
                values = pc.list_flatten(table.column(name)).combine_chunks()
                for item in pc.value_counts(values.filter(is_wrong(values))).tolist():
                    counts[name][_text(item["values"])] += item["counts"]
    return {name: (counter.total(), tuple(counter.most_common(SHOWN))) for name, counter in counts.items()}


def _test_of(finding: Finding, schema: schema_pb2.Schema, classes: int) -> Test:
    """Return the test for wrong values of a finding about values."""
    if finding.kind == "infinite" or (finding.kind == "label" and not classes):
        return lambda values: pc.is_inf(values.cast(pa.float64()))
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

    ``tables`` are some rows of the split, as columns of lists; they are read only if the schema names a notation.
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
    total = sum(map(len, looked_at))
    found = []
    for name, (rows, values) in count(looked_at, {name: _notation_test(of) for name, of in notations.items()}).items():
        notation = notations[name]
        places = f'AMOUNTS in the module file and "{notation}" in the schema'
        if notation in DATES:
            places = "TIMES in the module file and time_domain in the schema"
        text = f"{rows:,} of {total:,} rows looked at have text in another notation, which counts as missing"
        remedy = f"write them alike, or change {places}"
        if rows:
            found.append(Finding("notation", split, name, text, described(notation), remedy, values))
    return found


@dataclass
class Unread:
    """Text of a column in another notation."""

    notation: str
    rows: int = 0  # that have such text
    texts: list[str] = field(default_factory=list)  # the first ``findings.SHOWN`` at most

    def add(self, values: np.ndarray) -> None:
        """Look at more rows: text as bytes, [rows] or [rows, values]."""
        distinct = list(dict.fromkeys(values.ravel().tolist()))
        wrong = list(itertools.compress(distinct, _are_in_another(distinct, self.notation)))
        if wrong:
            self.rows += int(np.isin(values, wrong).reshape(len(values), -1).any(axis=1).sum())
            shown = dict.fromkeys([*self.texts, *(text.decode(errors="replace") for text in wrong[:SHOWN])])
            self.texts = list(shown)[:SHOWN]

    def __str__(self) -> str:
        """Describe what was found, and the notation."""
        texts = ", ".join(map(repr, self.texts))
        return f"have text in another notation, which counts as missing: {texts}; {described(self.notation)}"


# A column with a smaller share of values known from training is likely in another spelling, or another column.
LEAST_KNOWN = 0.1


@dataclass
class Known:
    """How many values of a categorical column are known from training."""

    known: Sequence[str]
    values: int = 0
    known_values: int = 0
    others: list[str] = field(default_factory=list)  # the first ``findings.SHOWN`` at most

    def add(self, values: np.ndarray) -> None:
        """Look at more rows: text as bytes, or numbers, [rows] or [rows, values]."""
        for value, count in Counter(values.ravel().tolist()).items():
            if value == b"" or value != value:
                continue
            text = value.decode(errors="replace") if isinstance(value, bytes) else f"{value:.15g}"
            self.values += count
            if text in self._set:
                self.known_values += count
            elif len(self.others) < SHOWN and text not in self.others:
                self.others.append(text)

    @functools.cached_property
    def _set(self) -> frozenset[str]:
        return frozenset([*self.known, *filter(str.isdecimal, map(plain, self.known))])  # "3.000000" is 3

    @property
    def are_few(self) -> bool:
        """Return whether no value, or hardly any, is known."""
        return self.known_values < LEAST_KNOWN * self.values

    def __str__(self) -> str:
        """Describe found and known values."""
        found = f"only {self.known_values:,}" if self.known_values else "none"
        seen, known = (shortened(map(repr, several), SHOWN) for several in (self.others, self.known))
        return f"{found} of {self.values:,} values is known from training: found {seen}; expected {known}"


def _are_in_another(texts: Sequence[str | bytes], notation: str) -> list[bool]:
    """Return which texts are in another notation and do not stand for a missing value."""
    read = [text.decode(errors="replace") if isinstance(text, bytes) else text for text in texts]
    missing = csv_files.is_missing(pa.array(read, pa.string())).to_pylist()
    return [not (absent or is_in(text, notation)) for text, absent in zip(read, missing, strict=True)]


def _notation_test(notation: str) -> Test:
    def test(values: pa.Array) -> pa.Array:
        coded = values.dictionary_encode()
        return pa.array(_are_in_another(coded.dictionary.to_pylist(), notation), pa.bool_()).take(coded.indices)

    return test
