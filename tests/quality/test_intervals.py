"""An interval has the value in it, of whatever counts."""

import pytest

from pipeline.quality.intervals import interval


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("metric", ["accuracy", "squared_correlation", "recall"])
def test_a_value_is_within_its_interval_to_the_last_digit(metric, value):
    for examples in range(4, 400):
        counts = {"false_positives": 0.0, "true_negatives": 5.0}
        counts |= {"true_positives": value * examples, "false_negatives": (1 - value) * examples}
        within = interval(
            metric, {metric: value, "example_count": examples, **(counts if metric == "recall" else {})}, 0.95
        )
        assert within
        assert 0 <= within[0] <= value <= within[1] <= 1, examples
