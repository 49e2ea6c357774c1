"""Answers of an endpoint to the rows that the model check has kept: the same, but for digits and tolerance."""

import re

import numpy as np
import pytest

from pipeline.vertex.endpoints.observation import SmokeRows


def kept(**answer: object) -> SmokeRows:
    return SmokeRows([{"distance": 1}], [answer], 0.001)


LARGE = float(np.float32(1234567.1))  # 1234567.125


@pytest.mark.parametrize(
    ("expected", "answer"),
    [
        ({"probability": 0.5, "label": "late"}, {"probability": 0.5004, "label": "on time"}),
        (
            {"probabilities": [0.42673251032829285, 0.57], "label": "a"},
            {"probabilities": [0.4267325, 0.57], "label": "b"},
        ),
        ({"prediction": LARGE}, {"prediction": 1234567.1}),
        ({"prediction": LARGE}, 1234567.1),
        ({"words": ["a", "b"]}, {"words": ["a", "b"]}),
        # Chips round differently: GPUs and TPUs multiply with fewer digits than a CPU.
        ({"prediction": LARGE}, 1234600.5),
        ({"prediction": 2.5e-5}, 2.50001e-5),
        ({"probabilities": [0.9995, 0.0005], "label": "a"}, {"probabilities": [0.9991, 0.0009], "label": "a"}),
        ({"probability": 0.2, "label_set": [True, False]}, {"probability": 0.2001, "label_set": [True, True]}),
        ({"prediction": 800.0, "prediction_low": 0.1}, {"prediction": 800.1, "prediction_low": 0.2}),
    ],
)
def test_the_same_answer_with_other_digits_is_the_same(expected, answer):
    assert kept(**expected).difference(0, answer) is None


@pytest.mark.parametrize(
    ("expected", "answer", "difference"),
    [
        ({"probability": 0.5}, {"probability": 0.6}, "probability of row 0 is 0.6000 instead of 0.5000"),
        (
            {"probabilities": [0.4, 0.6]},
            {"probabilities": [0.4, 0.5]},
            r"probabilities of row 0 is \[0.4, 0.5\] instead of \[0.4, 0.6\]",
        ),
        ({"probabilities": [0.4, 0.6]}, {"probabilities": [0.4]}, r"probabilities of row 0 is \[0.4\] instead of"),
        ({"probability": 0.5}, {"probability": None}, "probability of row 0 is None instead of 0.5000"),
        ({"probability": 0.5}, {"score": 0.5}, "no probability in the answer to row 0"),
        ({"word": "a"}, {"word": "b"}, "word of row 0 is 'b' instead of 'a'"),
        ({"prediction": LARGE}, 1240000.0, "prediction of row 0 is 1240000.0000 instead of 1234567.1250"),
        ({"prediction": 2.5e-5}, 2.6e-5, "prediction of row 0 is 2.6e-05 instead of 2.5e-05"),
    ],
)
def test_another_answer_is_named(expected, answer, difference):
    assert re.match(difference, kept(**expected).difference(0, answer) or "")


def test_a_number_near_zero_may_differ_by_what_the_largest_answer_may():
    rows = SmokeRows([{}, {}], [{"prediction": 0.0}, {"prediction": 800.0}], 0.001)
    assert rows.difference(0, 0.5) is None
    assert "prediction of row 0 is 1.0000 instead of 0.0000" in (rows.difference(0, 1.0) or "")
