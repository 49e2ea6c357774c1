"""The sentences of advise below its table."""

from dataclasses import replace

import pytest

from pipeline.cli.vertex.advise import _notes, _sentences
from pipeline.costs.advice import Answer, Choice, Question
from tests.costs import synthetic
from tests.costs.shipped import PRICES


@pytest.mark.parametrize(("seconds", "deadline"), [(300, "5 min"), (5_400, "1.5 h"), (8 * 3_600, "8 h")])
def test_a_deadline_that_none_reaches_is_said_as_people_say_times(seconds, deadline):
    answer = Answer(Choice("n1-standard-8"), 1, 40 * 3600, 40 * 3600, dollars=2.0, spot_dollars=1.0)
    said = _sentences([answer], PRICES, False, seconds)
    assert f"within {deadline}  none ends in time; the fastest is n1-standard-8: 40 h" in "\n".join(said)


def test_steps_that_were_measured_at_one_size_only_are_no_ground_for_far_more_rows():
    measured = synthetic.pipeline()
    at_one_size = replace(measured, steps={name: runs[:1] for name, runs in measured.steps.items()})

    def said(of, rows: int) -> str:
        return "\n".join(_notes(of, Question(rows, 5, 64, "us-central1", {})))

    assert "The run had 10,000 rows, too few" in said(at_one_size, 1_000_000)
    assert "for 1,000,000 rows all of it was multiplied" in said(at_one_size, 1_000_000)
    assert "too few" not in said(at_one_size, 10_000)
    assert "too few" not in said(measured, 1_000_000)
