"""Hours and prices on other machines follow from the times of a run here, published speeds and the table of prices."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.costs import advice
from pipeline.costs.advice import CHOICES, Advisor, Answer, Measured, Question, job_of, with_job
from pipeline.costs.estimate import START, Rates, Times, estimate, run_rates
from pipeline.costs.prices import Prices, read_prices
from pipeline.errors import UserError
from pipeline.settings.config import load_config
from pipeline.settings.machines import TASKS, Job, Machines, Resources
from pipeline.settings.target import Vertex
from tests.costs.shipped import only_shipped

ROOT = Path(__file__).resolve().parents[2]
TABLE = Machines({"default": Resources(4, 16), "Transform": Resources(8, 32), "Trainer": Resources(8, 30)})
VERTEX = Vertex("demo", "us-central1", "demo-bucket", "us-central1-docker.pkg.dev/demo/pipelines/p:1", machines=TABLE)
CONFIG = load_config(ROOT / "configs/flights.py")
# Five epochs of 8,000 examples take 40 s, the first one is slower; the Trainer takes 12 s in addition.
MEASURED = Measured(
    "a run",
    {"train": 8_000, "eval": 1_000, "test": 1_000},
    2,
    {"ExampleGen": 6.0, "Transform": 16.0, "Trainer": 52.0, "Evaluator": 7.0},
    (500.0, 1_000.0, 1_000.0, 1_010.0, 990.0),
)
QUESTION = Question(10_000, 5, "images", "float32", 5)


@pytest.fixture(scope="module")
def prices() -> Prices:
    return read_prices(ROOT / "configs/prices.toml")


def advisor(
    prices: Prices, measured: Measured = MEASURED, question: Question = QUESTION, region: str = "us-central1"
) -> Advisor:
    def rates(machines: Machines) -> Rates:
        vertex = replace(VERTEX, machines=machines, region=region)
        return run_rates(CONFIG, vertex, prices, searching="Tuner" in measured.seconds, stored_gb=0.0)

    return Advisor(measured, question, prices, rates)


def answer(prices: Prices, machine: str, **more) -> Answer:
    return advisor(prices, **more).answer(with_job(TABLE, job_of(machine, prices)))


def seconds(found: Answer, tasks: int = len(TASKS)) -> float:
    """The likely seconds of an answer without the starts of its machines."""
    assert found.hours
    return found.hours[1] * 3600 - START[1] * tasks


@pytest.mark.parametrize("rows", [5_000, 10_000, 1_000_000])
@pytest.mark.parametrize("epochs", [1, 5, 20])
def test_times_here_grow_with_rows_and_those_of_the_network_with_epochs(prices, rows, epochs):
    found = advisor(prices, question=replace(QUESTION, rows=rows, epochs=epochs)).here()
    growth = rows / 10_000
    assert found.hours
    assert found.hours[1] * 3600 == pytest.approx(growth * (6 + 16 + 7 + 12 + epochs * 8))
    assert found.dollars is None


def test_a_machine_with_as_many_cores_takes_as_long_and_its_interval_is_that_of_another_machine(prices):
    found = answer(prices, "n1-standard-2")
    assert seconds(found) == pytest.approx(29 + 52)
    least, _, most = found.hours
    assert least * 3600 == pytest.approx(START[0] * len(TASKS) + 0.5 * 81)
    assert most * 3600 == pytest.approx(START[2] * len(TASKS) + 2 * 81)


@pytest.mark.parametrize(("machine", "ratio"), [("n1-standard-32", 2 / 32), ("n1-standard-1", 2)])
def test_other_cores_change_the_training_by_nothing_or_in_proportion(prices, machine, ratio):
    found = answer(prices, machine)
    least, _, most = found.hours
    assert seconds(found) == pytest.approx(29 + 52 * ratio**0.5)
    assert least * 3600 == pytest.approx(START[0] * len(TASKS) + 0.5 * (29 + 52 * min(1, ratio)))
    assert most * 3600 == pytest.approx(START[2] * len(TASKS) + 2 * (29 + 52 * max(1, ratio)))


@pytest.mark.parametrize(
    ("machine", "precision", "speed"),
    [
        ("n1-standard-8+NVIDIA_TESLA_V100", "float32", 412),
        ("n1-standard-8+NVIDIA_TESLA_V100x2", "mixed_float16", 2 * 1270),
        ("a2-highgpu-1g", "auto", 909),
        ("cloud-tpu+TPU_V2x8", "auto", 8 * 540),
    ],
)
def test_an_accelerator_trains_images_as_much_faster_than_the_cores_here_as_is_published(
    prices, machine, precision, speed
):
    found = answer(prices, machine, question=replace(QUESTION, precision=precision))
    assert seconds(found) == pytest.approx(29 + 12 + 40 / (speed / (2 * 1.15)))
    assert found.missing == ()


@pytest.mark.parametrize(
    ("question", "machine", "sentence"),
    [
        (QUESTION, "g2-standard-8", "has no published training speed of NVIDIA_L4 in float32 for images"),
        (
            replace(QUESTION, precision="mixed_bfloat16"),
            "n1-standard-8+NVIDIA_TESLA_V100",
            "has no published training speed of NVIDIA_TESLA_V100 in mixed_bfloat16 for images",
        ),
        (
            replace(QUESTION, kind="tables"),
            "n1-standard-8+NVIDIA_TESLA_V100",
            "has no published training speed of accelerators for tables",
        ),
    ],
)
def test_without_a_published_speed_time_and_price_are_unknown(prices, question, machine, sentence):
    found = answer(prices, machine, question=question)
    assert (found.hours, found.dollars, found.spot_dollars) == (None, None, None)
    assert found.missing == (f"configs/prices.toml {sentence}",)


def test_a_run_on_an_accelerator_here_tells_nothing_about_other_machines(prices):
    for machine in ("n1-standard-8", "n1-standard-8+NVIDIA_TESLA_V100"):
        found = answer(prices, machine, measured=replace(MEASURED, accelerated=True))
        assert found.hours is None
        assert "the run trained on an accelerator of this machine" in found.missing[0]


def test_a_training_without_a_history_is_scaled_as_a_whole_and_unknown_on_accelerators(prices):
    measured, question = replace(MEASURED, examples_per_second=()), replace(QUESTION, epochs=10)
    assert seconds(answer(prices, "n1-standard-2", measured=measured, question=question)) == pytest.approx(29 + 104)
    found = answer(prices, "n1-standard-8+NVIDIA_TESLA_V100", measured=measured)
    assert found.missing == ("the run has no history of its training, so nothing is known about NVIDIA_TESLA_V100",)


@pytest.mark.parametrize(("most", "growth"), [(None, 100), (8_000, 1), (16_000, 2), (2_000, 1)])
def test_a_search_takes_no_longer_than_the_rows_that_it_learns_from(prices, most, growth):
    measured = replace(MEASURED, seconds={**MEASURED.seconds, "Tuner": 10.0})
    question = replace(QUESTION, rows=1_000_000, search_rows=most)
    without = answer(prices, "n1-standard-2", question=question)
    found = answer(prices, "n1-standard-2", measured=measured, question=question)
    assert seconds(found, len(TASKS) + 1) - seconds(without) == pytest.approx(10 * growth)


@pytest.mark.parametrize("job", [None, Job("n1-standard-8", "NVIDIA_TESLA_V100", 1)])
def test_the_price_is_the_one_that_check_estimates_for_the_same_machines_and_times(prices, job):
    machines = with_job(TABLE, job) if job else TABLE
    found = advisor(prices).answer(machines)
    trainer = 12 + 40 * 2 * 1.15 / 412 if job else 52 * 0.5
    rates = run_rates(CONFIG, replace(VERTEX, machines=machines), prices, searching=False, stored_gb=0.0)
    times = Times("here", {**dict.fromkeys(TASKS, 0.0), **MEASURED.seconds, "Trainer": trainer})
    assert found.dollars == pytest.approx(estimate(rates, [times]).price)
    assert (found.spot_dollars < found.dollars) == bool(job)


def test_the_price_on_demand_of_a_job_on_spot_machines_is_that_on_demand(prices):
    job = Job("n1-standard-8")
    usual, spot = (advisor(prices).answer(with_job(TABLE, replace(job, spot=spot))) for spot in (False, True))
    assert spot == usual


@only_shipped
def test_a_price_that_is_missing_is_named_and_the_time_is_still_there(prices):
    found = answer(prices, "a2-highgpu-1g", region="europe-west1")
    assert found.hours
    assert found.dollars is None
    assert "no price on demand of a2.vcpu in europe-west1" in found.missing[0]
    assert answer(prices, "n1-standard-8", region="europe-west1").dollars


def test_every_choice_is_a_job_and_the_machines_of_the_table_are_named_by_what_they_have(prices):
    labels = [advice.label(with_job(TABLE, job_of(text, prices))) for text in CHOICES]
    assert {"n1-standard-8", "n1-standard-8 + 1 T4", "a2-highgpu-1g + 1 A100", "ct5lp-hightpu-1t"} <= set(labels)
    assert advice.label(TABLE) == "the task, 8 vCPUs"
    accelerated = Machines({"Trainer": Resources(8, 30, "NVIDIA_TESLA_T4", 2)})
    assert advice.label(accelerated) == "the task, 8 vCPUs + 2 T4"
    assert advice.label(Machines(training=Job(replicas=2))) == "2 x n1-standard-8"


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("n1-standard-8", Job("n1-standard-8")),
        ("n1-standard-8+NVIDIA_TESLA_T4", Job("n1-standard-8", "NVIDIA_TESLA_T4", 1)),
        ("n1-standard-8+NVIDIA_TESLA_T4x4", Job("n1-standard-8", "NVIDIA_TESLA_T4", 4)),
        ("g2-standard-24", Job("g2-standard-24", "NVIDIA_L4", 2)),
        ("g2-standard-24+NVIDIA_L4", Job("g2-standard-24", "NVIDIA_L4", 2)),
        ("ct5lp-hightpu-4t", Job("ct5lp-hightpu-4t")),
    ],
)
def test_a_machine_is_named_with_what_is_added_to_it(prices, text, job):
    assert job_of(text, prices) == job


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("n1-standrad-8", "no machine type 'n1-standrad-8'; the nearest is n1-standard-8"),
        ("n1-standard-8+NVIDIA_T4", "no accelerator 'NVIDIA_T4'; the nearest is NVIDIA_TESLA_T4"),
        ("n1-standard-8+NVIDIA_TESLA_T4x3", "n1-standard-8 takes 1 or 2 or 4 of NVIDIA_TESLA_T4, got 3"),
        ("a2-highgpu-1g+NVIDIA_TESLA_A100x2", "a2-highgpu-1g takes 1 of NVIDIA_TESLA_A100, got 2"),
        ("n2-standard-8+NVIDIA_TESLA_T4", "n2-standard-8 does not take the accelerator 'NVIDIA_TESLA_T4'"),
        ("../x; rm", "--machine must be TYPE"),
        ("", "--machine must be TYPE"),
    ],
)
def test_an_unknown_machine_is_answered_with_the_nearest(prices, text, sentence):
    with pytest.raises(UserError, match=sentence):
        job_of(text, prices)
