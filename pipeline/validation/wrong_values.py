"""Count the values that the schema does not allow; statistics tell only that there are some."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tensorflow_metadata.proto.v0 import schema_pb2

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
