"""Thresholds, intervals and sets that the eval split decides, for the answers that are served."""

import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import precision_score, recall_score
from sklearn.preprocessing import StandardScaler

from pipeline.settings.gates import AtLeast, Costs
from pipeline.training.answers import Answers, choose_threshold, interval, least_probability
from pipeline.training.errors import TrainingError


@pytest.fixture(scope="module")
def tumours() -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, float32, and labels, 0 or 1, of 369 rows that a model has not seen, by two of their columns."""
    columns, labels = load_breast_cancer(return_X_y=True)
    columns = StandardScaler().fit_transform(columns[:, [1, 4]])
    model = LogisticRegression().fit(columns[:200], labels[:200])
    return model.predict_proba(columns[200:])[:, 1].astype(np.float32), labels[200:]


def every_threshold(answers: np.ndarray) -> np.ndarray:
    """Thresholds below, between and above all answers."""
    known = np.unique(answers).astype(float)
    return np.array([known[0] - 1e-4, *(known[:-1] + known[1:]) / 2, known[-1] + 1e-4])


@pytest.mark.parametrize("wanted", [Costs(), Costs(1, 5), Costs(20, 1), Costs(1, 1e6), Costs(1e6, 1)])
def test_no_threshold_costs_less_than_the_chosen_one(tumours, wanted):
    answers, labels = tumours

    def cost(threshold: float) -> float:
        second = answers >= threshold
        return (
            wanted.false_positive * (second & (labels == 0)).sum()
            + wanted.false_negative * (~second & (labels == 1)).sum()
        )

    threshold, found = choose_threshold(wanted, answers, labels)
    assert cost(threshold) == min(map(cost, every_threshold(answers)))
    assert f"{cost(threshold) / len(answers):.3g} a row" in found


@pytest.mark.slow
@pytest.mark.parametrize("least", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("asked", ["precision", "recall"])
def test_what_is_asked_for_is_reached_and_nothing_reaches_more_of_the_other(tumours, asked, least):
    answers, labels = tumours
    scores = {"precision": precision_score, "recall": recall_score}
    of_asked, of_other = scores.pop(asked), *scores.values()

    def reached(threshold: float) -> float:
        second = (answers >= threshold).astype(int)
        enough = second.any() and of_asked(labels, second) >= least
        return of_other(labels, second) if enough else -1.0

    threshold, found = choose_threshold(AtLeast(**{asked: least}), answers, labels)
    assert reached(threshold) == max(map(reached, every_threshold(answers))) >= 0
    second = answers >= threshold
    assert f"precision {precision_score(labels, second):.3f}, recall {recall_score(labels, second):.3f}" in found


def test_the_chosen_threshold_lies_between_answers(tumours):
    answers, labels = tumours
    for wanted in (Costs(1, 5), AtLeast(precision=0.8), AtLeast(recall=0.9)):
        threshold, _ = choose_threshold(wanted, answers, labels)
        assert threshold == np.float32(threshold)  # what the graph compares with is what is written down
        assert np.abs(answers - threshold).min() > 0


def test_a_threshold_is_never_0_or_1():
    answers, labels = np.repeat(np.float32([0, 0.2, 1]), 4), np.tile([0, 1, 1, 0], 3)
    for wanted in (Costs(1, 1e6), Costs(1e6, 1), AtLeast(recall=0.6), AtLeast(precision=0.5)):
        threshold, _ = choose_threshold(wanted, answers, labels)
        assert threshold in (np.float32(0.1), np.float32(0.6))
    with pytest.raises(
        TrainingError, match="no threshold reaches a recall of 1 on the eval split: the highest is 0.667"
    ):
        choose_threshold(AtLeast(recall=1.0), answers, labels)


def test_of_equal_costs_the_threshold_of_true_probabilities_is_the_nearest():
    answers, labels = np.array([0.1, 0.2, 0.7, 0.8]), np.array([0, 1, 0, 1])
    assert choose_threshold(Costs(1, 1), answers, labels)[0] == pytest.approx(0.75)
    assert choose_threshold(Costs(1, 1.001), answers, labels)[0] == pytest.approx(0.15)
    assert choose_threshold(Costs(1, 1), np.array([0.3, 0.4]), np.array([0, 1]))[0] == pytest.approx(0.35)


def test_a_precision_that_no_threshold_reaches_is_refused():
    answers, labels = np.array([0.1, 0.6, 0.7, 0.8]), np.array([1, 0, 1, 0])
    with pytest.raises(TrainingError, match="no threshold reaches a precision of 0.9 on the eval split: the high"):
        choose_threshold(AtLeast(precision=0.9), answers, labels)
    with pytest.raises(TrainingError, match="the eval split has rows of one class only"):
        choose_threshold(AtLeast(recall=0.9), answers, np.ones(4))


def test_the_label_follows_from_the_threshold_or_is_the_most_probable():
    two = Answers(("no", "yes"), 0.25)(tf.constant([[0.2], [0.25], [0.9]]))
    assert two["label"].numpy().tolist() == [b"no", b"yes", b"yes"]
    assert two["probability"].shape == [3]
    several = Answers(("a", "b", "c"))(tf.constant([[0.2, 0.5, 0.3]]))
    assert several["label"].numpy().tolist() == [b"b"]
    assert several["probabilities"].shape == [1, 3]
    assert list(Answers(())(tf.constant([[7.0]]))) == ["prediction"]
    with pytest.raises(TrainingError, match=r"the model answers \[1, 2\] for a label of no classes; expected"):
        Answers(())(tf.constant([[7.0, 8.0]]))


@pytest.mark.parametrize("wanted", [Costs(1, 3), AtLeast(precision=0.6), AtLeast(recall=0.8)])
def test_a_row_that_weighs_2_is_a_row_that_is_there_twice(wanted):
    random = np.random.default_rng(5)
    labels = random.integers(0, 2, 300)
    answers = np.clip(0.3 * labels + random.normal(0.4, 0.2, 300), 0, 1)
    weights = np.where(labels == 1, 1, random.integers(0, 4, 300))
    repeated = choose_threshold(wanted, np.repeat(answers, weights), np.repeat(labels, weights))
    # In the middle between answers that count, or those of rows that weigh nothing.
    counted = weights > 0
    assert choose_threshold(wanted, answers[counted], labels[counted], weights[counted] / 7) == repeated
    assert choose_threshold(wanted, answers, labels) != repeated


def test_intervals_contain_as_many_new_labels_as_asked_for_also_of_skewed_errors():
    # 10,000 times: errors of 199 rows decide, and one more is within as often as asked for, as the theory has it.
    errors = np.random.default_rng(1).exponential(size=(10_000, 200))
    bounds = np.array([interval(np.zeros(199), row[:199], 0.9) for row in errors])
    within = (bounds[:, 0] <= errors[:, 199]) & (errors[:, 199] <= bounds[:, 1])
    assert within.mean() == pytest.approx(0.9, abs=3 * np.sqrt(0.9 * 0.1 / 10_000))
    # As often above as below.
    assert (errors[:, 199] < bounds[:, 0]).mean() == pytest.approx(0.05, abs=0.007)


@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_intervals_of_real_rows_contain_the_share_asked_for(coverage):
    columns, labels = load_diabetes(return_X_y=True)
    reached = []
    for seed in range(50):
        order = np.random.default_rng(seed).permutation(len(labels))
        train, fitting, rest = np.split(order, [150, 300])
        answers = LinearRegression().fit(columns[train], labels[train]).predict(columns)
        low, high = interval(answers[fitting], labels[fitting], coverage)
        errors = labels[rest] - answers[rest]
        reached.append(((low <= errors) & (errors <= high)).mean())
    # Of 142 rows, with limits by 150, one share has a deviation of 0.033; the mean of 50 that overlap one of 0.01.
    assert coverage - 0.02 < np.mean(reached) < coverage + 0.02 + 2 / 151


@pytest.mark.slow
@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_sets_of_real_rows_contain_the_share_asked_for(coverage):
    columns, labels = load_digits(return_X_y=True)
    reached, sizes = [], []
    for seed in range(10):
        train, fitting, rest = np.split(np.random.default_rng(seed).permutation(len(labels)), [100, 900])
        model = LogisticRegression(C=0.001).fit(columns[train] / 16, labels[train])  # unsure of nearly every row
        shares = model.predict_proba(columns / 16).astype(np.float32)
        least = least_probability(shares[fitting], labels[fitting], coverage)
        answers = Answers(tuple("0123456789"), least=least)(tf.constant(shares[rest]))
        sets = answers["label_set"].numpy()
        reached.append(sets[np.arange(len(rest)), labels[rest]].mean())
        sizes.append(sets.sum(axis=1))
        assert sets[np.arange(len(rest)), shares[rest].argmax(axis=1)].all()
    # 897 rows, limits by 800: one share has a deviation of 0.02 at 0.8, the mean of ten that overlap one of 0.01.
    assert np.mean(reached) == pytest.approx(coverage, abs=0.03)
    assert 1 < np.mean(sizes) < 9


def test_bounds_and_sets_are_served_beside_the_answers():
    numbers = Answers((), interval=(-2.0, 5.0))(tf.constant([[10.0], [-1.0]]))
    assert {name: value.numpy().tolist() for name, value in numbers.items()} == {
        "prediction": [10, -1],
        "prediction_low": [8, -3],
        "prediction_high": [15, 4],
    }
    # Of two classes the one answered is in the set, be it the less probable.
    two = Answers(("no", "yes"), 0.3, least=0.75)(tf.constant([[0.1], [0.35], [0.8]]))
    assert two["label_set"].numpy().tolist() == [[True, False], [False, True], [False, True]]
    unsure = Answers(("no", "yes"), least=0.2)(tf.constant([[0.5]]))
    assert unsure["label_set"].numpy().tolist() == [[True, True]]


def test_too_few_rows_for_a_coverage_are_refused_with_how_many_it_needs():
    interval(np.zeros(39), np.arange(39), 0.95)
    with pytest.raises(TrainingError, match=r"coverage of 0.95 needs 39 rows of the eval split, which has 38"):
        interval(np.zeros(38), np.arange(38), 0.95)
    least_probability(np.full((19, 1), 0.5), np.ones(19), 0.95)
    with pytest.raises(TrainingError, match=r"coverage of 0.95 needs 19 rows of the eval split, which has 18"):
        least_probability(np.full((18, 1), 0.5), np.ones(18), 0.95)
