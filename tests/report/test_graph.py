"""The picture of the graph: which arrows it has, and the states of steps in it."""

import dataclasses

import pandas as pd
import pytest

from pipeline.report.overview import direct, graph
from pipeline.report.page import write

STEPS = {
    "ExampleGen": [],
    "StatisticsGen": ["ExampleGen"],
    "DataGate": ["StatisticsGen"],
    "Baseline": [],
    "Trainer": ["ExampleGen", "DataGate"],
    "Evaluator": ["ExampleGen", "Trainer", "Baseline"],
}


def test_an_arrow_that_follows_from_others_is_left_out():
    assert direct(STEPS)["Trainer"] == ["DataGate"]
    assert direct(STEPS)["Evaluator"] == ["Trainer", "Baseline"]


@pytest.mark.slow
def test_steps_that_failed_and_that_did_not_run_are_told_apart(described, browser):
    run = dataclasses.replace(described({"train": pd.DataFrame({"x": [1.0, 2.0]})}), graph=STEPS)
    (diagram,) = graph(run)
    nodes = {node.name: node for node in diagram.nodes}
    assert nodes["StatisticsGen"].state == "ran"
    assert nodes["DataGate"].state == "failed"
    assert nodes["Trainer"].state == "not run"
    assert [row[0] for row in diagram.table.rows] == ["StatisticsGen", "DataGate"]
    # What waits for nothing stands beside the step that it is first needed with.
    assert nodes["Baseline"].row == nodes["Trainer"].row

    page = browser.new_context(offline=True).new_page()
    page.goto(write(run).as_uri())
    boxes = [box.bounding_box() for box in page.query_selector_all("#graph rect[rx]")]
    assert len(boxes) == len(STEPS)
    for place, one in enumerate(boxes):
        for other in boxes[place + 1 :]:
            beside = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
            assert beside or one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"]
    assert "DataGate\nfailed, 0.5 s" in "\n".join(page.locator("#graph svg text").all_text_contents())


def test_without_a_graph_the_steps_stand_in_a_row(described):
    (diagram,) = graph(described({"train": pd.DataFrame({"x": [1.0, 2.0]})}))
    assert [(start.name, end.name) for start, end in diagram.arrows] == [("StatisticsGen", "DataGate")]
