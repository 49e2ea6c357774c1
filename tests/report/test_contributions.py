"""What the answers depend on, out of the report of ModelCheck."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pandas as pd
from tfx.types import standard_artifacts

from pipeline.components.artifacts import MODEL_REPORT
from pipeline.report import evaluation
from pipeline.report.blocks import Block, Figures, Text
from pipeline.runs.step import Step


def blocks(described: Any, folder: Path, report: dict[str, Any]) -> list[Block]:
    run = described({"train": pd.DataFrame({"a": [1, 2]})})
    assert evaluation.contributions(run) == [Text("The run has not come as far as checking a model.")]
    blessing = standard_artifacts.InfraBlessing()
    blessing.uri = str(folder)
    (folder / MODEL_REPORT).write_text(json.dumps(report))
    step = Step("ModelCheck", "ran", 1.0, {"blessing": [blessing]}, None)
    return evaluation.contributions(dataclasses.replace(run, steps=[*run.steps, step]))


def test_columns_are_shown_by_the_size_of_their_contributions(described, tmp_path):
    columns = {f"column {place}": [place / 100, 0.001] for place in range(40)}
    text, figures = blocks(described, tmp_path, {"explained": {"rows": 50, "columns": {**columns, "<b>": [2.0, 0.5]}}})
    assert isinstance(text, Text)
    assert "contributions to 50 answers, rows of the eval split: Shapley values by sampling" in text.text
    assert text.text.endswith("The chart has 30 of 41 columns.")
    assert isinstance(figures, Figures)
    (figure,) = figures.figures
    assert figure.table.header == ("Column", "Mean contribution to the probability", "Standard error")
    assert list(figure.table.rows[0]) == ["<b>", "2", "0.5"]
    assert list(figure.table.rows[1]) == ["column 39", "0.39", "0.001"]
    assert len(figure.table.rows) == 41
    assert "&lt;b&gt;" in figure.svg
    assert "<b>" not in figure.svg


def test_a_model_that_does_not_explain_its_answers_is_said_to_be_one(described, tmp_path):
    (text,) = blocks(described, tmp_path, {"explained": {}})
    assert isinstance(text, Text)
    assert text.text == "The model does not explain its answers; docs/serving.md says which do."
