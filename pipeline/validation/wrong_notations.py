"""Find text that is no time or amount in the notation that the schema names: it counts as missing.

In the schema, ``time_domain { string_format: "%d.%m.%Y" }`` is the notation of times, and ``annotation { tag: "amount:
," }`` says that text holds amounts with this decimal sign.
"""

import functools
from collections.abc import Callable, Iterable

import pyarrow as pa
from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline.data import csv_files
from pipeline.settings.notations import AMOUNTS, DATES, is_amount, is_time
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
    tests: dict[str, Test] = {}
    expected, remedies = {}, {}
    for feature in schema.feature:
        form, name = feature.time_domain.string_format, feature.name
        signs = [tag.removeprefix(AMOUNT) for tag in feature.annotation.tag if tag.startswith(AMOUNT)]
        if feature.lifecycle_stage == schema_pb2.DISABLED or feature.type != schema_pb2.BYTES:
            continue
        if form in DATES:
            tests[name], expected[name] = _test(functools.partial(is_time, form=form)), f"the notation is {form}"
            remedies[name] = "TIMES in the module file and time_domain in the schema"
        elif signs and signs[0] in AMOUNTS:
            tests[name] = _test(functools.partial(is_amount, decimal=signs[0]))
            expected[name] = f"the decimal sign is {signs[0]!r}"
            remedies[name] = f'AMOUNTS in the module file and "{AMOUNT}{signs[0]}" in the schema'
    if not tests:
        return []
    looked_at = list(tables)
    counts = count(looked_at, tests)
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


def _test(fits: Callable[[str], bool]) -> Test:
    """Return what tells text that does not fit, and does not stand for a missing value."""

    def is_wrong(values: pa.Array) -> pa.Array:
        coded = values.dictionary_encode()
        texts = [
            word.decode(errors="replace") if isinstance(word, bytes) else word for word in coded.dictionary.to_pylist()
        ]
        missing = csv_files.is_missing(pa.array(texts, pa.string())).to_pylist()
        wrong = [not (absent or not text.strip() or fits(text)) for text, absent in zip(texts, missing, strict=True)]
        return pa.array(wrong, pa.bool_()).take(coded.indices)

    return is_wrong
