"""The report's sections on the search and the training."""

import json
from types import SimpleNamespace

import pytest

from pipeline.report.training import training, tuning


@pytest.mark.parametrize("scores", [[0.2, 0.5, 0.9], [0.9, 0.5, 0.2]])
def test_the_report_marks_the_trial_chosen_that_the_tuner_has_chosen(tmp_path, scores):
    """TFX and Vizier's executor write the trials from best to worst, whether the objective is a loss or an AUC."""
    trials = [{"trial_id": str(place), "score": score, "units": 8 * place} for place, score in enumerate(scores, 1)]
    trials[2]["stopped"] = "below the median after epoch 1"
    (tmp_path / "tuner_results.json").write_text(json.dumps(trials))

    table, figures = tuning(SimpleNamespace(folder_of=lambda step, output: str(tmp_path)))

    assert [row[0] for row in table.rows] == ["1", "2", "3"]
    assert [row[-1] for row in table.rows] == ["chosen", "", "stopped below the median after epoch 1"]
    (figure,) = figures.figures
    assert "the chosen one has a ring" in figure.svg


def test_the_training_has_a_chart_for_each_metric_and_every_epoch_behind_it(tmp_path):
    (tmp_path / "history.csv").write_text("epoch,loss,val_loss,examples_per_second\n0,0.5,0.6,1000\n1,0.4,,1200\n")
    steps = "".join(f"{step},0,{1 / (step + 1)},0.01\n" for step in range(100))
    (tmp_path / "steps.csv").write_text(f"step,epoch,loss,learning_rate\n{steps}")

    figures, table = training(SimpleNamespace(folder_of=lambda step, output: str(tmp_path)))

    captions = ["loss by epoch", "examples per second by epoch", "loss by step", "learning rate by step"]
    assert [figure.caption for figure in figures.figures] == captions
    by_epoch, _, by_step, _ = (figure.table for figure in figures.figures)
    assert by_epoch.header == ("Epoch", "train", "eval")
    assert by_epoch.rows == [("1", "0.5", "0.6"), ("2", "0.4", "-")]
    assert len(by_step.rows) == 20
    assert len(table.rows) == 2


def test_the_training_says_where_its_time_went(tmp_path):
    (tmp_path / "history.csv").write_text("epoch,loss,val_loss\n0,0.5,0.6\n1,0.4,0.5\n")
    seconds = {"waiting for examples": 41.0, "computing <b>": 59.0}
    sentence = 'The model waits 41 % for decoding: training.cache="disk" would save about 35 %.'
    (tmp_path / "diagnosis.json").write_text(json.dumps({"sentence": sentence, "seconds": seconds}))

    said, parts, _, _ = training(SimpleNamespace(folder_of=lambda step, output: str(tmp_path)))

    assert said.text == sentence
    (chart,) = parts.figures
    assert chart.table.rows[0] == ("waiting for examples", "41.0 s", "41.0 %")
    assert "<b>" not in chart.svg
