"""The parts of a training's time."""

from types import SimpleNamespace

import pytest

from pipeline.training import history
from pipeline.training.history import Stopwatch


class Clock:
    """A clock that advances on request."""

    def __init__(self) -> None:
        self.now = 100.0

    def go_on(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(history, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_the_parts_add_up_to_the_whole_and_an_inner_part_is_not_counted_twice(clock):
    watch = Stopwatch()
    clock.go_on(0.25)
    with watch.measure("steps"):
        clock.go_on(0.5)
        with watch.measure("checkpoints"):
            clock.go_on(4.0)
        clock.go_on(1.0)
    clock.go_on(2.0)
    assert watch.seconds() == {"python": 2.25, "steps": 1.5, "checkpoints": 4.0}
    assert watch.times == {"steps": 1, "checkpoints": 1}


def test_a_part_ends_with_its_error_and_an_earlier_process_counts_too(clock):
    watch = Stopwatch()

    def fail() -> None:
        clock.go_on(0.5)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), watch.measure("steps"):
        fail()
    assert watch.part == "python"
    watch.add({"seconds": {"steps": 10.0, "waiting": 3.0}, "times": {"steps": 4}})
    assert watch.state() == {"seconds": {"python": 0.0, "steps": 10.5, "waiting": 3.0}, "times": {"steps": 5}}


def test_moved_seconds_keep_the_sum_and_are_no_more_than_there_are(clock):
    watch = Stopwatch()
    with watch.measure("steps"):
        clock.go_on(2.0)
    watch.move(0.5, "steps", "summing")
    assert watch.seconds() == {"python": 0.0, "steps": 1.5, "summing": 0.5}
    watch.move(9.0, "steps", "summing")
    assert watch.seconds() == {"python": 0.0, "steps": 0.0, "summing": 2.0}
