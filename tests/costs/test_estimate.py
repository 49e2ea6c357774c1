"""Sums before and after a run: from the times of earlier runs, with an interval, and nothing made up."""

import datetime

import pytest

from pipeline.costs.estimate import (
    FROM_VERTEX,
    START,
    Estimate,
    Rate,
    Rates,
    Times,
    bill_of,
    dollars,
    estimate,
    from_dict,
    times_of,
    to_dict,
)
from pipeline.costs.prices import Machine, Price, Prices

NO_START = (0.0, 0.0, 0.0)
DAY = datetime.date(2026, 1, 1)
# A small table of the test's own: accelerators at the prices of the sums that are reckoned, machines for nothing.
SMALL = Prices(
    DAY,
    {"training": 0.0, "prediction": 0.0},
    {"n1-standard-8": Machine("n1-standard-8", 8, 30)},
    dict.fromkeys(("T4", "A100", "V100"), False),
    {
        **{name: {"here": Price(0.0)} for name in ("n1.vcpu", "n1.gib")},
        **{name: {"here": Price(price)} for name, price in (("T4", 0.35), ("A100", 2.70), ("V100", 2.48))},
    },
)


def rates_of(*rates: Rate, fee: float = 0.0) -> Rates:
    return Rates(rates, fee, (), (), DAY.isoformat())


def training(accelerator: str, count: int, low_hours: float, high_hours: float) -> Estimate:
    rate = Rate("Trainer", "job", accelerator, SMALL.per_hour("n1-standard-8", accelerator, count, region="here"))
    likely = (low_hours + high_hours) / 2
    times = Times("a training", {"Trainer": likely * 3600}, {}, low_hours / likely, high_hours / likely)
    return estimate(rates_of(rate), [times], NO_START)


def test_150_000_images_are_cheaper_on_a_t4_and_faster_on_an_a100() -> None:
    slow, fast = training("T4", 1, 8, 10), training("A100", 1, 2, 3)
    assert slow.price_between == pytest.approx((2.80, 3.50))
    assert fast.price_between == pytest.approx((5.40, 8.10))
    assert slow.price_between[1] < fast.price_between[0]
    assert fast.parts[0].hours_between[1] < slow.parts[0].hours_between[0]


def test_22_minutes_of_two_v100_cost_what_two_of_them_cost_for_22_minutes() -> None:
    assert training("V100", 2, 22 / 60, 22 / 60).price == pytest.approx(2 * 2.48 * 22 / 60)
    assert training("V100", 2, 22 / 60, 22 / 60).price == pytest.approx(1.8187, abs=1e-4)


def test_a_bill_of_training_units_is_units_times_their_price() -> None:
    units = bill_of(rates_of(Rate("Trainer", "job", "training units", 0.49)), {"Trainer": 1.79 * 3600})
    assert units.total == pytest.approx(0.8771)


def test_the_start_of_a_machine_and_the_interval_are_added_to_the_time_of_a_run_here() -> None:
    found = estimate(rates_of(Rate("Transform", "task", "m", 3600.0), fee=0.03), [Times("run a", {"Transform": 100})])
    (part,) = found.parts
    assert part.price == pytest.approx(START[1] + 100)
    assert part.price_between == pytest.approx((START[0] + 50, START[2] + 200))
    assert found.price == pytest.approx(0.03 + part.price)
    assert found.sources == ("run a",)


def test_the_time_of_a_watched_job_has_its_start_in_it_and_a_narrow_interval_on_the_same_machine() -> None:
    rate = Rate("Transform", "task", "m", 3600.0)
    watched = Times("job j", {"Transform": 100}, {"Transform task": "m"}, *FROM_VERTEX)
    (same,) = estimate(rates_of(rate), [watched]).parts
    assert (same.price, *same.price_between) == pytest.approx((100, 80, 125))
    (other,) = estimate(rates_of(Rate("Transform", "task", "larger", 3600.0)), [watched]).parts
    assert (other.price, *other.price_between) == pytest.approx((100, 50, 200))


def test_the_first_run_that_has_a_task_counts_and_its_source_is_named_once() -> None:
    rates = rates_of(Rate("Transform", "task", "m", 1.0), Rate("Trainer", "task", "m", 1.0))
    found = estimate(rates, [Times("job j", {"Trainer": 10}), Times("run a", {"Trainer": 99, "Transform": 10})])
    assert found.sources == ("run a", "job j")
    assert found.unknown == ()


def test_replicas_share_a_search_and_may_shorten_a_training() -> None:
    rate = Rate("Tuner", "job", "m", 3600.0, share=0.25, best_share=0.25)
    (part,) = estimate(rates_of(rate), [Times("run a", {"Tuner": 400})], NO_START).parts
    assert part.price == pytest.approx(100)
    rate = Rate("Trainer", "job", "m", 3600.0, best_share=0.5)
    (part,) = estimate(rates_of(rate), [Times("run a", {"Trainer": 400})], NO_START).parts
    assert (part.price, *part.price_between) == pytest.approx((400, 100, 800))


def test_a_task_that_no_run_has_shown_is_named() -> None:
    rates = rates_of(Rate("Transform", "task", "m", 1.0), Rate("Tuner", "task", "m", 1.0))
    found = estimate(rates, [Times("run a", {"Transform": 10})])
    assert found.gaps == ("no earlier run shows how long Tuner takes",)


def test_without_an_earlier_run_nothing_is_estimated() -> None:
    found = estimate(rates_of(Rate("Transform", "task", "m", 1.0), Rate("Report", "task", "m", 1.0)), [])
    assert found.parts == ()
    assert found.gaps == ("no earlier run shows how long it takes",)


def test_the_report_which_no_run_here_has_is_its_start() -> None:
    found = estimate(rates_of(Rate("Report", "task", "m", 3600.0)), [Times("run a", {"Transform": 10})])
    assert found.parts[0].price == pytest.approx(START[1])
    assert found.gaps == ()


def test_a_bill_has_the_tasks_that_were_executed_and_the_job_beside_the_task_that_waits() -> None:
    rates = rates_of(
        Rate("Transform", "task", "m", 1.0),
        Rate("Trainer", "task", "small", 0.1),
        Rate("Trainer", "job", "2 x large", 10.0),
        fee=0.03,
    )
    found = bill_of(rates, {"Trainer": 1800})
    assert [(line.part, line.cost) for line in found.lines] == [("task", 0.05), ("job", 5.0)]
    assert found.total == pytest.approx(5.08)


def test_a_bill_says_that_the_workers_of_dataflow_are_not_in_it() -> None:
    found = bill_of(rates_of(Rate("Transform", "dataflow", "Dataflow", 1.0)), {"Transform": 3600})
    assert found.lines == ()
    assert found.unpriced == ("the workers of Dataflow are not in it",)


def test_the_times_of_a_bill_are_those_of_its_tasks_and_what_they_ran_on() -> None:
    rates = rates_of(Rate("Trainer", "task", "small", 0.1), Rate("Trainer", "job", "2 x large", 10.0))
    times = times_of(bill_of(rates, {"Trainer": 60}), "the job j")
    assert times == Times(
        "the job j", {"Trainer": 60}, {"Trainer task": "small", "Trainer job": "2 x large"}, *FROM_VERTEX
    )


def test_a_bill_comes_back_from_a_record_as_it_was() -> None:
    found = bill_of(rates_of(Rate("Transform", "task", "m", 1.0), fee=0.03), {"Transform": 3600})
    assert from_dict(to_dict(found)) == found
    assert to_dict(found)["total"] == pytest.approx(1.03)


@pytest.mark.parametrize(
    ("amount", "text"), [(0.0, "$0.00"), (0.001, "<$0.01"), (0.8771, "$0.88"), (1234.5, "$1,234.50")]
)
def test_an_amount_is_shown_in_cents(amount: float, text: str) -> None:
    assert dollars(amount) == text
