"""Predictions are exact where the machine follows the formulas, and bounded where it does not."""

import math

import pytest

from pipeline.costs.measured import StepRun, StepWork
from pipeline.costs.performance import (
    OF_BANDWIDTH,
    OF_CORES,
    OF_HOST_FOR_EXAMPLES,
    OF_MATRIX_UNITS,
    Hardware,
    Trainings,
    interpolated,
    line_of,
    line_through,
    reached,
    trainer_rest,
)
from pipeline.training.cache import SHARE_OF_MEMORY
from tests.costs.synthetic import (
    EVALUATION_ROW,
    INPUT_ROW,
    REST,
    by_cores,
    pipeline,
    speed,
    step,
    training,
)

HERE = Hardware(2, math.inf)
T4 = Hardware(8, 30 * 2**30, 1, 16 * 2**30, 320e9, reached({"float32": 8.1e12, "mixed_float16": 65e12}, "float32"))


@pytest.mark.parametrize("batch_size", [8, 16, 20, 100, 128, 200, 256, 1_000])
@pytest.mark.parametrize("cores", [1, 2, 4, 32])
def test_a_step_that_follows_the_formula_is_predicted_exactly(batch_size, cores):
    assert Trainings(training()).step_here(batch_size, cores) == pytest.approx(step(batch_size, cores))


@pytest.mark.parametrize("rows", [500, 1_000, 20_000, 10_000_000])
def test_a_step_of_the_graph_is_its_start_and_a_time_for_each_row(rows):
    assert line_of([StepRun(1_000, 3.0), StepRun(10_000, 12.0)]).at(rows) == pytest.approx(2 + rows / 1_000)


def test_one_run_of_a_step_is_scaled_in_proportion_to_its_rows():
    assert line_of([StepRun(1_000, 3.0)]).at(2_000) == pytest.approx(6.0)


def test_a_step_that_took_no_longer_on_more_rows_is_all_start():
    assert line_of([StepRun(1_000, 3.0), StepRun(10_000, 2.0)]).at(99_999) == pytest.approx(2.0)


def test_a_line_through_noisy_sizes_has_no_negative_start():
    line = line_through([(10, 0.5), (20, 2.5), (40, 5.0)])
    assert line.start == 0
    assert line.row > 0


def test_between_two_measured_sizes_nothing_else_counts():
    # A cache that is full from 64 on.
    points = [(16, 0.016), (32, 0.032), (64, 0.1), (128, 0.2)]
    assert interpolated(points, 96) == pytest.approx(0.15)
    assert interpolated(points, 24) == pytest.approx(0.024)


def test_cores_that_help_nothing_do_not_make_more_of_them_slower():
    slower = training(speeds=(speed(1), speed(1).__class__(2, tuple((s, 2 * t) for s, t in speed(1).steps), 1, 1, 1)))
    trainings = Trainings(slower)
    assert trainings.step_here(64, 32) == pytest.approx(trainings.step_here(64, 2))


def test_with_one_number_of_cores_more_of_them_save_nothing():
    assert Trainings(training(speeds=(speed(2),))).step_here(64, 32) == pytest.approx(step(64, 2))


def test_an_epoch_is_its_whole_steps_and_the_evaluation():
    trainings = Trainings(training())
    of_step = trainings.step(HERE, 100, 1)
    expected = 79 * step(100, 2) + 500 * by_cores(EVALUATION_ROW, 2)
    assert trainings.epoch(of_step, HERE, 100, 1, (7_999, 500)) == pytest.approx(expected)


def test_what_the_trainer_does_besides_its_epochs_comes_out_as_it_was_put_in():
    measured = pipeline()
    rest = trainer_rest(measured, Trainings(measured.training))
    assert (rest.start, rest.row) == (pytest.approx(REST[0]), pytest.approx(REST[1]))


def test_an_accelerator_is_bound_by_arithmetic_memory_launches_or_input():
    def limit(flops: float, bytes_: float, operations: int, batch_size: int = 128) -> str:
        work = tuple(StepWork(size, flops * size, bytes_ * size, operations) for size in (16, 256))
        return Trainings(training(work=work)).step(T4, batch_size, 1).limit

    assert limit(1e9, 1, 1) == "compute"
    assert limit(1, 1e8, 1) == "memory speed"
    assert limit(1, 1, 100_000) == "launching"
    assert limit(1, 1, 1) == "input"


def test_arithmetic_and_memory_of_an_accelerator_take_what_the_roofline_says():
    of_step = Trainings(training()).step(T4, 128, 1)
    assert of_step.compute == pytest.approx((1e6 + 128e8) / (8.1e12 * OF_CORES))
    assert of_step.memory == pytest.approx((1e6 + 128 * 5e4) / (320e9 * OF_BANDWIDTH))
    assert of_step.input == pytest.approx(128 * by_cores(INPUT_ROW, 8))


def test_float32_is_multiplied_in_matrix_units_where_they_take_it():
    tf32 = {"float32": 156e12, "mixed_bfloat16": 312e12}
    assert reached(tf32, "float32") == pytest.approx(156e12 * OF_MATRIX_UNITS)
    assert reached({"float32": 8.1e12}, "mixed_bfloat16") == pytest.approx(8.1e12 * OF_CORES)


def test_gradients_of_more_replicas_take_the_network():
    trainings = Trainings(training())
    assert trainings.step(HERE, 128, 1).all_reduce == 0
    # Two machines of 10 Gbit/s, of which half is reached, exchange each byte once.
    assert trainings.step(HERE, 128, 2).all_reduce == pytest.approx(10e6 / (10e9 / 8 / 2))
    assert trainings.step(HERE, 128, 4).all_reduce == pytest.approx(1.5 * 10e6 / (10e9 / 8 / 2))


def test_a_batch_that_does_not_fit_is_computed_in_parts_and_an_example_that_does_not_fit_not_at_all():
    card = Hardware(8, 30 * 2**30, 1, 1 * 2**30, 320e9, 1e12)
    trainings = Trainings(training())
    assert trainings.parts_that_fit(card, 128, 8_000) == 1
    assert trainings.parts_that_fit(card, 4_000, 8_000) == 8
    large = training(memory=tuple((size, size * 2**31) for size in (1, 2)))
    assert Trainings(large).parts_that_fit(card, 128, 8_000) is None


def test_where_the_system_does_not_tell_its_memory_a_batch_is_taken_to_fit():
    assert Trainings(training(memory=())).parts_that_fit(T4, 10**6, 8_000) == 1


def test_examples_that_cannot_be_kept_are_decoded_in_every_epoch():
    trainings, host = Trainings(training()), Hardware(2, 1e6, 1, 2**34, 320e9, 1e12)
    assert trainings.input_row(host, 100) == pytest.approx(by_cores(INPUT_ROW, 2))
    assert trainings.input_row(host, 100_000) > 4 * trainings.input_row(host, 100)


def test_the_share_of_the_hosts_memory_for_examples_is_that_of_the_training():
    assert OF_HOST_FOR_EXAMPLES == SHARE_OF_MEMORY
