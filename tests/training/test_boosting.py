"""Boosting stops where eval gets no better, and is given the columns that tell something."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline.training import ensemble
from pipeline.training.ensemble import Sample, fit_boosting, losses_of
from pipeline.training.features import Features
from pipeline.training.trees import Columns
from tests.training.mixed_table import FEATURES, booster_of, labels_of, score, table

pytestmark = pytest.mark.usefixtures("one_thread")


def test_iterations_end_where_eval_gets_no_better():
    rng = np.random.default_rng(0)
    parts = {}
    columns = Columns(Features({"numbers": 5}, {}))
    for seed, rows in ((1, 300), (2, 300)):
        features = {"numbers": table(rows, seed)["numbers"]}
        parts[seed] = Sample(columns.of(features), labels_of(score(table(rows, seed), rng), 2))
    trees, _ = fit_boosting(parts[1], parts[2], columns, 2, seed=0)
    every = booster_of(2, 0, learning_rate=0.05).set_params(max_iter=400).fit(parts[1].values, parts[1].labels)
    chosen = losses_of(trees.answer(tf.constant(parts[2].values)).numpy(), parts[2].labels, 2)
    assert chosen.mean() < losses_of(every.predict_proba(parts[2].values), parts[2].labels, 2).mean()


@pytest.mark.parametrize("classes", [0, 2, 3])
@pytest.mark.slow
def test_the_answers_by_which_trees_are_weighed_are_those_that_they_give_when_served(classes):
    rng = np.random.default_rng(0)
    train, evaluate = table(500, seed=1), table(200, seed=2)
    columns = Columns(FEATURES)
    columns.count_categories(train)
    parts = [Sample(columns.of(part), labels_of(score(part, rng), classes)) for part in (train, evaluate)]
    trees, answers = fit_boosting(*parts, columns, classes, seed=0)
    assert answers.shape == (200, max(1, classes - (classes == 2)))
    np.testing.assert_allclose(answers, trees(evaluate).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("classes", [0, 2, 3])
@pytest.mark.slow
def test_columns_that_tell_nothing_new_leave_the_trees_as_they_are(classes):
    """Add a constant, a copy of a number and a copy of a category."""
    answers = []
    for features in (
        FEATURES,
        Features({"fixed": 1, "numbers": 5, "same": 2}, {"a_word": 6, "word": 6, "codes": 400}, places={"codes": 2}),
    ):
        parts = []
        for seed, rows in ((1, 500), (2, 200)):
            part = table(rows, seed)
            values = score(part, np.random.default_rng(seed))
            part |= {"fixed": np.full((rows, 1), 3.0, np.float32), "a_word": part["word"]}
            part["same"] = part["numbers"][:, [0, 3]]
            parts.append((part, labels_of(values, classes)))
        columns = Columns(features)
        columns.count_categories(parts[0][0])
        trees, told = fit_boosting(
            *(Sample(columns.of(part), labels) for part, labels in parts), columns, classes, seed=0
        )
        answers.append(told)
        np.testing.assert_allclose(told, trees(parts[1][0]).numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(*answers)


def test_columns_that_differ_in_one_row_alone_both_tell():
    values = np.zeros((5_003, 5), np.float32)
    values[:, 0] = np.arange(5_003)
    values[4_999, 1] = values[5_001, 2] = values[5_001, 3] = 1.0  # as many rows are not among those looked at first
    assert ensemble._informative(values, 0) == [0, 1, 2]
    assert ensemble._informative(values, 3) == [0, 1, 2, 3]  # a category is not a number


def test_trees_of_columns_that_tell_nothing_answer_all_rows_alike():
    columns = Columns(Features({"fixed": 2}, {"word": 3}))
    features = {"fixed": np.ones((80, 2), np.float32), "word": np.ones((80, 1), np.int64)}
    columns.count_categories(features)
    sample = Sample(columns.of(features), np.tile([0, 0, 0, 1], 20))
    trees, answers = fit_boosting(sample, sample, columns, 2, seed=0)
    np.testing.assert_allclose(answers, 0.25, rtol=1e-6)
    np.testing.assert_allclose(trees({"fixed": np.zeros((3, 2), np.float32), "word": [[0], [1], [2]]}), 0.25, rtol=1e-6)
