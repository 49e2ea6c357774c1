"""The learning rate's way."""

import itertools

import pytest

from pipeline.settings.training import Schedule, Training
from pipeline.training.steps import LAST_SHARE, rate_multiple


def multiples(schedule: Schedule, replicas: int, steps: int, scale: bool = True) -> list[float]:
    settings = Training(schedule=schedule, warmup_epochs=1, epochs=5, scale_learning_rate=scale)
    return [float(rate_multiple(settings, replicas, step, steps_per_epoch=4)) for step in range(steps)]


def test_a_cosine_rises_to_the_peak_and_falls_to_the_last_share_of_it():
    rates = multiples("cosine", 2, 21)
    assert rates[:5] == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0])
    assert all(after < before for before, after in itertools.pairwise(rates[4:]))
    assert rates[20] == pytest.approx(2 * LAST_SHARE)


def test_a_constant_rate_stays_as_it_is_on_one_device():
    assert multiples("constant", 1, 20) == [1.0] * 20
    assert multiples("constant", 3, 20, scale=False) == [1.0] * 20


def test_with_more_replicas_a_constant_rate_rises_to_their_number():
    assert multiples("constant", 3, 6) == pytest.approx([1.5, 2, 2.5, 3, 3, 3])
