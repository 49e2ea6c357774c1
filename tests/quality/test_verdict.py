"""Verdict of the gates on metrics."""

import math
import re

import numpy as np
import pytest
from scipy.stats import pearsonr
from sklearn.metrics import roc_auc_score

from pipeline.quality.intervals import interval
from pipeline.quality.verdict import GateResult, judge
from pipeline.settings import checks
from pipeline.settings.gates import BeatsBaseline, Evaluation, FairnessGate, Gate, SliceGate


def metrics(auc: float, positives: int, negatives: int, recall: float = 0.5) -> dict[str, float]:
    """Metrics of a slice; a tenth of the negatives are taken for positives."""
    hits, false_alarms = round(recall * positives), round(0.1 * negatives)
    return {
        "auc": auc,
        "recall": hits / positives,
        "precision": hits / (hits + false_alarms),
        "false_positive_rate": false_alarms / negatives,
        "example_count": positives + negatives,
        "true_positives": hits,
        "false_negatives": positives - hits,
        "false_positives": false_alarms,
        "true_negatives": negatives - false_alarms,
    }


SLICES = {
    "overall": metrics(0.71, 15_000, 35_000),
    "carrier=MQ": metrics(0.61, 700, 1_610, recall=0.3),
    "carrier=UA": metrics(0.72, 2_500, 7_500, recall=0.6),
    "carrier=OO": metrics(0.40, 2, 3),
}


def verdict(*several: Gate | SliceGate | FairnessGate, baseline: dict | None = None) -> GateResult:
    return judge(Evaluation(gates=several), SLICES, baseline)


def test_a_slice_below_its_floor_is_one_sentence_with_value_limit_and_count():
    found = verdict(Gate("auc", 0.67), SliceGate("auc", by="carrier", floor=0.65, confidence=0))
    assert not found.blessed
    assert found.failed == ("auc on carrier=MQ is 0.6100, floor 0.65 (2,310 examples)",)
    assert found.passed_over == ("auc on carrier=OO was not judged: 5 examples, minimum 100",)


def test_the_minimum_of_examples_passes_a_slice_over_and_says_so():
    found = verdict(SliceGate("auc", by="carrier", floor=0.65, min_examples=5_000))
    assert found.blessed
    assert "auc on carrier=MQ was not judged: 2,310 examples, minimum 5,000" in found.passed_over
    assert (found.unjudged, found.warnings) == ((), ())


def test_a_slice_that_two_gates_pass_over_is_said_once():
    found = verdict(SliceGate("recall", by="carrier", floor=0.1), FairnessGate("recall", by="carrier", max_gap=0.5))
    assert found.passed_over == ("recall on carrier=OO was not judged: 5 examples, minimum 100",)


@pytest.mark.parametrize(("before", "warned"), [(0.0337, True), (0.497, False), (0.69, False)])
def test_an_earlier_model_that_is_worse_than_none_is_a_warning(before, warned):
    settings, constant = Evaluation((Gate("auc", 0.6, max_drop=0.02),)), {"constant": {"auc": 0.5}}
    found = judge(settings, SLICES, {"overall": metrics(before, 15_000, 35_000)}, (), constant)
    assert found.blessed
    assert [sentence.split(" (")[0] for sentence in found.warnings] == [
        f"the earlier model is worse on these rows than the same answer for every row: auc {before:.4f}"
    ] * warned
    assert judge(settings, SLICES, None, (), constant).warnings == ()


def test_gates_on_slices_of_which_none_can_be_judged_are_named_in_a_warning():
    by_carrier = SliceGate("auc", by="carrier", floor=0.65, min_examples=20_000)
    found = verdict(Gate("auc", 0.6), by_carrier, FairnessGate("recall", by="carrier", max_gap=0.2, min_examples=5_000))
    assert found.blessed
    assert found.unjudged == ("auc by carrier", "recall by carrier")
    assert [sentence.split(" could")[0] for sentence in found.warnings] == [
        "the gate on auc by carrier",
        "the gate on recall by carrier",
    ]
    assert GateResult.from_json(found.to_json()) == found


def test_without_a_row_taken_for_the_second_class_there_is_no_precision_and_the_reason_is_said():
    values = {name: value for name, value in SLICES["carrier=MQ"].items() if name != "precision"}
    found = judge(Evaluation((SliceGate("precision", "carrier", floor=0.2),)), {"carrier=MQ": values}, None)
    assert found.blessed
    assert found.passed_over == (
        "precision on carrier=MQ is undefined for want of rows that the model takes for the second class "
        "(2,310 examples)",
    )


def test_a_slice_that_only_chance_may_have_put_below_the_floor_does_not_fail():
    low, high = interval("auc", SLICES["carrier=MQ"], 0.95)
    assert low < 0.61 < high
    clear = verdict(SliceGate("auc", by="carrier=MQ", floor=high + 0.001))
    assert f"95 % interval {low:.4f} to {high:.4f})" in clear.failed[0]
    chance = verdict(SliceGate("auc", by="carrier=MQ", floor=high - 0.001))
    assert chance.blessed
    assert chance.passed_over[0].endswith("; that may be chance")


def test_ceilings_and_metrics_of_which_less_is_better():
    found = verdict(Gate("false_positive_rate", ceiling=0.05))
    assert found.failed == ("false_positive_rate on all rows is 0.1000, ceiling 0.05 (50,000 examples)",)
    worse = {"overall": {**SLICES["overall"], "false_positive_rate": 0.02}}
    found = verdict(Gate("false_positive_rate", max_drop=0.01), baseline=worse)
    assert found.failed[0].startswith("false_positive_rate on all rows is 0.1000, 0.0800 worse than the 0.0200 of the")
    assert verdict(Gate("false_positive_rate"), baseline={"overall": SLICES["overall"]}).blessed


def test_a_model_worse_than_the_baseline_fails_by_slice_too_unless_by_chance():
    before = {"overall": metrics(0.71, 15_000, 35_000), "carrier=MQ": metrics(0.70, 700, 1_610)}
    found = verdict(Gate("auc"), SliceGate("auc", by="carrier=MQ", max_drop=0.02), baseline=before)
    assert len(found.failed) == 1
    assert "0.0900 worse than the 0.7000 of the last blessed model, at most 0.02" in found.failed[0]
    before["carrier=MQ"] = metrics(0.635, 700, 1_610)
    found = verdict(SliceGate("auc", by="carrier=MQ", max_drop=0.02), baseline=before)
    assert found.blessed
    assert "may be chance" in found.passed_over[0]
    assert verdict(SliceGate("auc", by="carrier=MQ", max_drop=0.02)).blessed


def test_the_largest_gap_between_the_values_of_a_column_is_fairness():
    found = verdict(FairnessGate("recall", by="carrier", max_gap=0.2))
    assert found.failed == (
        "gap of recall by carrier is 0.3000, at most 0.2: carrier=UA has 0.6000 (10,000 examples), "
        "carrier=MQ 0.3000 (2,310 examples)",
    )
    assert verdict(FairnessGate("recall", by="carrier", max_gap=0.31)).blessed
    only_one = verdict(FairnessGate("recall", by="carrier", max_gap=0.2, min_examples=5_000))
    assert only_one.blessed
    assert "gap of recall by carrier was not judged: fewer than two values are left" in only_one.passed_over


def test_of_rows_of_one_class_precision_is_undefined_for_want_of_the_other():
    values = {"precision": math.nan, "example_count": 40, "true_positives": 0, "false_negatives": 40}
    found = judge(Evaluation((Gate("precision", 0.5),)), {"overall": {**values, "false_positives": 0}}, None)
    assert found.failed == ("precision on all rows is undefined for want of rows of both classes (40 examples)",)


def test_what_is_undefined_fails_on_all_rows_and_is_passed_over_in_a_slice():
    undefined = {**SLICES["overall"], "auc": math.nan}
    slices = {"overall": undefined, "carrier=MQ": {**SLICES["carrier=MQ"], "auc": math.nan}}
    settings = Evaluation(gates=(Gate("auc", 0.5), SliceGate("auc", by="carrier", floor=0.5)))
    found = judge(settings, slices, None)
    assert found.failed == ("auc on all rows is undefined for want of rows of both classes (50,000 examples)",)
    assert found.passed_over[0].startswith("auc on carrier=MQ is undefined")


def test_a_slice_that_is_not_there_fails():
    assert verdict(SliceGate("auc", by="carrier=ZZ", floor=0.5)).failed == (
        "auc by carrier=ZZ: the test split has no such rows",
    )


def test_settings_and_verdicts_survive_the_way_through_a_component():
    settings = Evaluation(
        gates=(Gate("auc", 0.6), SliceGate("auc", "carrier", 0.5), FairnessGate("recall", "origin", 0.2)),
        slices=("dest",),
        baseline="none",
    )
    assert checks.from_json(Evaluation, checks.to_json(settings)) == settings
    found = GateResult(False, ("a",), ("b",), ("c",))
    assert GateResult.from_json(found.to_json()) == found


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.5])
@pytest.mark.parametrize("distance", [0.3, 0.8, 2.0])
def test_intervals_are_those_that_resampling_finds(share, distance):
    numbers = np.random.default_rng(1)
    labels = numbers.random(2_000) < share
    scores = numbers.normal(size=2_000) + distance * labels

    def measured(labels: np.ndarray, scores: np.ndarray) -> dict[str, float]:
        taken = scores > 0.5
        hits, false_alarms = (labels & taken).sum(), (~labels & taken).sum()
        return {
            "auc": roc_auc_score(labels, scores),
            "precision": hits / taken.sum(),
            "recall": hits / labels.sum(),
            "true_positives": hits,
            "false_positives": false_alarms,
            "false_negatives": labels.sum() - hits,
            "true_negatives": (~labels).sum() - false_alarms,
        }

    resamples = [numbers.integers(0, 2_000, 2_000) for _ in range(500)]
    found = [measured(labels[rows], scores[rows]) for rows in resamples]
    for metric in ("auc", "precision", "recall"):
        low, high = interval(metric, measured(labels, scores), 0.95)
        expected = np.quantile([one[metric] for one in found], [0.025, 0.975])
        width = expected[1] - expected[0]
        # Of an AUC near 1 ours is the wider one, by up to a half: rather that than blessing by chance.
        assert low < expected[0] + 0.15 * width, metric
        assert high > expected[1] - 0.15 * width, metric
        assert high - low < 1.5 * width, metric


@pytest.mark.parametrize("area", [0.0, 1.0])
def test_the_interval_of_the_best_and_the_worst_precision_recall_curve_is_narrow(area):
    values = {
        "auc_precision_recall": area,
        "true_positives": 30,
        "false_negatives": 0,
        "false_positives": 0,
        "true_negatives": 36,
    }
    low, high = interval("auc_precision_recall", values, 0.95)
    assert low <= area <= high
    assert high - low < 0.25


REGRESSION = {"overall": {"rmse": 50.0, "mae": 40.0, "squared_correlation": 0.5, "example_count": 400.0}}
MULTICLASS = {"overall": {"accuracy": 0.8, "log_loss": 0.6, "example_count": 400.0}}


def test_of_errors_lower_is_better_and_their_limits_are_in_the_unit_of_the_label():
    gates = Evaluation(gates=(Gate("rmse", ceiling=45.0, max_drop=2.0), Gate("squared_correlation", floor=0.4)))
    before = {"overall": {**REGRESSION["overall"], "rmse": 47.0}}
    assert judge(gates, REGRESSION, before).failed == (
        "rmse on all rows is 50.0000, ceiling 45 (400 examples)",
        "rmse on all rows is 50.0000, 3.0000 worse than the 47.0000 of the last blessed model, "
        "at most 2 (400 examples)",
    )
    assert judge(Evaluation(gates=(Gate("accuracy", floor=0.75),)), MULTICLASS, None).blessed
    assert judge(Evaluation(gates=(Gate("rmse", ceiling=55.0),)), REGRESSION, None).blessed


def test_slices_of_numbers_and_of_several_classes_are_given_the_benefit_of_chance():
    small = {"rmse": 50.0, "mae": 40.0, "squared_correlation": 0.5, "example_count": 120.0}
    slices = {**REGRESSION, "sex=female": small}
    near = judge(Evaluation(gates=(SliceGate("rmse", by="sex", ceiling=48.0),)), slices, None)
    assert near.blessed
    assert "that may be chance" in near.passed_over[0]
    assert not judge(Evaluation(gates=(SliceGate("rmse", by="sex", ceiling=40.0),)), slices, None).blessed


SIMPLE = {"constant": {"auc": 0.5}, "linear": {"auc": 0.69}, "boosting": {"auc": 0.708}}


def test_a_model_must_beat_the_simple_ones_by_a_margin():
    gates = Evaluation((BeatsBaseline("auc"), BeatsBaseline("auc", "linear", margin=0.03)))
    found = judge(gates, SLICES, None, simple_models=SIMPLE)
    assert found.failed == (
        "auc on all rows is 0.7100 and does not beat the 0.6900 of the baseline 'linear' by more than 0.03",
    )
    assert judge(Evaluation((BeatsBaseline("auc", "linear"),)), SLICES, None, simple_models=SIMPLE).blessed


def test_of_errors_the_lower_beats_the_higher_and_equal_does_not_beat():
    gates = Evaluation((BeatsBaseline("rmse", "linear"), BeatsBaseline("mae", "linear")))
    simple = {"constant": {"rmse": 70.0}, "linear": {"rmse": 50.5, "mae": 40.0}}
    assert judge(gates, REGRESSION, None, simple_models=simple).failed == (
        "mae on all rows is 40.0000 and does not beat the 40.0000 of the baseline 'linear'",
    )


def test_a_baseline_that_such_data_has_not_fails_its_gate():
    gates = Evaluation((BeatsBaseline("accuracy"),))
    found = judge(gates, MULTICLASS, None, simple_models={"constant": {"accuracy": 0.4}})
    assert found.failed == ("accuracy: there is no baseline 'boosting' on such data, measured: constant",)


@pytest.mark.parametrize(
    ("slices", "constant", "sentence"),
    [
        ({"overall": metrics(0.503, 300, 700)}, {"auc": 0.5}, "auc on all rows is 0.5030 (1,000 examples, 95 %"),
        (MULTICLASS, {"accuracy": 0.79}, "accuracy on all rows is 0.8000 (400 examples, 95 %"),
        (REGRESSION, {"rmse": 51.0}, "rmse on all rows is 50.0000 (400 examples, 95 %"),
        (SLICES, {"auc": 0.5}, None),
        (MULTICLASS, {"accuracy": 0.6}, None),
        (REGRESSION, {"rmse": 70.0}, None),
    ],
)
def test_a_model_that_chance_may_have_made_better_than_one_answer_for_all_is_said_to_have_learnt_nothing(
    slices, constant, sentence
):
    metric = next(iter(constant))
    found = judge(Evaluation((Gate(metric),)), slices, None, simple_models={"constant": constant})
    assert found.blessed  # a sentence for a person; BeatsBaseline is the gate
    if sentence is None:
        assert not found.notes
    else:
        assert found.notes[0].startswith(f"nothing shows that the model has learnt: {sentence}")
        assert f"and the same answer for every row has {constant[metric]:.4f}; look for columns" in found.notes[0]


AUC = Evaluation((Gate("auc"),))
MORE_COLUMNS = "look for columns that say more about the label"


def test_who_learns_from_the_same_columns_is_named_instead_of_a_lack_of_columns():
    simple = {"constant": {"auc": 0.5}, "linear": {"auc": 0.52}, "boosting": {"auc": 0.7}}
    (note,) = judge(AUC, {"overall": metrics(0.503, 300, 700)}, None, simple_models=simple).notes
    assert MORE_COLUMNS not in note
    assert "the baseline 'boosting' has 0.7000 with the same columns: train longer or at another learning rate" in note


def test_a_model_that_is_worse_than_a_constant_by_more_than_chance_is_a_warning_with_its_likely_cause():
    found = judge(
        Evaluation((Gate("auc"),)), {"overall": metrics(0.31, 300, 700)}, None, simple_models={"constant": {"auc": 0.5}}
    )
    (warning,) = found.warnings
    assert not found.notes
    assert re.fullmatch(
        r"the model is worse than the same answer for every row: auc on all rows is 0.3100 \(.*\), and that has 0.5000"
        r"; look whether run_fn or the signature .* numbers the classes in another order than label.classes",
        warning,
    )


def test_no_lack_of_columns_is_supposed_where_the_cause_is_known():
    found = judge(
        Evaluation((Gate("auc"),)),
        {"overall": metrics(0.503, 300, 700)},
        None,
        (),
        {"constant": {"auc": 0.5}},
        refused=True,
    )
    assert not found.notes


@pytest.mark.parametrize(
    ("slices", "simple_models", "sentence"),
    [
        (
            MULTICLASS,
            {"linear": {"accuracy": 0.86}, "boosting": {"accuracy": 0.88}},
            r"the baseline 'boosting' is better: accuracy on all rows is 0.8000 \(400 .*\), and it has 0.8800; "
            r"search .* BeatsBaseline\(\"accuracy\", than=\"boosting\"\) keeps such a model back",
        ),
        (REGRESSION, {"linear": {"rmse": 40.0}}, r"the baseline 'linear' is better: rmse on all rows is 50.0000 \(400"),
        (MULTICLASS, {"linear": {"accuracy": 0.81}, "boosting": {"accuracy": 0.7}}, None),  # may be chance
        (REGRESSION, {"boosting": {"rmse": 49.0}}, None),
        # Neither has a mistake.
        ({"overall": {"accuracy": 1.0, "example_count": 40.0}}, {"linear": {"accuracy": 1.0}}, None),
    ],
)
def test_a_simple_model_that_is_better_by_more_than_chance_is_named(slices, simple_models, sentence):
    (metric,) = next(iter(simple_models.values()))
    constant = {metric: 0.1 if metric == "accuracy" else 99.0}
    found = judge(Evaluation((Gate(metric),)), slices, None, simple_models={"constant": constant, **simple_models})
    assert found.blessed
    assert [bool(re.match(sentence, note)) for note in found.notes] == [True] if sentence else not found.notes


def test_gates_are_the_same_after_their_way_to_the_evaluator():
    gates = Evaluation(
        (
            BeatsBaseline("auc", "constant", 0.1),
            BeatsBaseline("auc"),
            Gate("auc", 0.6),
            SliceGate("auc", "carrier", floor=0.5),
            FairnessGate("auc", "origin", max_gap=0.1),
        )
    )
    assert checks.from_json(Evaluation, checks.to_json(gates)) == gates


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BeatsBaseline("recall"), "BeatsBaseline.metric must be one of auc, .*, got 'recall'"),
        (lambda: BeatsBaseline("auc", "boost"), "BeatsBaseline of auc: than must be one of constant, linear, boosting"),
        (lambda: BeatsBaseline("auc", margin=-1), "BeatsBaseline of auc: margin must be a number of 0 or more"),
        (lambda: Evaluation((BeatsBaseline("auc"), BeatsBaseline("auc"))), "two BeatsBaselines of auc"),
    ],
)
def test_a_wrong_comparison_with_a_baseline_is_refused(make, message):
    with pytest.raises(checks.ConfigError, match=message):
        make()


def test_intervals_of_numbers_cover_as_often_as_they_say():
    random = np.random.default_rng(0)
    covered = dict.fromkeys(("rmse", "mae", "squared_correlation"), 0)
    # The squared correlation of x + e with x is 1/2.
    truth = {"rmse": 1.0, "mae": math.sqrt(2 / math.pi), "squared_correlation": 0.5}
    for _ in range(400):
        x, errors = random.normal(size=(2, 200))
        values = {
            "rmse": float(np.sqrt((errors**2).mean())),
            "mae": float(np.abs(errors).mean()),
            "squared_correlation": float(np.corrcoef(x, x + errors)[0, 1] ** 2),
            "example_count": 200.0,
        }
        for metric in covered:
            low, high = interval(metric, values, 0.95)
            covered[metric] += low <= truth[metric] <= high
    assert all(0.92 <= count / 400 <= 0.98 for count in covered.values()), covered


def test_the_interval_of_a_squared_correlation_is_the_square_of_scipys():
    x, noise = np.random.default_rng(1).normal(size=(2, 40))
    found = pearsonr(x, x + 2 * noise)
    values = {"squared_correlation": found.statistic**2, "example_count": 40.0}
    expected = found.confidence_interval(0.9)
    assert expected.low > 0
    assert interval("squared_correlation", values, 0.9) == pytest.approx((expected.low**2, expected.high**2), rel=1e-6)


def test_the_interval_of_the_calibration_covers_1_as_often_as_it_says():
    random, covered = np.random.default_rng(0), 0
    predicted = random.uniform(0.25, 0.35, 500)  # as good as they can be: labels are drawn with these probabilities
    for _ in range(400):
        labels = random.random(500) < predicted
        counts = {"true_positives": labels.sum(), "false_negatives": 0, "false_positives": 0}
        values = {"calibration": predicted.sum() / labels.sum(), "true_negatives": (~labels).sum(), **counts}
        low, high = interval("calibration", values, 0.95)
        covered += low <= 1 <= high
    assert 0.92 <= covered / 400 <= 0.98


def test_weights_are_no_evidence_of_their_own():
    counts = {"true_positives": 40.0, "false_negatives": 10.0, "true_negatives": 30.0, "false_positives": 20.0}
    values = {"recall": 0.8, "auc": 0.7, "example_count": 100.0, **counts}
    for metric in ("recall", "auc"):
        expected = interval(metric, values, 0.95)
        in_another_unit = {**values, **{name: 1000 * count for name, count in counts.items()}, "effective_count": 100.0}
        assert interval(metric, in_another_unit, 0.95) == pytest.approx(expected)
        few = interval(metric, {**in_another_unit, "effective_count": 20.0}, 0.95)
        assert few[0] < expected[0] < expected[1] < few[1]
    errors = {"rmse": 2.0, "example_count": 100.0}
    assert interval("rmse", {**errors, "effective_count": 25.0}, 0.95) == pytest.approx(
        interval("rmse", {**errors, "example_count": 25.0}, 0.95)
    )
