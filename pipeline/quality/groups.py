"""Find rows of eval and test that are as good as known from train: of the same patient, say, or nearly equal."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.quality.findings import Finding
from pipeline.quality.rows import labels_of, scalars
from pipeline.settings.gates import DataChecks

# Rows of all splits together that are looked at, in proportion to the splits.
SAMPLE = 50_000
# A column names groups if it has as many values, and at most this number of rows for each on average.
FEWEST_VALUES, MOST_ROWS_OF_A_VALUE = 20, 100
# Pairs of rows that prove something, and how many of them have different labels by chance.
FEWEST_PAIRS, FEWEST_DIFFERENT = 30, 10
# Two rows are near-equal if their numbers are this close on average, and each by itself, in ranks from 0 to 1.
MEAN_DISTANCE, MOST_DISTANCE = 0.05, 0.25
# Share of near-equal pairs from which rows of one value are alike, and the most by chance.
ALIKE, BY_CHANCE = 0.8, 0.1
# How often labels of a pair differ, relative to chance, where they hardly ever do, and where rows are alike.
CONSTANT, SIMILAR = 0.05, 0.5
# Categories such as cities differ more in size than groups: most rows of a value, relative to the mean.
MOST_OF_MEAN = 5
# Near-equal rows without a column of groups: candidates share a cell of a few columns, of one of these widths in ranks.
# Copies have few more pairs within twice a distance; rows of data that is only dense have twice as many or more.
CELL_COLUMNS, WIDTHS, MORE_PAIRS = 4, tuple(0.5**power for power in range(1, 7)), 1.7
MOST_ROWS, CANDIDATES = 2_000, 32  # rows that copies are looked for of, and others that each is compared with
TIES = 0.02  # most pairs of rows with the same number, in a column for cells
MULTIPLIER = 1_000_003
NEIGHBOURS = 0.85  # most distance of rows of one value, relative to that of rows of neighbouring values
MOST_NUMBERS = 64  # columns that rows are compared by
SHOWN = 6  # columns of an example


@dataclass(frozen=True)
class _Rows:
    """Rows to compare, in random order."""

    numbers: np.ndarray  # ranks from 0 to 1, the same for equal numbers, float32 [columns, rows]
    cells: np.ndarray  # of columns of many values, ranks that differ in equal numbers, too, [columns, rows]
    codes: Mapping[str, np.ndarray]  # of the values of text by column, int64 [rows]
    texts: np.ndarray  # a number for all texts of a row, int64 [rows]
    labels: np.ndarray  # classes, or ranks of numbers, [rows]
    classes: int
    in_train: np.ndarray  # bool [rows]
    comparable: bool  # there are numbers, and no lists or sentences

    def near(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Return which pairs of rows are near-equal, bool [pairs]."""
        if not self.comparable:
            return np.zeros(len(one), bool)
        distances = np.abs(self.numbers[:, one] - self.numbers[:, other])
        close = (distances.mean(axis=0) <= MEAN_DISTANCE) & (distances.max(axis=0) <= MOST_DISTANCE)
        return np.asarray(close & (self.texts[one] == self.texts[other]))

    def distance(self, one: np.ndarray, other: np.ndarray) -> float:
        """Return the mean distance of the numbers of pairs of rows."""
        return float(np.abs(self.numbers[:, one] - self.numbers[:, other]).mean()) if len(self.numbers) else 0.0

    def different(self, one: np.ndarray, other: np.ndarray) -> float:
        """Return how often labels of pairs differ relative to chance; 1 if there are too few to know."""
        everyone = np.arange(len(self.labels))
        by_chance = self._difference(everyone, np.roll(everyone, 1))
        if len(one) < FEWEST_PAIRS or len(one) * by_chance < FEWEST_DIFFERENT:
            return 1.0
        return self._difference(one, other) / by_chance

    def _difference(self, one: np.ndarray, other: np.ndarray) -> float:
        first, second = self.labels[one], self.labels[other]
        return float((first != second).mean() if self.classes else np.abs(first - second).mean())


def similar_rows(
    splits: Mapping[str, pa.Table],
    label: str,
    classes: int,
    unused: Collection[str | None],
    checks: DataChecks,
    *,
    by_files: bool = False,
) -> Iterator[Finding]:
    """Find a column whose values name groups of similar rows that are in several splits, or near-equal rows.

    Groups: the values occur in train and elsewhere, and within a value the label hardly ever differs, or all columns
    are near-equal and the label differs half as often as by chance. Without such a column, near-equal rows count if
    the data is not just dense.

    Args:
        splits: Rows by split, "train" among them, as columns of lists.
        label: Column of the label.
        classes: Their number; 0 where the label is a number.
        unused: Columns that no model learns from; they may name groups.
        checks: The limit.
        by_files: Splits are made of files, not by the config.
    """
    table = pa.concat_tables(splits.values(), promote_options="permissive")
    order = np.random.RandomState(0).permutation(table.num_rows)
    in_train = np.repeat([name == "train" for name in splits], [part.num_rows for part in splits.values()])[order]
    labels = labels_of(table, label, classes)
    if labels is None or min(in_train.sum(), (~in_train).sum()) < FEWEST_VALUES:
        return
    columns = {name: scalars(table.column(name)) for name in table.column_names if name != label}
    rows = _compared(columns, set(unused), labels[order], classes, in_train, order)
    names = ", ".join(name for name in splits if name != "train")
    limit = f"at most {100 * checks.max_similar_rows:g} % may, or the metrics measure what the model remembers"
    accept = "accept it: DataChecks(max_similar_rows=...) in the config"
    groups = [group for name, values in columns.items() if (group := _group(name, values, order, rows))]
    groups = [group for group in groups if group[0] > checks.max_similar_rows]
    if groups:
        # Of several, such as a patient's name and number, the one with the most rows of a value.
        share, name, _, like = max(groups, key=lambda group: (group[2], group[1]))
        found = (
            f"{100 * share:.1f} % of the rows have a value that train has too, and rows of one value are alike: {like}"
        )
        remedy = f"import HashSplit in the config and write into Data(...): split_by=HashSplit({literal(name)}); "
        if by_files:
            remedy = "put all rows of a value into the files of one split; "
        if name not in unused:
            remedy += f"in the schema, set lifecycle_stage: DISABLED for {name}: the split needs it, no model should; "
        remedy += f'{accept}, or annotation {{ tag: "similar_rows: ignore" }} of {name} in the schema'
        yield Finding("similar_rows", names, name, found, limit, remedy)
        return
    one, other, share = _copies(rows)
    if share > checks.max_similar_rows and rows.different(one, other) <= SIMILAR:
        found = f"{100 * share:.1f} % are near-equal to a row of train and mostly have its label"
        example = f"{_shown(table, order[one[0]], unused)} and in train {_shown(table, order[other[0]], unused)}"
        remedy = (
            "find out which rows belong together, such as all rows of a patient, and name the group in a column for "
            f"split_by=HashSplit(...), or drop the copies; {accept}"
        )
        yield Finding("similar_rows", names, "", found, limit, remedy, ((example, 2),))


def _compared(
    columns: Mapping[str, pa.Array | None],
    unused: set[str | None],
    labels: np.ndarray,
    classes: int,
    in_train: np.ndarray,
    order: np.ndarray,
) -> _Rows:
    numbers: list[np.ndarray] = []
    cells: list[np.ndarray] = []
    comparable = True
    codes: dict[str, np.ndarray] = {}
    for name, values in columns.items():
        if name in unused or (values is not None and values.null_count == len(values)):
            continue
        if values is None:
            comparable = False
        elif _is_text(values):
            coded = values.dictionary_encode()
            if len(coded.dictionary) < len(values):
                codes[name] = np.asarray(coded.indices.fill_null(-1), np.int64)[order]
            elif pc.any(pc.match_substring(coded.dictionary, " ")).as_py():
                comparable = False
        elif len(numbers) < MOST_NUMBERS:
            found = np.asarray(values.cast(pa.float64(), safe=False).fill_null(np.nan))[order]
            equal, spread, ties = _ranks(found)
            if ties == 0 and pa.types.is_integer(values.type) and np.median(np.diff(np.sort(found))) == 1:
                continue  # it numbers the rows
            numbers.append(equal)
            if ties <= TIES:
                cells.append(spread)
    return _Rows(
        np.array(numbers, np.float32).reshape(len(numbers), len(order)),
        np.array(cells, np.float32).reshape(len(cells), len(order)),
        codes,
        _combined(np.zeros(len(order), np.int64), codes.values()),
        labels if classes else _ranks(labels)[0],
        classes,
        in_train,
        comparable and bool(numbers),
    )


def _combined(numbers: np.ndarray, others: Iterable[np.ndarray]) -> np.ndarray:
    """Return a number for the numbers and the others of each row, int64 [rows]."""
    for other in others:
        numbers = numbers * MULTIPLIER + other
    return numbers


def _ranks(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return ranks that are the same for equal values, ranks that are not, and the share of pairs of equal values."""
    order = np.argsort(values, kind="stable")  # of equal values, as they come: in random order
    ordered = values[order]
    starts = np.flatnonzero(np.r_[True, (ordered[1:] != ordered[:-1]) & ~np.isnan(ordered[:-1])])
    counts = np.diff(np.r_[starts, len(values)])
    equal, spread = np.empty(len(values)), np.empty(len(values))
    equal[order] = np.repeat(starts + (counts - 1) / 2, counts) / len(values)
    spread[order] = np.arange(len(values)) / len(values)
    return equal, spread, float((counts * (counts - 1.0)).sum() / len(values) ** 2)


def _group(name: str, values: pa.Array | None, order: np.ndarray, rows: _Rows) -> tuple[float, str, int, str] | None:
    """Return the share of rows outside of train that train has a value of, the column, its pairs and what is alike."""
    if values is None or not (_is_text(values) or pa.types.is_integer(values.type)):
        return None
    coded = values.dictionary_encode()
    known = len(coded.dictionary)
    if not max(FEWEST_VALUES, len(values) / MOST_ROWS_OF_A_VALUE) <= known < len(values):
        return None
    codes = np.asarray(coded.indices.fill_null(known), np.int64)
    numbered = pa.types.is_integer(values.type)
    if numbered:  # neighbours are near each other
        codes = np.r_[np.argsort(np.argsort(np.asarray(coded.dictionary))), known][codes]
    codes = codes[order]
    train = np.bincount(codes[rows.in_train], minlength=known + 1) > 0
    train[known] = False
    share = float(train[codes[~rows.in_train]].mean())
    ordered = np.argsort(codes, kind="stable")
    ordered = ordered[codes[ordered] < known]
    one, other = ordered[:-1], ordered[1:]
    same = codes[one] == codes[other]
    next_one, next_other = one[~same], other[~same]
    one, other = one[same], other[same]
    different = rows.different(one, other)
    if not share or different > SIMILAR:
        return None
    near = float(rows.near(one, other).mean())
    everyone = np.arange(len(order))
    alike = near >= ALIKE and rows.near(everyone, np.roll(everyone, 1)).mean() <= BY_CHANCE
    sizes = np.bincount(codes, minlength=known)[:known]
    even = sizes.max() <= MOST_OF_MEAN * sizes.mean()
    if not alike and (different > CONSTANT or not even or _explained(name, codes, rows)):
        return None
    # Rows of neighbouring quantities are like each other, too; those of neighbouring identities are not.
    if numbered and alike and rows.near(next_one, next_other).mean() > near / 2:
        return None
    if numbered and not alike and rows.different(next_one, next_other) < SIMILAR:
        if rows.distance(one, other) > NEIGHBOURS * rows.distance(next_one, next_other):
            return None
    labels = f"labels differ {100 * different:.0f} % as often as by chance"
    like = f"of {len(one):,} pairs, {100 * near:.0f} % are near-equal, and {labels}"
    return share, name, len(one), like


def _explained(name: str, groups: np.ndarray, rows: _Rows) -> bool:
    """Return whether other texts tell the group, or the label of rows of different groups."""
    texts = _combined(np.zeros(len(groups), np.int64), [codes for other, codes in rows.codes.items() if other != name])
    ordered = np.lexsort((groups, texts))
    one, other = ordered[:-1], ordered[1:]
    same = texts[one] == texts[other]
    one, other = one[same], other[same]
    differ = groups[one] != groups[other]
    if len(one) >= FEWEST_PAIRS and not differ.any():
        return True
    # With rows of a text in any order, neighbours are mostly of different groups.
    ordered = np.argsort(texts, kind="stable")
    one, other = ordered[:-1], ordered[1:]
    apart = (texts[one] == texts[other]) & (groups[one] != groups[other])
    return rows.different(one[apart], other[apart]) <= SIMILAR


def _copies(rows: _Rows) -> tuple[np.ndarray, np.ndarray, float]:
    """Return rows outside of train, near-equal rows in train, and their share; none if the data is only dense."""
    best: tuple[np.ndarray, np.ndarray, float] = np.zeros(0, np.int64), np.zeros(0, np.int64), 0.0
    if not rows.comparable or len(rows.cells) < 2:
        return best
    train = np.flatnonzero(rows.in_train)
    asked = np.flatnonzero(~rows.in_train)[:MOST_ROWS]
    for width in WIDTHS:
        cells = _combined(rows.texts, [(column / width).astype(np.int64) for column in rows.cells[:CELL_COLUMNS]])
        ordered = train[np.argsort(cells[train], kind="stable")]  # in a cell in random order
        start = np.atleast_1d(np.searchsorted(cells[ordered], cells[asked], "left"))
        end = np.atleast_1d(np.searchsorted(cells[ordered], cells[asked], "right"))
        at = np.repeat(start[:, None], CANDIDATES, 1) + np.arange(CANDIDATES)
        row, place = np.nonzero(at < end[:, None])
        one, other = asked[row], ordered[at[row, place]]
        weights = ((end - start) / np.clip(end - start, 1, CANDIDATES))[row]
        distances = np.abs(rows.cells[:, one] - rows.cells[:, other]).mean(axis=0)
        for near in (width / 8, width / 16):
            closest = distances <= near
            if weights[distances <= 2 * near].sum() > MORE_PAIRS * weights[closest].sum():
                continue
            closest &= rows.near(one, other)
            _, first = np.unique(one[closest], return_index=True)
            if len(first) / len(asked) > best[2]:
                best = one[closest][first], other[closest][first], len(first) / len(asked)
    return best


def _is_text(values: pa.Array) -> bool:
    return bool(pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type))


def literal(name: str) -> str:
    """Return the name of a column as Python writes it."""
    return f'"{name}"' if name.isprintable() and not set(name) & {'"', "\\"} else repr(name)


def _shown(table: pa.Table, row: int, unused: Collection[str | None]) -> str:
    names = [name for name in table.column_names if name not in unused]
    values = {name: (table.column(name)[int(row)].as_py() or [None])[0] for name in names[:SHOWN]}
    texts = [
        f"{name}={value:.4g}"
        if isinstance(value, float)
        else f"{name}={value.decode(errors='replace')}"
        if isinstance(value, bytes)
        else f"{name}={value}"
        for name, value in values.items()
    ]
    return ", ".join(texts)
