"""Fit gradient boosting by scikit-learn, as many iterations as improve the answers for the eval split."""

import hashlib
import logging
import math
from collections import Counter
from typing import NamedTuple

import numpy as np

from pipeline.progress import Progress
from pipeline.training.control_groups import usable_cores
from pipeline.training.trees import Columns, Trees

logger = logging.getLogger("pipeline.training")

# The rate of a step, iterations before any are judged, and iterations without a better answer that end the search. Of
# many rows larger steps: half of them improve the answers as much.
SLOW, FAST, MANY_ROWS = (0.05, 150, 75), (0.1, 112, 38), 100_000
LEAST_ITERATIONS, MOST_ITERATIONS = 25, 500
# Each iteration grows a tree for each of several classes, and a request waits for all of them.
MOST_TREES = 2_000
# By which columns are compared first.
ROWS_TO_COMPARE = 1_000


class Sample(NamedTuple):
    """Rows as trees take them.

    Attributes:
        values: As ``Columns`` makes them, float32 [rows, columns].
        labels: Numbers of classes, or numbers; [rows].
        weights: How much each row counts, [rows]; None: all count the same.
    """

    values: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None = None


def fit(train: Sample, evaluate: Sample, columns: Columns, classes: int, seed: int) -> tuple[Trees, np.ndarray]:
    """Fit as many iterations as improve the answers for the eval split.

    Args:
        train: Rows to learn from; of every class.
        evaluate: Rows that say when to stop.
        columns: Of these rows.
        classes: Of the label; 0 where it is a number.
        seed: Of the sample of rows by which scikit-learn makes bins of numbers.

    Returns:
        The trees, and their answers for the rows of the eval split, float64 [rows, 1 or classes].
    """
    # Here, for half a second of imports is not for trainings without trees.
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    rate, at_first, patience = SLOW if len(train.values) < MANY_ROWS else FAST
    # Of equal columns trees take the first, but would compare all of them.
    informative = _informative(train.values, columns.categories)
    values, judged = train.values, evaluate.values
    if len(informative) < columns.count:
        logger.info(
            "Trees look at %d of %d columns; others equal these or have one value.", len(informative), columns.count
        )
        values, judged = values[:, informative], judged[:, informative]
    booster = (HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor)(
        learning_rate=rate,
        early_stopping=False,
        warm_start=True,
        categorical_features=[number for number, place in enumerate(informative) if place < columns.categories] or None,
        random_state=seed,
    )
    progress = Progress("trees")
    most = max(LEAST_ITERATIONS, min(MOST_ITERATIONS, MOST_TREES // max(1, classes - 1)))
    iterations, tried, best = min(most, at_first), 0, 0
    lowest = math.inf
    answers: np.ndarray = np.zeros(0)
    while tried < iterations:
        # All cores but one: OpenMP's threads wait for each other, and a busy core delays all of them.
        with threadpool_limits(max(1, int(usable_cores()) - 1)):
            booster.set_params(max_iter=iterations).fit(values, train.labels, sample_weight=train.weights)
        stages = booster.staged_predict_proba if classes else booster.staged_predict
        for number, stage in enumerate(stages(judged), 1):
            loss = np.average(losses_of(stage, evaluate.labels, classes), weights=evaluate.weights)
            if not best or loss < lowest:
                lowest, best, answers = loss, number, stage
        tried = iterations
        if progress.due():
            progress.tell(f"trees: iteration {tried} of at most {most}, loss on eval {lowest:.4g}")
        if tried - best < patience:
            # Twice as many, for scikit-learn sorts all rows and answers for them anew whenever it goes on.
            iterations = min(most, 2 * tried)
    logger.info("Trees: %d iterations, loss on the eval split %.4g.", best, lowest)
    answers = answers[:, 1:] if classes == 2 else answers.reshape(len(answers), -1)
    return Trees(columns, booster, best, informative), answers.astype(np.float64)


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


def _informative(values: np.ndarray, categories: int) -> list[int]:
    """Return the places of the columns, of [rows, columns], that are neither constant nor equal to an earlier one."""
    # Some rows distinguish most columns; reading one column of a large table takes as long as reading all.
    some = values[:: max(1, len(values) // ROWS_TO_COMPARE)]
    keys = [column.tobytes() for column in some.T]
    times = Counter(keys)
    first: dict[tuple[bool, bytes, bytes], int] = {}
    for place, (key, column) in enumerate(zip(keys, values.T, strict=True)):
        whole = b""
        if times[key] > 1 or (some[:, place] == some[0, place]).all():
            if (column == column[0]).all():
                continue
            whole = hashlib.sha256(column.tobytes()).digest()
        first.setdefault((place < categories, key, whole), place)
    return [*first.values()] or [0]
