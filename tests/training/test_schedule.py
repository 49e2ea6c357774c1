"""The learning rate's way."""

from __future__ import annotations

import itertools

import pytest

from pipeline.training.schedule import LAST_SHARE, Schedule


def multiples(schedule: Schedule, steps: int) -> list[float]:
    return [float(schedule.multiple(step, steps_per_epoch=4)) for step in range(steps)]


def test_a_cosine_rises_to_the_peak_and_falls_to_the_last_share_of_it():
    schedule = Schedule("cosine", peak=2, warmup_epochs=1, epochs=5)
    rates = multiples(schedule, 21)
    assert rates[:5] == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0])
    assert all(after < before for before, after in itertools.pairwise(rates[4:]))
    assert rates[20] == pytest.approx(2 * LAST_SHARE)


def test_a_constant_rate_stays_as_it_is_on_one_device():
    assert multiples(Schedule("constant", peak=1, warmup_epochs=1, epochs=5), 20) == [1.0] * 20


def test_with_more_replicas_a_constant_rate_rises_to_their_number():
    assert multiples(Schedule("constant", peak=3, warmup_epochs=1, epochs=5), 6) == pytest.approx(
        [1.5, 2, 2.5, 3, 3, 3]
    )
