"""The parts of a training's time."""

import time

import pytest

from pipeline.training.stopwatch import Stopwatch


def test_the_parts_add_up_to_the_whole_and_an_inner_part_is_not_counted_twice():
    started = time.perf_counter()
    watch = Stopwatch()
    with watch.measure("steps"):
        time.sleep(0.05)
        with watch.measure("checkpoints"):
            time.sleep(0.1)
    seconds = watch.seconds()
    assert seconds["checkpoints"] == pytest.approx(0.1, abs=0.04)
    assert seconds["steps"] == pytest.approx(0.05, abs=0.04)
    assert sum(seconds.values()) == pytest.approx(time.perf_counter() - started, abs=0.01)


def test_a_part_ends_with_its_error_and_an_earlier_process_counts_too():
    watch = Stopwatch()
    with pytest.raises(ValueError, match="broken"), watch.measure("steps"):
        raise ValueError("broken")
    assert watch.part == "python"
    watch.add({"steps": 10.0, "waiting": 3.0})
    seconds = watch.seconds()
    assert seconds["steps"] == pytest.approx(10, abs=0.1)
    assert seconds["waiting"] == 3.0
