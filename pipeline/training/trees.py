"""Fitted scikit-learn trees in plain TensorFlow operations.

A SavedModel with trees needs TensorFlow alone to be served: no scikit-learn, no custom operation. As matrix products,
after Nakandala et al. 2020, "A Tensor Compiler for Unified Machine Learning Prediction Serving" ("GEMM").
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import tensorflow as tf

from pipeline.training.features import Features

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

Booster: TypeAlias = "HistGradientBoostingClassifier | HistGradientBoostingRegressor"

# Their nodes are decided together, for this many rows: arrays of 6 MB, which fit into the caches of a processor.
TREES_AT_ONCE, ROWS_ANSWERED_AT_ONCE = 96, 512
# Splits of a category that are looked up together: single look-ups took two fifths of the time.
SPLITS_AT_ONCE = 32
ROWS_AT_ONCE = 65_536
# Values of categories that scikit-learn tells apart; the rarest of more count as one.
CODES = 255


class Columns(tf.Module):
    """Transformed features → the columns of trees: categories and numbers, but no lists and no images.

    Attributes:
        names: Of the features.
        categories: Number of columns that are categories; they come first.
        count: Number of columns.
    """

    def __init__(self, features: Features):
        super().__init__()
        self._sizes = {
            name: (size, features.places.get(name, 1))
            for name, size in sorted(features.categories.items())
            if name not in features.padded
        }
        self._numbers = sorted(features.numbers)
        self.names = [*self._sizes, *self._numbers]
        self.categories = sum(places for _, places in self._sizes.values())
        self.count = self.categories + sum(features.numbers.values())
        # The code of each value of a category, uint8 [size * places], by feature.
        self._codes = {name: tf.zeros([size * places], tf.uint8) for name, (size, places) in self._sizes.items()}

    def count_categories(self, features: Mapping[str, np.ndarray]) -> None:
        """Give each of the most frequent values of a category its own code, and all others one together.

        Args:
            features: Of the train split, [rows, values].
        """
        for name, (size, places) in self._sizes.items():
            codes: np.ndarray = np.empty((size, places), np.uint8)
            for place in range(places):
                by_count = np.argsort(-np.bincount(features[name][:, place], minlength=size), kind="stable")
                codes[by_count, place] = np.minimum(np.arange(size), CODES - 1)
            self._codes[name] = tf.constant(codes.ravel())

    def __call__(self, features: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Return codes and numbers, float32 [batch, columns]; a number that is missing is NaN."""
        parts = []
        for name, (_, places) in self._sizes.items():
            codes = tf.gather(self._codes[name], tf.cast(features[name], tf.int64) * places + np.arange(places))
            parts.append(tf.cast(codes, tf.float32))
        return tf.concat([*parts, *(features[name] for name in self._numbers)], axis=1)

    def of(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the same for all rows of a split, in parts that need little further memory."""
        rows = len(next(iter(features.values())))
        columns: np.ndarray = np.empty((rows, self.count), np.float32)
        for start in range(0, rows, ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            columns[part] = self({name: tf.constant(values[part]) for name, values in features.items()})
        return columns


class Trees(tf.Module):
    """A fitted booster in TensorFlow operations.

    Every node of every tree is decided for every row, and a row's leaf is the one on whose path all decisions match: a
    few large operations instead of one for each level of the trees. Answers equal scikit-learn's but for the last
    digits of float32: thresholds are rounded such that no float32 number changes sides, sums are in float64.

    Args:
        columns: Makes the columns that the booster was fitted on, categories first.
        booster: Fitted; values of categories that it was not fitted on go where missing ones go.
        iterations: Uses only the first ones; None: all.
        fitted_on: Places of the columns that the booster was given; None: all.
    """

    def __init__(
        self,
        columns: Columns,
        booster: Booster,
        iterations: int | None = None,
        fitted_on: Sequence[int] | None = None,
    ):
        super().__init__()
        self.columns = columns
        predictors = booster._predictors[:iterations]
        self._outputs = len(predictors[0])
        self._is_number = not hasattr(booster, "classes_")
        self._base = tf.constant(np.ravel(booster._baseline_prediction), tf.float64)
        trees = [tree for iteration in predictors for tree in iteration]
        places = range(columns.count) if fitted_on is None else fitted_on
        known = _known_categories(booster, [place for place in places if place < columns.categories])
        self._blocks = [
            _Block(trees[start : start + TREES_AT_ONCE], columns, places, known)
            for start in range(0, len(trees), TREES_AT_ONCE)
        ]

    def __call__(self, features: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Return the answers, float32 [batch, 1 or classes], as the network gives them."""
        return self.answer(self.columns(features))

    @tf.autograph.experimental.do_not_convert
    def answer(self, values: tf.Tensor) -> tf.Tensor:
        """Return the answers for columns, float32 [batch, columns]."""
        rows = tf.maximum(tf.shape(values)[0], 1)  # no rows are a part, too
        parts = tf.map_fn(
            lambda start: self._part(values[start : start + ROWS_ANSWERED_AT_ONCE]),
            tf.range(0, rows, ROWS_ANSWERED_AT_ONCE),
            fn_output_signature=tf.RaggedTensorSpec([None, self._outputs], tf.float32, ragged_rank=0),
            parallel_iterations=2,  # one part is gathered and compared while another's products take the cores
        )
        return parts.values

    def _part(self, values: tf.Tensor) -> tf.Tensor:
        by_column = tf.transpose(values)
        missing = tf.math.is_nan(by_column)
        # By node, a missing number is below or above every threshold, or the only number on its side.
        decided = tf.concat(
            [tf.where(missing, -np.inf, by_column), tf.where(missing, np.inf, by_column), tf.cast(missing, tf.float32)],
            axis=0,
        )
        codes = tf.cast(by_column[: self.columns.categories], tf.int32)
        leaves = tf.concat([block.leaves(decided, codes) for block in self._blocks], axis=0)  # [trees, batch]
        shape = [leaves.shape[0] // self._outputs, self._outputs, tf.shape(values)[0]]
        raw = tf.transpose(tf.reduce_sum(tf.reshape(leaves, shape), axis=0)) + self._base  # [batch, 1 or classes]
        if not self._is_number:
            raw = tf.sigmoid(raw) if self._outputs == 1 else tf.nn.softmax(raw)
        return tf.cast(raw, tf.float32)


class _Block(tf.Module):
    """Some trees as arrays of the same size, [trees, nodes or leaves]; what a tree lacks no row reaches."""

    def __init__(self, trees: Sequence[Any], columns: Columns, places: Sequence[int], known: Mapping[int, np.ndarray]):
        super().__init__()
        most = max(1, *(int((tree.nodes["is_leaf"] == 0).sum()) for tree in trees))
        row: np.ndarray = np.zeros((len(trees), most), np.int32)  # of what decides a node
        threshold: np.ndarray = np.zeros((len(trees), most), np.float32)
        path: np.ndarray = np.zeros((len(trees), most + 1, most), np.float32)  # 1: left, -1: right, 0: not on it
        lefts: np.ndarray = np.full((len(trees), most + 1), -1, np.float32)  # turns to the left on the path
        value: np.ndarray = np.zeros((len(trees), most + 1), np.float64)
        splits = _Splits(3 * columns.count)
        for place, tree in enumerate(trees):
            nodes = tree.nodes
            leaf = nodes["is_leaf"].astype(bool)
            number = np.where(leaf, np.cumsum(leaf), np.cumsum(~leaf)) - 1  # among the leaves, or the inner nodes
            for node, mine in zip(nodes[~leaf], number[~leaf], strict=True):
                column = places[node["feature_idx"]]
                row[place, mine], threshold[place, mine] = _decision(tree, node, column, columns.count, known, splits)
            for at, turns in _turns(nodes, number):
                value[place, number[at]] = nodes["value"][at]
                lefts[place, number[at]] = sum(turn > 0 for turn in turns.values())
                path[place, number[at], list(turns)] = list(turns.values())
        self._row, self._threshold = tf.constant(row), tf.constant(threshold[..., np.newaxis])
        self._path, self._lefts = tf.constant(path), tf.constant(lefts[..., np.newaxis])
        self._value = tf.constant(value.ravel(), tf.float64)
        self._goes_right, self._column_of_group = splits.table()

    def leaves(self, decided: tf.Tensor, codes: tf.Tensor) -> tf.Tensor:
        """Return the value of the leaf that each row reaches, float64 [trees, batch].

        Args:
            decided: What is compared with thresholds, [3 * columns, batch].
            codes: Of categories, int32 [categories, batch].
        """
        groups = self._column_of_group.shape[0]
        if groups:
            starts = (tf.range(groups) * (CODES + 1))[:, tf.newaxis]
            right = tf.gather(self._goes_right, starts + tf.gather(codes, self._column_of_group))
            by_split = tf.transpose(right, [0, 2, 1])  # [groups, SPLITS_AT_ONCE, batch]
            decided = tf.concat([decided, tf.reshape(by_split, [groups * SPLITS_AT_ONCE, -1])], axis=0)
        left = tf.cast(tf.gather(decided, self._row) <= self._threshold, tf.float32)  # [trees, nodes, batch]
        reached = tf.cast(tf.matmul(self._path, left) == self._lefts, tf.float32)  # [trees, leaves, batch]
        trees, leaves = self._path.shape[:2]
        # These products are of small whole numbers, so exact on processors that shorten floats in products, too.
        number = tf.matmul(tf.range(leaves, dtype=tf.float32)[tf.newaxis, tf.newaxis], reached)[:, 0]
        return tf.gather(self._value, (tf.range(trees) * leaves)[:, tf.newaxis] + tf.cast(number, tf.int32))


class _Splits:
    """Splits of categories: which codes go right, in groups of splits of the same column.

    ``first_row`` decides a node by the first split.
    """

    def __init__(self, first_row: int):
        self._first_row = first_row
        self._groups: list[tuple[int, list[np.ndarray]]] = []  # column, and for each split [CODES + 1]
        self._open: dict[int, int] = {}  # group with room, by column

    def add(self, column: int, right: np.ndarray) -> int:
        """Add a split; return the row that decides a node by it."""
        if column not in self._open or len(self._groups[self._open[column]][1]) == SPLITS_AT_ONCE:
            self._open[column] = len(self._groups)
            self._groups.append((column, []))
        number = self._open[column]
        self._groups[number][1].append(right)
        return self._first_row + number * SPLITS_AT_ONCE + len(self._groups[number][1]) - 1

    def table(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Return which codes go right, float32 [groups * (CODES + 1), SPLITS_AT_ONCE], and the groups' columns."""
        right: np.ndarray = np.zeros((len(self._groups), CODES + 1, SPLITS_AT_ONCE), np.float32)
        for number, (_, splits) in enumerate(self._groups):
            right[number, :, : len(splits)] = np.transpose(splits)
        columns = [column for column, _ in self._groups]
        return tf.constant(right.reshape(-1, SPLITS_AT_ONCE)), tf.constant(columns, tf.int32)


def _decision(
    tree: Any, node: Any, column: int, columns: int, known: Mapping[int, np.ndarray], splits: _Splits
) -> tuple[int, float]:
    """Return the row that decides a node by a column, and the largest number in it with which a row goes left.

    Rows are the columns with missing values as the lowest number, the columns with them as the highest, whether each is
    missing, and a row for each split of a category, which this adds to ``splits``.
    """
    if node["is_categorical"]:
        left = _bits(tree.raw_left_cat_bitsets[node["bitset_idx"]])
        return splits.add(column, 1 - np.where(known[column], left, node["missing_go_to_left"])), 0.5
    if np.isposinf(node["num_threshold"]):  # every number that is not missing goes left
        return 2 * columns + column, 0.5
    return column if node["missing_go_to_left"] else columns + column, float(_rounded_down(node["num_threshold"]))


def _turns(nodes: np.ndarray, number: np.ndarray) -> Iterator[tuple[int, dict[int, int]]]:
    """Yield each leaf's node, and the turn at each inner node above it: 1 left, -1 right."""
    waiting: list[tuple[int, dict[int, int]]] = [(0, {})]
    while waiting:
        at, turns = waiting.pop()
        if nodes["is_leaf"][at]:
            yield at, turns
        else:
            waiting.append((int(nodes["left"][at]), {**turns, int(number[at]): 1}))
            waiting.append((int(nodes["right"][at]), {**turns, int(number[at]): -1}))


def _rounded_down(threshold: np.ndarray) -> np.ndarray:
    """Return the largest finite float32 number not above a float64 number: no float32 number changes sides."""
    largest = np.finfo(np.float32).max
    rounded: np.ndarray = np.clip(threshold, -largest, largest).astype(np.float32)
    with np.errstate(over="ignore"):  # minus infinity, below the lowest
        return np.where(rounded.astype(np.float64) > threshold, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def _known_categories(booster: Booster, columns: Sequence[int]) -> dict[int, np.ndarray]:
    """Return which codes the booster was fitted on, 0 or 1 [CODES + 1], by the place of a column of categories."""
    if not columns:
        return {}
    bits, places = booster._bin_mapper.make_known_categories_bitsets()
    return {column: _bits(bits[places[number]]) for number, column in enumerate(columns)}


def _bits(words: np.ndarray) -> np.ndarray:
    """Return 256 bits of 8 uint32 words, lowest first."""
    return np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")
