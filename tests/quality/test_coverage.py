"""How often intervals and sets contain the label on the test split."""

import numpy as np
import pytest

from pipeline.quality.predictions import Covered

NUMBERS = {"prediction_low": np.array([0.0, 1.0, 2.0]), "prediction_high": np.array([4.0, 3.0, 4.0])}


def test_labels_within_and_widths_are_counted_over_batches():
    counts = Covered.of(np.array([[4.0], [0.5], [3.0]]), NUMBERS) + Covered.of(np.array([9.0, 2.0, 2.0]), NUMBERS)
    assert counts == Covered(rows=6, covered=4, size=16.0)
    assert counts.sentence(0.5, 40) == (
        "intervals for 50 % of the rows: 66.7 % reached on test (95 % interval 30.0 to 90.3 %), 2.667 wide on average"
    )


def test_labels_in_sets_and_classes_are_counted():
    sets = {"label_set": np.array([[True, True, False], [False, False, True]])}
    counts = sum([Covered.of(np.array([1, 0]), sets), Covered.of(np.array([2, 2]), sets)], Covered())
    assert counts == Covered(rows=4, covered=2, size=6.0, of_sets=True)
    assert counts.sentence(0.5, 40).endswith("1.5 classes on average")


@pytest.mark.parametrize(("fitted_on", "is_said"), [(10_000, True), (40, False)])
def test_less_than_asked_is_said_unless_the_rows_of_eval_may_have_decided_it_by_chance(fitted_on, is_said):
    sentence = Covered(rows=10_000, covered=8_800, size=1.0).sentence(0.9, fitted_on)
    assert sentence.endswith("that is less by more than chance, so test differs from eval") == is_said
