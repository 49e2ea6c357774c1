"""Gradient boosting beside the network: scikit-learn fits the trees, plain TensorFlow operations answer.

So a SavedModel with trees needs TensorFlow alone to be served: no scikit-learn, no operation of its own. All trees are
walked at once, level by level, as "TreeTraversal" in Nakandala et al. 2020, "A Tensor Compiler for Unified Machine
Learning Prediction Serving".
"""

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from pipeline.progress import Progress
from pipeline.training.features import Features

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

logger = logging.getLogger("pipeline.training")

Booster: TypeAlias = "HistGradientBoostingClassifier | HistGradientBoostingRegressor"
# Small steps, and as many as improve the answers for the eval split.
LEARNING_RATE, MOST_ITERATIONS, AT_ONCE, PATIENCE = 0.05, 500, 25, 75
# Each iteration grows a tree for each of several classes; so many are walked in milliseconds.
MOST_TREES = 2_000
# Values of categories that scikit-learn tells apart; the rarest of more count as one.
CODES = 255


class Rows(NamedTuple):
    """What trees see of some rows.

    Attributes:
        values: As ``Columns`` makes them, float32 [rows, columns].
        labels: Numbers of classes, or numbers; [rows].
    """

    values: np.ndarray
    labels: np.ndarray


class Columns(tf.Module):
    """Transformed features → the columns that trees see: categories and numbers, but no lists and no images.

    Attributes:
        names: Of the features.
        categories: How many columns are categories; they come first.
        count: Columns.

    Args:
        features: Of the model.
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
        """Give each of the most frequent values of a category a code of its own, and all others one together.

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
        """Return the same for all rows of a split."""
        return self({name: tf.constant(values) for name, values in features.items()}).numpy()


class Trees(tf.Module):
    """A fitted booster in TensorFlow operations.

    Answers equal scikit-learn's but for the last digits of float32: thresholds are rounded such that no float32 number
    changes sides, sums are in float64.

    Args:
        columns: Makes the columns that the booster was fitted on, categories first.
        booster: Fitted; categories that it was not fitted on go where missing ones go.
        iterations: The first so many are taken; None takes all.
    """

    def __init__(self, columns: Columns, booster: Booster, iterations: int | None = None):
        super().__init__()
        self.columns = columns
        predictors = booster._predictors[:iterations]
        self._outputs = len(predictors[0])
        self._is_number = not hasattr(booster, "classes_")
        self._base = tf.constant(np.ravel(booster._baseline_prediction), tf.float64)
        nodes = [tree.nodes for iteration in predictors for tree in iteration]
        self._depth = max(int(tree["depth"].max()) for tree in nodes)
        starts = np.cumsum([0, *(len(tree) for tree in nodes)])
        offsets: np.ndarray = np.repeat(starts[:-1], np.diff(starts))
        all_nodes = np.concatenate(nodes)
        leaf = all_nodes["is_leaf"].astype(bool)
        own = np.arange(len(all_nodes))

        def child(side: str) -> np.ndarray:
            return np.where(leaf, own, all_nodes[side] + offsets)  # a walk that has arrived stays

        self._roots = tf.constant(starts[:-1], tf.int32)
        self._children = tf.constant(np.stack([child("right"), child("left")], axis=1).ravel(), tf.int32)
        self._feature = tf.constant(np.where(leaf, 0, all_nodes["feature_idx"]), tf.int32)
        self._threshold = tf.constant(_rounded_down(all_nodes["num_threshold"]))
        self._missing_left = tf.constant(all_nodes["missing_go_to_left"].astype(np.int32))
        self._value = tf.constant(all_nodes["value"], tf.float64)
        self._bitset = self._goes_left = None
        if columns.categories:
            self._bitset, self._goes_left = _category_splits(booster, predictors, all_nodes)

    def __call__(self, features: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Return the answers, float32 [batch, 1 or classes], as the network gives them."""
        return self.answer(self.columns(features))

    def answer(self, values: tf.Tensor) -> tf.Tensor:
        """Return the answers for columns, float32 [batch, columns]."""
        rows, trees = tf.shape(values)[0], self._roots.shape[0]
        flat = tf.reshape(values, [-1])
        row_starts = (tf.range(rows) * values.shape[1])[:, tf.newaxis]
        place = tf.repeat(self._roots[tf.newaxis], rows, axis=0)  # [batch, trees]
        for _ in range(self._depth):
            value = tf.gather(flat, row_starts + tf.gather(self._feature, place))
            left = tf.cast(value <= tf.gather(self._threshold, place), tf.int32)
            left = tf.where(tf.math.is_nan(value), tf.gather(self._missing_left, place), left)
            if self._goes_left is not None:
                split = tf.gather(self._bitset, place)
                code = tf.cast(tf.clip_by_value(tf.where(split > 0, value, 0.0), 0.0, CODES), tf.int32)
                left = tf.where(split > 0, tf.gather(self._goes_left, split * (CODES + 1) + code), left)
            place = tf.gather(self._children, 2 * place + left)
        leaves = tf.reshape(tf.gather(self._value, place), [rows, trees // self._outputs, self._outputs])
        raw = tf.reduce_sum(leaves, axis=1) + self._base  # [batch, 1 or classes]
        if not self._is_number:
            raw = tf.sigmoid(raw) if self._outputs == 1 else tf.nn.softmax(raw)
        return tf.cast(raw, tf.float32)


def _rounded_down(thresholds: np.ndarray) -> np.ndarray:
    """Return the largest float32 number not above each float64 number: the same float32 numbers are below or equal."""
    with np.errstate(over="ignore"):
        rounded: np.ndarray = thresholds.astype(np.float32)
    return np.where(rounded.astype(np.float64) > thresholds, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def _category_splits(booster: Booster, predictors: Any, nodes: np.ndarray) -> tuple[tf.Tensor, tf.Tensor]:
    """Return which split of categories a node has, 0 for none, and for each split the codes that go left.

    Returns:
        int32 [nodes], and int32 [splits * (CODES + 1)], flat.
    """
    known, places = booster._bin_mapper.make_known_categories_bitsets()
    splits = np.cumsum(nodes["is_categorical"]) * nodes["is_categorical"]
    bits = np.concatenate([tree.raw_left_cat_bitsets for iteration in predictors for tree in iteration])
    table: np.ndarray = np.zeros((int(splits.max()) + 1, CODES + 1), np.int32)
    # Within a tree bitset_idx counts from 0: the trees' bitsets follow each other as their nodes do.
    starts = np.cumsum([0, *(len(tree.raw_left_cat_bitsets) for iteration in predictors for tree in iteration)])
    sizes = [len(tree.nodes) for iteration in predictors for tree in iteration]
    first_bits: np.ndarray = np.repeat(starts[:-1], sizes)
    for place in np.flatnonzero(nodes["is_categorical"]):
        node = nodes[place]
        left = _bits(bits[first_bits[place] + node["bitset_idx"]])
        seen = _bits(known[places[node["feature_idx"]]])
        table[splits[place]] = np.where(seen, left, node["missing_go_to_left"])
    return tf.constant(splits, tf.int32), tf.constant(table.ravel())


def _bits(words: np.ndarray) -> np.ndarray:
    """Return 256 bits of 8 uint32 words, lowest first."""
    return np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")


def fit(train: Rows, evaluate: Rows, columns: Columns, classes: int, seed: int) -> Trees:
    """Fit gradient boosting, as many iterations as improve the answers for the eval split.

    Args:
        train: Rows to learn from; of every class.
        evaluate: Rows that say when to stop.
        columns: Of these rows.
        classes: Of the label; 0 where it is a number.
        seed: Of the sample of rows by which scikit-learn makes bins of numbers.
    """
    # Here, for half a second of imports is not for trainings without trees.
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    booster = (HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor)(
        learning_rate=LEARNING_RATE,
        early_stopping=False,
        warm_start=True,
        categorical_features=list(range(columns.categories)) or None,
        random_state=seed,
    )
    progress = Progress("training")
    best, best_loss, iterations = 0, np.inf, 0
    most = max(AT_ONCE, min(MOST_ITERATIONS, MOST_TREES // max(1, classes - 1)))
    # All cores but one: OpenMP's threads wait for each other, and one without a core holds up all of them.
    with threadpool_limits(max(1, len(os.sched_getaffinity(0)) - 1)):
        while iterations < most and iterations - best < PATIENCE:
            iterations += AT_ONCE
            booster.set_params(max_iter=iterations).fit(train.values, train.labels)
            answers = booster.predict_proba(evaluate.values) if classes else booster.predict(evaluate.values)
            loss = float(losses_of(answers, evaluate.labels, classes).mean())
            if loss < best_loss:
                best, best_loss = iterations, loss
            if progress.due():
                progress.tell(f"trees, iteration {iterations} of at most {most}, loss on eval {loss:.4g}")
    logger.info("Trees: %d iterations, loss on the eval split %.4g.", best, best_loss)
    return Trees(columns, booster, best)


def losses_of(answers: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Return -log of each row's probability of the right class; of numbers the squared error; float64 [rows].

    Args:
        answers: Probabilities of the second of two classes, [rows, 1], or of all, [rows, classes]; numbers, [rows, 1].
        labels: Numbers of classes, or numbers, [rows].
        classes: Of the label; 0 where it is a number.
    """
    if not classes:
        return np.square(answers.ravel().astype(np.float64) - labels)
    if answers.shape[1] == 1:
        answers = np.concatenate([1 - answers, answers], axis=1)
    right = answers[np.arange(len(labels)), labels.astype(int)].astype(np.float64)
    return -np.log(np.clip(right, 1e-7, 1.0))
