"""Drift of predictions: of requests against those for the test split."""

import re
from typing import Any

import numpy as np
import pytest

from pipeline.quality import predictions
from pipeline.settings.gates import DataChecks
from pipeline.settings.tasks import ANSWERS, task_of

CLASSES = {"binary": ("no", "yes"), "multiclass": ("cat", "dog", "bird"), "regression": ()}
ROWS = 2_000


def answers(task: str, seed: int, shift: float) -> np.ndarray:
    """Return what a model answers, shifted by a part of the range."""
    random = np.random.default_rng(seed)
    if task == "binary":
        return np.clip(random.beta(2, 5, ROWS) + shift, 0, 1)
    if task == "regression":
        return random.normal(1_000, 50, ROWS) + 300 * shift
    chosen = random.choice(3, ROWS, p=[0.5 - shift, 0.3, 0.2 + shift])
    return np.eye(3)[chosen] * 0.7 + 0.1


def as_logged(task: str, values: np.ndarray) -> list[Any]:
    """Return answers as the server logs them: outputs by name."""
    return [{"label": "some", ANSWERS[task]: value} for value in values.tolist()]


def found(task: str, logged: list[Any], **limits: float) -> list[str]:
    of_requests = predictions.from_json(logged, CLASSES[task], False)
    mine, theirs = (
        predictions.statistics_of(predictions.values_of(one), CLASSES[task])
        for one in (of_requests, answers(task, 1, 0))
    )
    return [str(one) for one in predictions.drift(mine, theirs, DataChecks(**limits), "serving")]


@pytest.mark.parametrize("task", CLASSES)
def test_predictions_like_those_for_the_test_split_are_within_the_limit(task):
    assert found(task, as_logged(task, answers(task, 2, 0))) == []


@pytest.mark.parametrize(
    ("task", "measure"),
    [
        ("binary", r"Jensen-Shannon distance 0.\d+ from those for the test split \(mean 0.5\d+, there 0.2\d+\)"),
        ("multiclass", r"L-infinity distance 0.\d+ from those for the test split \((cat|bird): \d.*, there \d.*\)"),
        ("regression", r"Jensen-Shannon distance 0.\d+ from those for the test split \(mean 10\d\d.*\)"),
    ],
)
def test_shifted_predictions_cross_the_limit(task, measure):
    shifted = as_logged(task, answers(task, 2, 0.3))
    (only,) = found(task, shifted)
    assert only.startswith("predictions in serving: ")
    assert only.endswith("; at most 0.1")
    assert re.search(measure, only), only
    assert found(task, shifted, max_prediction_drift=0.9) == []


def test_the_limit_that_is_named_to_accept_it_may_be_set():
    of_requests, of_test = (
        predictions.statistics_of(predictions.values_of(np.full((100, 1), value)), ("no", "yes"))
        for value in (0.01, 0.99)
    )
    (only,) = predictions.drift(of_requests, of_test, DataChecks(), "serving")
    limit = float(re.search(r"max_prediction_drift=(\S+)\)", only.remedy)[1])
    assert list(predictions.drift(of_requests, of_test, DataChecks(max_prediction_drift=limit), "serving")) == []


def test_bare_answers_pairs_and_logits_are_the_same_predictions():
    expected = [0.25, 0.75]
    for logged, logits in (
        ([0.25, 0.75], False),
        ([[0.25], [0.75]], False),
        ([[0.75, 0.25], [0.25, 0.75]], False),
        ([{"probability": [-np.log(3)]}, {"probability": [np.log(3)]}], True),
    ):
        made = predictions.from_json(logged, CLASSES["binary"], logits)
        np.testing.assert_allclose(made.reshape(-1), expected)


@pytest.mark.parametrize("task", CLASSES)
def test_what_is_no_prediction_is_left_out(task):
    classes = CLASSES[task]
    assert task_of(len(classes)) == task
    good = answers(task, 2, 0)[:1].tolist()
    logged = [*good, None, "text", {"label": "yes"}, {}, [], [0.1] * 9, [None], float("nan")]
    for given, known in ((logged, 1), ([], 0), ([None], 0)):
        assert len(predictions.values_of(predictions.from_json(given, classes, False))) == known


@pytest.mark.parametrize("task", CLASSES)
def test_a_model_that_never_answers_a_number_fails_nothing(task):
    nothing = predictions.values_of(np.full((5, max(1, len(CLASSES[task]))), np.nan))
    statistics = predictions.statistics_of(nothing, CLASSES[task])
    assert statistics.datasets[0].num_examples == 0
    others = predictions.statistics_of(predictions.values_of(answers(task, 1, 0)), CLASSES[task])
    list(predictions.drift(others, statistics, DataChecks(), "serving"))
