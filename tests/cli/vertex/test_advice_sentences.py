"""The sentences of advise below its table."""

from dataclasses import replace

import pytest

from pipeline.cli.vertex.advise import _notes, _sentences, _unpriced
from pipeline.costs.advice import Answer, Choice, Question
from pipeline.costs.rates import Rates
from tests.costs import synthetic
from tests.costs.shipped import PRICES

HERE = Answer(Choice("this machine"), 1, 100 * 3600, 100 * 3600)
RATES = Rates((), 0.0, (), (), "2026-01-01")


def answer(hours: float, name: str = "n1-standard-8", **values) -> Answer:
    return Answer(Choice(name), 1, hours * 3600, hours * 3600, **{"dollars": 2.0, "spot_dollars": 1.0} | values)


def said(*answers: Answer, here: Answer = HERE, spot: bool = False, within: float | None = None) -> str:
    return "\n".join(_sentences(list(answers), here, PRICES, spot, within))


@pytest.mark.parametrize(
    ("seconds", "deadline"), [(300, "5 min"), (5_400, "1.5 h"), (8 * 3_600, "8 h"), (60 * 86_400, "60 d")]
)
def test_a_deadline_that_none_reaches_is_said_as_people_say_times(seconds, deadline):
    text = said(answer(2_000), within=seconds)
    assert f"within {deadline}  none ends in time; the fastest is n1-standard-8: 2000 h" in text


def test_what_ends_in_time_only_if_the_prediction_holds_is_said():
    assert "within 8 h  n1-standard-8: 7.0 h (3.5 to 14), $2.00; it may end too late" in said(answer(7), within=28_800)
    assert "too late" not in said(answer(3), within=28_800)


def test_this_machine_is_named_where_it_is_the_fastest_and_in_time():
    here = Answer(Choice("this machine"), 1, 3600, 3600)
    assert "this machine does it in 60 min" in said(answer(2), here=here, within=7_200)
    assert "this machine" not in said(answer(2), here=here, within=1_800)
    assert "this machine" not in said(answer(0.5), here=here)


def test_who_is_advised_to_take_a_tpu_reads_what_image_it_needs():
    assert "A TPU needs an image of your own" in said(answer(1, "ct5lp-hightpu-1t"))
    assert "TPU" not in said(answer(1))


def test_a_missing_price_is_named_and_is_no_reason_for_a_smaller_batch():
    sentence = "configs/prices.toml has no price on demand of NVIDIA_L4 in europe-west1; it has that of us-central1"
    without = answer(1, "g2-standard-8", dollars=None, spot_dollars=None, unpriced=sentence)
    question = Question(1, 1, 1, "europe-west1", replace(RATES, unpriced=("Transform: no such price",)))
    assert said(without) == ""
    text = "\n".join(_unpriced([without], [answer(1, "a2-highgpu-1g")], question))
    assert f"no price: g2-standard-8: {sentence}\n" in text
    assert "left out, without a price in europe-west1: a2-highgpu-1g\n" in text
    assert text.endswith("not in the prices: Transform: no such price")
    assert said(Answer(Choice("n1-standard-8"), None)).startswith("no choice fits into memory: take a smaller batch")


def test_steps_that_were_measured_at_one_size_only_are_no_ground_for_far_more_rows():
    measured = synthetic.pipeline()
    at_one_size = replace(measured, steps={name: runs[:1] for name, runs in measured.steps.items()})

    def notes(of, rows: int) -> str:
        return "\n".join(_notes(of, Question(rows, 5, 64, "us-central1", RATES)))

    assert "The run had 10,000 rows, too few" in notes(at_one_size, 1_000_000)
    assert "for 1,000,000 rows all of it was multiplied" in notes(at_one_size, 1_000_000)
    assert "too few" not in notes(at_one_size, 10_000)
    assert "too few" not in notes(measured, 1_000_000)
