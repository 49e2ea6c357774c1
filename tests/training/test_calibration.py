"""Probabilities that mean what they say, in TensorFlow as in scikit-learn."""

import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from pipeline.training.answers import Answers, Linear, fit_calibration

SLOPES = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8)


def overconfident(rows: int, slope: float = 3.0, offset: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return answers [rows, 1] whose log-odds are `slope` times the true ones and `offset` too high, and labels."""
    random = np.random.default_rng(1)
    odds = random.normal(size=rows)
    labels = (random.uniform(size=rows) < 1 / (1 + np.exp(-odds))).astype(int)
    return (1 / (1 + np.exp(-(slope * odds + offset))))[:, np.newaxis].astype(np.float32), labels


def calibrated(calibrate, answers: np.ndarray) -> np.ndarray:
    return calibrate(tf.constant(answers, tf.float32)).numpy()


def test_a_sigmoid_finds_the_slope_and_the_offset_that_were_wrong():
    answers, labels = overconfident(100_000)
    calibrate, found = fit_calibration("sigmoid", answers, labels)
    assert calibrate.slope == pytest.approx(1 / 3, abs=0.01)
    assert calibrate.offset == pytest.approx(-1 / 3, abs=0.02)
    assert "(sigmoid, a slope of 0.33" in found
    losses = [log_loss(labels, part[:, 0]) for part in (answers, calibrated(calibrate, answers))]
    assert f"was {losses[0]:.4g}, and is {losses[1]:.4g}" in found
    assert losses[1] < losses[0]


def test_isotonic_answers_equal_those_of_scikit_learn_within_between_and_beyond_the_rows():
    answers, labels = overconfident(3_000)
    calibrate, _ = fit_calibration("isotonic", answers, labels)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(answers[:, 0].astype(np.float64), labels)
    asked = np.concatenate([answers[:, 0], np.linspace(0, 1, 5_001, dtype=np.float32)])
    np.testing.assert_allclose(calibrated(calibrate, asked[:, np.newaxis])[:, 0], theirs.predict(asked), atol=1e-6)


def test_the_same_answer_for_every_row_becomes_their_share():
    answers, labels = np.full((100, 1), 0.9, np.float32), np.arange(100) % 4 == 0
    calibrate, _ = fit_calibration("isotonic", answers, labels.astype(int))
    np.testing.assert_allclose(calibrated(calibrate, np.array([[0.1], [0.9]])), 0.25)
    sigmoid, _ = fit_calibration("sigmoid", answers, labels.astype(int))
    assert calibrated(sigmoid, answers)[0, 0] == pytest.approx(0.25, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sigmoid", "isotonic", "temperature"])
def test_a_row_that_weighs_2_is_as_two_rows(kind):
    answers, labels = overconfident(400)
    weights = np.where((answers[:, 0] > 0.5) == labels, 4, 1)  # rows answered rightly count more
    repeated, _ = fit_calibration(kind, np.repeat(answers, weights, axis=0), np.repeat(labels, weights))
    weighted, _ = fit_calibration(kind, answers, labels, weights / 7)
    equal, _ = fit_calibration(kind, answers, labels)
    expected = calibrated(repeated, answers)
    np.testing.assert_allclose(calibrated(weighted, answers), expected, atol=0.02)
    assert np.abs(calibrated(equal, answers) - expected).max() > 0.03


@pytest.mark.parametrize("kind", ["sigmoid", "temperature"])
def test_rows_that_are_all_answered_rightly_do_not_make_a_model_boundlessly_sure(kind):
    answers = np.repeat([0.2, 0.8], 15)[:, np.newaxis].astype(np.float32)
    calibrate, _ = fit_calibration(kind, answers, np.repeat([0, 1], 15))
    assert 0.8 < calibrated(calibrate, np.array([[0.8]]))[0, 0] < 0.97


def test_a_temperature_brings_new_rows_of_several_classes_near_their_best_loss_and_changes_no_label():
    columns, labels = load_digits(return_X_y=True)
    fitting, new = slice(900, 1_350), slice(1_350, None)
    shares = LogisticRegression(C=1e4, max_iter=500).fit(columns[:900] / 16, labels[:900]).predict_proba(columns / 16)
    shares = shares.astype(np.float32)
    calibrate, found = fit_calibration("temperature", shares[fitting], labels[fitting])
    after = calibrated(calibrate, shares[new])
    assert "(temperature, a slope of 0." in found  # the model is too sure
    np.testing.assert_allclose(after.sum(axis=1), 1, rtol=1e-5)
    assert (after.argmax(axis=1) == shares[new].argmax(axis=1)).all()
    losses = {slope: log_loss(labels[new], calibrated(Linear(slope), shares[new])) for slope in SLOPES}
    assert log_loss(labels[new], after) < min(losses.values()) + 0.03 < log_loss(labels[new], shares[new])


def test_labels_and_sets_follow_from_calibrated_probabilities():
    answers = Answers(("no", "yes"), 0.5, calibrate=Linear(1.0, -2.0), least=0.3)
    served = answers(tf.constant([[0.7], [0.95]]))
    odds = np.log([0.7 / 0.3, 0.95 / 0.05]) - 2
    np.testing.assert_allclose(served["probability"], 1 / (1 + np.exp(-odds)), rtol=1e-5)
    assert served["label"].numpy().tolist() == [b"no", b"yes"]
    assert served["label_set"].numpy().tolist() == [[True, False], [False, True]]
