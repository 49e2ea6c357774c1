"""Which machines are named the cheapest, the fastest and the cheapest in time, and what is said about the others."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.costs import advice
from pipeline.costs.advice import CHOICES, JOB_START, TASK_START, Advisor, Answer, Choice, Question
from pipeline.costs.estimate import START, Times, estimate
from pipeline.costs.measured import StepRun, StepWork, TrainingMeasured, TrainingSpeed
from pipeline.costs.prices import Price, Prices, read_prices
from pipeline.costs.rates import Rates, run_rates
from pipeline.errors import UserError
from pipeline.settings.config import load_config
from pipeline.settings.machines import TASKS, Job, Machines, Resources
from pipeline.settings.target import Vertex
from tests.costs.synthetic import EPOCHS, REST, ROWS, STEPS, epochs, pipeline, training

ROOT = Path(__file__).resolve().parents[2]
TABLE = Machines({"default": Resources(4, 16), "Transform": Resources(8, 32), "Trainer": Resources(8, 30)})
VERTEX = Vertex("demo", "us-central1", "demo-bucket", "us-central1-docker.pkg.dev/demo/pipelines/p:1", machines=TABLE)
CONFIG = load_config(ROOT / "configs/flights.py")


def rates_of(machines: Machines, searching: bool = False) -> Rates:
    vertex = replace(VERTEX, machines=machines)
    return run_rates(CONFIG, vertex, read_prices(ROOT / "configs/prices.toml"), searching=searching, stored_gb=0.0)


QUESTION = Question(sum(ROWS.values()), EPOCHS, 128, "us-central1", rates_of(TABLE))


@pytest.fixture(scope="module")
def prices() -> Prices:
    return read_prices(ROOT / "configs/prices.toml")


@pytest.mark.parametrize("rows", [10_000, 20_000, 5_000_000])
@pytest.mark.parametrize("batch_size", [64, 128, 200])
def test_this_machine_is_predicted_exactly_at_other_rows_batches_and_epochs(prices, rows, batch_size):
    advisor = Advisor(pipeline(), prices, replace(QUESTION, rows=rows, batch_size=batch_size, epochs=7))
    trainer = REST[0] + REST[1] * rows + epochs(rows, batch_size, 2, 7)
    expected = sum(start + row * rows for start, row in STEPS.values()) + trainer
    assert advisor.here().seconds == pytest.approx(expected)
    assert advisor.steps_here()["Trainer"] == pytest.approx(trainer)


def test_a_step_that_works_on_a_sample_takes_no_longer_on_more_rows_than_that(prices):
    name, (start, row) = next(iter(STEPS.items()))
    measured = pipeline()
    runs = tuple(StepRun(rows, start + row * min(rows, 5_000)) for rows in (1_000, 10_000))
    sampled = replace(measured, steps={**measured.steps, name: runs}, most_rows={name: 5_000})
    for rows in (2_000, 10_000, 5_000_000):
        advisor = Advisor(sampled, prices, replace(QUESTION, rows=rows))
        assert advisor.steps_here()[name] == pytest.approx(start + row * min(rows, 5_000))


def test_a_job_of_few_rows_is_limited_by_its_start_and_one_of_many_by_what_it_does(prices):
    few, many = (
        Advisor(pipeline(), prices, replace(QUESTION, rows=rows, epochs=100)).answer(Choice("n1-standard-8"))
        for rows in (100, 10_000_000)
    )
    assert few.limit == "start-up"
    assert many.limit == "compute"
    assert few.seconds > JOB_START + TASK_START * len(pipeline().steps)


@pytest.mark.parametrize("job", [None, Job("n1-standard-8", "NVIDIA_TESLA_T4", 1)])
def test_the_price_is_the_one_that_check_estimates_for_the_same_machines_and_times(prices, job):
    rates = rates_of(replace(TABLE, training=job))
    advisor = Advisor(pipeline(), prices, replace(QUESTION, rates=rates))
    choice = Choice("n1-standard-8", "NVIDIA_TESLA_T4", 1) if job else advisor.choice_of(TABLE.task("Trainer"))
    answer = advisor.answer(choice)
    times = dict.fromkeys(TASKS, 0.0) | advisor.steps_here() | {"Trainer": answer.training_seconds - START[1]}
    found = estimate(rates, [Times("here", times)])
    # A task that waits is there before the machines that it waits for.
    before = START[1] / 3600 * next(r.per_hour for r in rates.rates if r.task == "Trainer" and r.part == "task")
    assert answer.dollars == pytest.approx(found.price + (before if job else 0))
    assert (answer.spot_dollars < answer.dollars) == bool(job)


def test_a_price_that_is_missing_is_said_and_the_time_is_still_there(prices):
    advisor = Advisor(pipeline(), prices, replace(QUESTION, region="asia-northeast1"))
    answer = advisor.answer(Choice("a3-highgpu-8g"))
    assert answer.dollars is None
    assert "no price on demand of NVIDIA_H100_80GB in asia-northeast1" in answer.unpriced
    assert answer.parts
    assert advisor.answer(Choice("n1-standard-8")).unpriced == ""


def test_the_machine_of_a_task_is_a_choice_with_its_accelerators(prices):
    advisor = Advisor(pipeline(), prices, QUESTION)
    for resources, expected in (
        (Resources(4, 16), Choice("e2-standard-4", job=False)),
        (Resources(8, 30, "NVIDIA_TESLA_T4", 2), Choice("n1-standard-8", "NVIDIA_TESLA_T4", 2, job=False)),
        (Resources(4, 16, "NVIDIA_L4", 1), Choice("g2-standard-4", job=False)),
    ):
        assert advisor.choice_of(resources) == expected


def test_a_training_that_does_not_fit_has_no_time_and_no_price_and_is_never_named(prices):
    measured = pipeline(training(memory=tuple((size, size * 2**40) for size in (16, 256))))
    answers = [Advisor(measured, prices, QUESTION).answer(choice) for choice in CHOICES]
    assert [answer.parts for answer in answers] == [None] * len(CHOICES)
    assert advice.cheapest(answers, spot=False) is None
    assert advice.fastest(answers, spot=False) is None


def answer(name: str, hours: float, price: float | None) -> Answer:
    return Answer(Choice(name), 1, hours * 3600, hours * 3600, dollars=price, spot_dollars=price)


def test_of_equal_prices_the_fastest_is_named_and_of_equal_times_the_cheapest():
    answers = [answer("a", 3, 2.0), answer("b", 2, 2.0), answer("c", 2, 3.0)]
    assert advice.cheapest(answers, False).choice.machine_type == "b"
    assert advice.fastest(answers, False).choice.machine_type == "b"
    same = [answer("x", 1, 1.0), answer("y", 1, 1.0)]
    assert advice.cheapest(same, False) is advice.fastest(same, False) is same[0]


def test_times_that_no_prediction_can_tell_apart_are_equal():
    assert advice.fastest([answer("dear", 1.0, 9.0), answer("cheap", 1.04, 1.0)], False).choice.machine_type == "cheap"


def test_a_deadline_that_none_reaches_names_none():
    assert advice.cheapest([answer("a", 3, 2.0)], False, within=2 * 3600) is None


def test_what_has_no_price_in_the_region_is_not_named():
    assert advice.cheapest([answer("a", 1, None), answer("b", 2, 9.0)], False).choice.machine_type == "b"


def test_replicas_are_advised_only_while_each_doubling_saves_time(prices):
    light = pipeline(training(gradient_bytes=100_000))
    long = Advisor(light, prices, replace(QUESTION, rows=1_000_000, epochs=500))
    alone = [long.answer(Choice("n1-standard-8"))]
    assert [each.choice.replicas for each in advice.with_replicas(alone, long)] == [2, 4]
    heavy = pipeline(training(gradient_bytes=4_000_000_000))
    bound = Advisor(heavy, prices, replace(QUESTION, rows=1_000_000, epochs=500))
    assert advice.with_replicas([bound.answer(Choice("n1-standard-8"))], bound) == []


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("n1-standard-8", Choice("n1-standard-8")),
        ("n1-standard-8+NVIDIA_TESLA_T4", Choice("n1-standard-8", "NVIDIA_TESLA_T4", 1)),
        ("n1-standard-8+NVIDIA_TESLA_T4x4", Choice("n1-standard-8", "NVIDIA_TESLA_T4", 4)),
        ("g2-standard-8+NVIDIA_L4", Choice("g2-standard-8")),
        ("ct5lp-hightpu-4t", Choice("ct5lp-hightpu-4t")),
    ],
)
def test_a_machine_is_named_with_what_is_added_to_it(prices, text, choice):
    assert advice.parse_choice(text, prices) == choice


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("n1-standrad-8", "no machine type 'n1-standrad-8'; the nearest is n1-standard-8"),
        ("n1-standard-8+NVIDIA_T4", "no accelerator 'NVIDIA_T4'; the nearest is NVIDIA_TESLA_T4"),
        ("n1-standard-8+NVIDIA_TESLA_T4x3", "n1-standard-8 takes 1 or 2 or 4 of NVIDIA_TESLA_T4, got 3"),
        ("a2-highgpu-1g+NVIDIA_TESLA_A100x2", "a2-highgpu-1g takes 1 of NVIDIA_TESLA_A100, got 2"),
        ("g2-standard-8+NVIDIA_L4x4", "g2-standard-8 takes 1 of NVIDIA_L4, got 4"),
        ("n2-standard-8+NVIDIA_TESLA_T4", "n2-standard-8 does not take the accelerator 'NVIDIA_TESLA_T4'"),
        ("../x; rm", "--machine must be TYPE"),
        ("", "--machine must be TYPE"),
    ],
)
def test_an_unknown_machine_is_answered_with_the_nearest(prices, text, sentence):
    with pytest.raises(UserError, match=sentence.replace("+", r"\+")):
        advice.parse_choice(text, prices)


def test_a_training_in_a_loop_of_its_own_is_not_compared(prices):
    with pytest.raises(UserError, match="a loop of its own"):
        Advisor(replace(pipeline(), training=None, why_not_measured="a loop of its own"), prices, QUESTION)


def test_150000_images_take_a_t4_8_to_10_hours_an_a100_2_to_3_and_which_to_take_depends_on_the_deadline(prices):
    """A known sum: T4 at $0.35 for 8 to 10 hours, or A100 at $2.70 for 2 to 3; here with the machines they stand in."""
    # 25 GFLOP for an image, and 46 epochs. Decoded they fit into neither host's memory: in each epoch the cores decode
    # them anew, 60 images/s each, which is what an A100 waits for.
    work = tuple(StepWork(size, 25e9 * size, 250e6 * size, 2_000) for size in (16, 64))
    steps = tuple((size, 0.5 * size) for size in (16, 32, 64))
    speeds = tuple(TrainingSpeed(cores, steps, 0.2, 1e-5, 1 / (60 * cores)) for cores in (1, 2))
    memory, megabyte = ((16, 2**29), (64, 2**31)), 1_000_000
    images = TrainingMeasured(64, "float32", speeds, work, memory, 50 * megabyte, 20 * megabyte, 224 * 224 * 3 * 4)
    epoch_here = 135_000 // 64 * 32 + 7_500 * 0.2
    measured = replace(
        pipeline(images),
        rows={"train": 135_000, "eval": 7_500, "test": 7_500},
        steps={"Trainer": (StepRun(150_000, epoch_here + 60, 1),)},
    )
    fixed = replace(
        prices,
        resources={
            **prices.resources,
            "NVIDIA_TESLA_T4": {"us-central1": Price(0.35, 0.11)},
            "NVIDIA_TESLA_A100": {"us-central1": Price(2.70, 0.80)},
        },
    )
    advisor = Advisor(measured, fixed, Question(150_000, 46, 64, "us-central1", QUESTION.rates))
    t4 = advisor.answer(Choice("n1-standard-8", "NVIDIA_TESLA_T4", 1))
    a100 = advisor.answer(Choice("a2-highgpu-1g"))
    cpu = advisor.answer(Choice("n1-standard-8"))
    assert 8 <= t4.seconds / 3600 <= 10
    assert 2 <= a100.seconds / 3600 <= 3
    answers = [cpu, t4, a100]
    assert advice.cheapest(answers, False) is t4
    assert advice.fastest(answers, False) is a100
    assert advice.cheapest(answers, False, within=4 * 3600) is a100
