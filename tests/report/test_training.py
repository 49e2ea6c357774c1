"""The report's sections on the search and the training."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from pipeline.report.training import tuning


@pytest.mark.parametrize("scores", [[0.2, 0.5, 0.9], [0.9, 0.5, 0.2]])
def test_the_report_marks_the_trial_chosen_that_the_tuner_has_chosen(tmp_path, scores):
    """TFX and Vizier's executor write the trials from best to worst, whether the objective is a loss or an AUC."""
    trials = [{"trial_id": str(place), "score": score, "units": 8 * place} for place, score in enumerate(scores, 1)]
    (tmp_path / "tuner_results.json").write_text(json.dumps(trials))

    table, figures = tuning(SimpleNamespace(folder_of=lambda step, output: str(tmp_path)))

    assert [row[0] for row in table.rows] == ["1", "2", "3"]
    assert [row[-1] for row in table.rows] == ["chosen", "", ""]
    (figure,) = figures.figures
    assert "the chosen one has a ring" in figure.svg
