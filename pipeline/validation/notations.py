"""Find text that is no time or amount in the notation that the schema names: it counts as missing.

In the schema, ``time_domain { string_format: "%d.%m.%Y" }`` is the notation of times, and ``annotation { tag: "amount:
," }`` says that text holds amounts with this decimal sign.
"""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline.data import csv_files
from pipeline.training.notations import AMOUNTS, DATES, PLAIN_NUMBER, date_pattern
from pipeline.validation.findings import Finding
from pipeline.validation.wrong_values import Test, count

AMOUNT = "amount: "


def in_another(split: str, tables: Iterable[pa.Table], schema: schema_pb2.Schema) -> list[Finding]:
    """Return a finding for each column with text in another notation than its own.

    Args:
        split: Name of the split.
        tables: Some rows of it, columns of lists; read only if the schema names a notation.
        schema: Of the data.
    """
    patterns, expected, remedies = {}, {}, {}
    for feature in schema.feature:
        form = feature.time_domain.string_format
        signs = [tag.removeprefix(AMOUNT) for tag in feature.annotation.tag if tag.startswith(AMOUNT)]
        name = feature.name
        if feature.lifecycle_stage == schema_pb2.DISABLED or feature.type != schema_pb2.BYTES:
            continue
        if form in DATES:
            patterns[name], expected[name] = [date_pattern(form)[0]], f"the notation is {form}"
            remedies[name] = "TIMES in the module file and time_domain in the schema"
        elif signs and signs[0] in AMOUNTS:
            patterns[name], expected[name] = [AMOUNTS[signs[0]], PLAIN_NUMBER], f"the decimal sign is {signs[0]!r}"
            remedies[name] = f'AMOUNTS in the module file and "{AMOUNT}{signs[0]}" in the schema'
    if not patterns:
        return []
    looked_at = list(tables)
    counts = count(looked_at, {name: _test(of_column) for name, of_column in patterns.items()})
    total = sum(map(len, looked_at))
    return [
        Finding(
            "notation",
            split,
            name,
            f"{rows:,} of {total:,} rows looked at have text in another notation, which counts as missing",
            expected[name],
            f"write them alike, or change {remedies[name]}",
            values,
        )
        for name, (rows, values) in counts.items()
        if rows
    ]


def _test(patterns: list[str]) -> Test:
    """Return what tells text that fits no pattern, and does not stand for a missing value."""

    def is_wrong(values: pa.Array) -> pa.Array:
        try:
            text = values.cast(pa.large_string())
        except pa.ArrowInvalid:  # bytes that are no text
            text = pa.array([value.decode(errors="replace") for value in values.to_pylist()], pa.large_string())
        fits = pc.or_(csv_files.is_missing(text), pc.equal(pc.utf8_trim_whitespace(text), ""))
        for pattern in patterns:
            fits = pc.or_(fits, pc.match_substring_regex(text, pattern))
        return pc.invert(fits)

    return is_wrong
