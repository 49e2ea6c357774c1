"""What only the rows themselves tell: repeated ones, a column that knows the label, values that are not allowed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.gates import DataChecks
from pipeline.reading.tfrecord_files import read_records
from pipeline.validation.findings import SHOWN, Finding

BLOCK = 16_384
# Rows of a split that a column is judged by: an AUC of 0.98 is told from one of 0.97 with far fewer.
SAMPLE = 20_000
# Bins of a number's values. A cut in the middle of the label's own bin costs an AUC of 1.0 less than 0.01.
BINS = 256
# Hashes that are kept of all splits together, 8 bytes each; of more rows, every n-th hash.
MOST_HASHES = 20_000_000

Files = Mapping[str, Sequence[str]]


def repeated_rows(files: Files, rows: Mapping[str, int], checks: DataChecks) -> Iterator[Finding]:
    """Finds rows that are in several splits, and rows that are in one split several times.

    Equal rows have equal bytes, whichever ExampleGen wrote them.

    Args:
        files: TFRecords of examples by split, in the order train, eval, test.
        rows: Their number by split.
        checks: The limits.
    """
    every = 1 + sum(rows.values()) // MOST_HASHES
    seen: dict[str, np.ndarray] = {}
    for split, of_split in files.items():
        hashes = _hashes(of_split, every)
        distinct = np.unique(hashes)
        repeated = 1 - len(distinct) / max(1, len(hashes))
        if repeated > checks.max_repeated_rows:
            yield _rows_finding(
                "repeated_rows", split, repeated, "repeat another row of it", checks.max_repeated_rows, rows[split]
            )
        for earlier, others in seen.items():
            share = float(np.isin(hashes, others, kind="sort").mean()) if len(hashes) else 0.0
            if share > checks.max_shared_rows:
                what = f"are in {earlier} too"
                yield _rows_finding("shared_rows", split, share, what, checks.max_shared_rows, rows[split])
        seen[split] = distinct


def leaks(files: Files, label: str, checks: DataChecks, classes: int = 2) -> Iterator[Finding]:
    """Finds columns that alone tell the label: each is fitted to a sample of train, and judged on one of eval.

    Args:
        files: TFRecords of examples by split.
        label: Column of the numbers of classes, or of any numbers.
        checks: The limit.
        classes: How many classes there are; 0 where the label is a number.
    """
    train, held_out = _sample(files["train"]), _sample(files["eval"])
    train_label, held_out_label = _labels(train, label, classes), _labels(held_out, label, classes)
    if train_label is None or held_out_label is None:
        return
    for name in train.column_names:
        if name == label or name not in held_out.column_names:
            continue
        codes = _coded(train.column(name), held_out.column(name))
        if codes is None:
            continue
        if classes:
            # Of two classes, one against the other says it all.
            areas = [
                column_auc(*codes, (train_label == number) * 1.0, (held_out_label == number) * 1.0)
                for number in range(1 if classes == 2 else 0, classes)
            ]
            told, measure = float(np.mean(areas)), "an AUC"
        else:
            told, measure = column_correlation(*codes, train_label, held_out_label), "a squared correlation"
        if told > checks.max_column_auc:
            yield Finding(
                "leak",
                "train",
                name,
                f"this column alone tells the label with {measure} of {told:.4f} on eval",
                f"at most {checks.max_column_auc:g}, or it knows what only the future knows",
                "leave the column out of the data; accept it: DataChecks(max_column_auc=...) in the config",
            )


def column_auc(train: np.ndarray, held_out: np.ndarray, train_label: np.ndarray, held_out_label: np.ndarray) -> float:
    """AUC on held-out rows of a column whose values are scored by their share of label 1 in train.

    Args:
        train: Values as codes from 0, int64 [rows].
        held_out: The same codes; -1 for a value that train does not have.
        train_label: 0 or 1, [rows].
        held_out_label: 0 or 1, [held-out rows].
    """
    size = int(max(train.max(initial=0), held_out.max(initial=0))) + 2  # the last code, -1, is the unseen value
    counts = np.bincount(train, minlength=size)
    ones = np.bincount(train, weights=train_label, minlength=size)
    mean = train_label.mean()
    score = (ones + mean) / (counts + 1)  # one row of average outcome more: a value seen once proves little
    # Mann-Whitney, by value: of two rows with the same score, each wins half.
    order = np.unique(score, return_inverse=True)[1]
    place = order[held_out]
    positives = np.bincount(place, weights=held_out_label, minlength=size)
    negatives = np.bincount(place, weights=1 - held_out_label, minlength=size)
    pairs = positives.sum() * negatives.sum()
    wins = (positives * (np.cumsum(negatives) - negatives / 2)).sum()
    return float(wins / pairs) if pairs else 0.5


def column_correlation(
    train: np.ndarray, held_out: np.ndarray, train_label: np.ndarray, held_out_label: np.ndarray
) -> float:
    """Squared correlation on held-out rows of a numeric label with its mean in train by the column's value.

    Takes what ``column_auc`` does, with labels of any numbers.
    """
    size = int(max(train.max(initial=0), held_out.max(initial=0))) + 2
    counts = np.bincount(train, minlength=size)
    told = (np.bincount(train, weights=train_label, minlength=size) + train_label.mean()) / (counts + 1)
    if np.ptp(told[held_out]) == 0 or np.ptp(held_out_label) == 0:
        return 0.0
    return float(np.corrcoef(told[held_out], held_out_label)[0, 1] ** 2)


def tables_of(files: Sequence[str]) -> Iterator[pa.Table]:
    """The examples in TFRecords, block by block, as columns of lists."""
    yield from _tables(files, BLOCK)


def wrong_values(
    tables: Iterable[pa.Table], tests: Mapping[str, Callable[[pa.Array], pa.Array]]
) -> dict[str, tuple[int, tuple[tuple[str, int], ...]]]:
    """Counts, column by column, the rows with a wrong value, and the most frequent such values.

    Args:
        tables: Of lists.
        tests: By column, what tells wrong values [n] from right ones, as booleans [n].
    """
    counts: dict[str, Counter[str]] = {name: Counter() for name in tests}
    for table in tables:
        for name, is_wrong in tests.items():
            # A column without any value in these rows has no type either.
            if name in table.column_names and not pa.types.is_null(table.column(name).type):
                values = pc.list_flatten(table.column(name)).combine_chunks()
                for one in pc.value_counts(values.filter(is_wrong(values))).tolist():
                    counts[name][_text(one["values"])] += one["counts"]
    return {name: (count.total(), tuple(count.most_common(SHOWN))) for name, count in counts.items()}


def _rows_finding(kind: str, split: str, share: float, what: str, limit: float, rows: int) -> Finding:
    return Finding(
        kind,
        split,
        "",
        f"{100 * share:.1f} % of {rows:,} {what}",
        f"at most {100 * limit:g} % may",
        f"take the files apart; accept it: DataChecks(max_{kind}=...) in the config",
    )


def _hashes(files: Sequence[str], every: int) -> np.ndarray:
    parts = [
        np.fromiter(map(hash, block), np.int64, len(block)) for file in files for block in read_records(file, BLOCK)
    ]
    hashes = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    return hashes[hashes % every == 0] if every > 1 else hashes


def _sample(files: Sequence[str]) -> pa.Table:
    """Rows from the beginning of every file; the files of a split hold its rows in no order that matters."""
    each = -(-SAMPLE // max(1, len(files)))
    tables = [next(_tables([file], each), None) for file in files]
    return pa.concat_tables([table for table in tables if table is not None], promote_options="permissive")


def _tables(files: Sequence[str], rows: int) -> Iterator[pa.Table]:
    from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

    decoder = ExamplesToRecordBatchDecoder()
    for file in files:
        for block in read_records(file, rows):
            yield pa.table(decoder.DecodeBatch(block))


def _labels(table: pa.Table, label: str, classes: int) -> np.ndarray | None:
    """Labels, float64 [rows]; None where some row has none, or one that is no class."""
    if label not in table.column_names or pa.types.is_null(table.column(label).type):
        return None
    values = pc.list_flatten(table.column(label)).combine_chunks()
    if len(values) != table.num_rows or not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return None
    found = np.asarray(values, np.float64)
    return found if (np.isin(found, range(classes)) if classes else np.isfinite(found)).all() else None


def _coded(train: pa.ChunkedArray, held_out: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray] | None:
    """Values of both as codes from 0, -1 for one that train lacks; numbers in bins, and missing is a value."""
    columns = [_scalars(train), _scalars(held_out)]
    if columns[0] is None or columns[1] is None or columns[0].type != columns[1].type:
        return None
    values, others = columns
    if not pa.types.is_binary(values.type) and not pa.types.is_large_binary(values.type):
        numbers, other_numbers = (np.asarray(one.cast(pa.float64(), safe=False).fill_null(np.nan)) for one in columns)
        known = numbers[np.isfinite(numbers)]
        distinct = np.unique(known)
        edges = distinct if len(distinct) <= BINS else np.unique(np.quantile(known, np.linspace(0, 1, BINS + 1)[1:-1]))
        return tuple(
            np.where(np.isfinite(one), np.searchsorted(edges, one, side="left"), len(edges) + 1)
            for one in (numbers, other_numbers)
        )
    distinct = pc.unique(values)
    return (
        np.asarray(pc.index_in(values, distinct).fill_null(-1), np.int64),
        np.asarray(pc.index_in(others, distinct).fill_null(-1), np.int64),
    )


def _scalars(column: pa.ChunkedArray) -> Any:
    """One value or null per row; None where some row has several."""
    lists = column.combine_chunks()
    lists = pa.concat_arrays(lists.chunks) if isinstance(lists, pa.ChunkedArray) else lists
    if pa.types.is_null(lists.type):
        return None
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
    if len(lengths) and lengths.max() > 1:
        return None
    ends = np.cumsum(lengths) - 1
    return lists.flatten().take(pa.array(np.where(lengths == 1, ends, 0), mask=lengths == 0))


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return f"{value:g}" if isinstance(value, float) else str(value)
