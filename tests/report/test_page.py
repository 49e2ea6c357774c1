"""The page of a run in a browser, and pages of runs and data that one does not wish for."""

import dataclasses
import re
import shutil
import uuid
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.e2e.run import Run
from tests.hostile.mutations import TEXTS

SECTIONS = (
    "headline",
    "verdict",
    "graph",
    "evaluation",
    "importance",
    "contributions",
    "wrong",
    "training",
    "tuning",
    "data",
    "reproducibility",
)
SCREENSHOTS = Path(__file__).resolve().parent.parent.parent / "output/tests/report"
LARGEST = 3_000_000  # bytes


def report_of(clone: Path, run: Run) -> Path:
    found = re.findall(r"^report (.+)$", run.text, re.MULTILINE)
    assert run.text.rstrip().endswith(f"report {found[-1]}"), run.text
    return clone / found[-1]


@pytest.fixture
def opened(browser):
    """Opens a page with the network off; at the end nothing may have been asked for, and nothing gone wrong."""
    contexts, complaints = [], []

    def open_page(file: Path, **layout):
        context = browser.new_context(offline=True, **layout)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda one: None if one.url == file.as_uri() else complaints.append(one.url[:100]))
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [one for one in complaints if not one.startswith("data:")] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "settings"),
    [
        ("light", {"viewport": {"width": 1200, "height": 900}, "color_scheme": "light"}),
        pytest.param(
            "dark", {"viewport": {"width": 1200, "height": 900}, "color_scheme": "dark"}, marks=pytest.mark.long
        ),
        ("phone", {"viewport": {"width": 360, "height": 800}, "color_scheme": "light"}),
    ],
)
def test_the_report_of_a_run_is_whole_in_every_layout_and_asks_for_nothing(clone, first, opened, layout, settings):
    page = opened(report_of(clone, first), **settings)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{layout}.png", full_page=True)

    assert [one.get_attribute("id") for one in page.query_selector_all("section")] == list(SECTIONS)
    assert "could not be" not in page.inner_text("body")
    assert "blessed and pushed to" in page.inner_text("#verdict").lower()
    titles = [card.inner_text().split("\n")[0] for card in page.query_selector_all(".card")]
    assert titles == ["Verdict", "AUC", "Rows", "Duration"]
    for section in ("graph", "evaluation", "importance", "contributions", "training", "tuning", "data"):
        charts = page.query_selector_all(f"#{section} svg")
        assert charts, section
        for chart in charts:
            box = chart.bounding_box()
            assert box["width"] > 100, section
            assert box["height"] > 50, section
            assert chart.query_selector("path"), section
            assert chart.get_attribute("aria-label"), section
    # Nothing sticks out at the side: wide tables scroll by themselves.
    assert page.evaluate("document.documentElement.scrollWidth") <= settings["viewport"]["width"]
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    letters = page.evaluate("getComputedStyle(document.querySelector('svg text')).fill")
    brightness = [sum(map(int, re.findall(r"\d+", color)[:3])) for color in (background, letters)]
    assert (brightness[0] < brightness[1]) == (layout == "dark"), (background, letters)


@pytest.mark.slow
def test_a_chart_has_its_numbers_behind_it(clone, first, opened):
    page = opened(report_of(clone, first))
    numbers = page.locator("#evaluation figure details").first
    assert not numbers.locator("table").is_visible()
    numbers.locator("summary").click()
    assert numbers.locator("table").is_visible()


@pytest.mark.slow
def test_the_report_says_what_the_terminal_says(clone, first):
    html = report_of(clone, first).read_text()
    assert len(html) < LARGEST
    shown = re.search(r"^ overall +([\d.]+) ", first.text, re.MULTILINE)
    assert shown
    assert f'<td>auc</td><td class="numeric">{shown[1]}</td>' in html
    assert str(first.pushed_to) in html
    boosting = re.search(r"^Baselines, AUC: boosting ([\d.]+), ", first.text, re.MULTILINE)
    assert boosting
    assert boosting[1] in html
    assert re.search(r"(boosting|linear) has 0\.\d{4}", html)  # the better one, in the headline


@pytest.mark.slow
def test_artifacts_deleted_by_hand_leave_a_report_that_says_so(clone, first, tmp_path):
    """Of a copy, so that the others still have theirs."""
    from pipeline.report import training
    from pipeline.report.page import _made

    folder = next((clone / "output/flights/artifacts/Trainer/model_run").iterdir())
    copy = shutil.copytree(folder, tmp_path / "model_run")

    class Lost:
        def folder_of(self, step, output):
            return str(copy)

    kinds = [type(block).__name__ for block in training.training(Lost())]
    assert (kinds[0], kinds[-2:]) == ("Text", ["Figures", "Table"])
    (copy / "steps.csv").write_text("cut")
    (only,) = _made("Training", lambda: training.training(Lost()))
    assert only.text.startswith("This part could not be made: ")


@pytest.mark.slow
def test_the_page_of_a_failed_run_has_the_reason_and_the_data_so_far(described, opened):
    from pipeline.report.page import write

    frame = pd.DataFrame({"late": [0, 1] * 50, "amount": np.arange(100.0), "town": ["Rome", "$x_1$"] * 50})
    page = opened(write(described({"train": frame, "eval": frame})))
    assert "failed in DataGate" in page.inner_text("#verdict")
    assert "has not come as far as training" in page.inner_text("#training")
    assert len(page.query_selector_all("#data svg")) == 3
    assert "$x_1$" in page.inner_text("#data")


@pytest.mark.slow
def test_a_constant_column_is_a_sentence_and_no_empty_chart(described, opened):
    from pipeline.report.page import write

    frame = pd.DataFrame({"late": [0, 1] * 50, "year": [2013] * 100})
    later = frame.assign(year=2014)
    page = opened(write(described({"train": frame, "eval": frame})))
    assert "The same number in every row: year (2013)" in page.inner_text("#data")
    assert len(page.query_selector_all("#data svg")) == 1
    page = opened(write(described({"train": frame, "eval": later}, "later")))
    assert "every row" not in page.inner_text("#data")
    assert len(page.query_selector_all("#data svg")) == 2


@pytest.mark.slow
def test_long_names_and_wide_tables_stay_inside_and_legends_above_the_bars(described, opened):
    from pipeline.report.page import write

    names = [f"{'very ' * 12}long name {place}" for place in range(8)]
    frame = pd.DataFrame({"late": [0, 1] * 50, "x" * 80: (names * 13)[:100]})
    page = opened(write(described({"train": frame, "eval": frame})), viewport={"width": 360, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    chart = page.locator("#data svg").last
    frames = [text.bounding_box() for text in chart.locator("text").all()]
    for place, one in enumerate(frames):
        for other in frames[place + 1 :]:
            beside = one["x"] + one["width"] <= other["x"] + 1 or other["x"] + other["width"] <= one["x"] + 1
            assert beside or one["y"] + one["height"] <= other["y"] + 2 or other["y"] + other["height"] <= one["y"] + 2
    legend = max(text.bounding_box()["y"] for text in chart.get_by_text(re.compile("^(train|eval)$")).all())
    assert legend < min(text.bounding_box()["y"] for text in chart.get_by_text("…").all())


@pytest.mark.slow
def test_html_in_a_name_or_value_is_text(described, opened):
    from pipeline.report.page import write

    bad = "<script>document.title='gone'</script><img src=http://example.com/x>"
    frame = pd.DataFrame({"late": [0, 1] * 20, bad: [bad, "b\x00\x07"] * 20})
    page = opened(write(described({"train": frame})))
    assert page.title().startswith("flights, run a-run")
    assert page.query_selector_all("img, script") == []
    assert "<b>bold</b>" in page.inner_text("#verdict")
    assert "<script>" in page.inner_text("#data")


class Tags(HTMLParser):
    """Collects the tags of a page, each with its attributes' names."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[str, ...]] = set()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.found.add((tag, *(name for name, _ in attrs)))


@pytest.mark.slow
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(TEXTS.filter(str.strip), min_size=3, max_size=3, unique=True))
def test_no_name_or_value_whatever_it_is_adds_a_tag_to_the_page(described, names):
    from pipeline.report.page import write

    def tags(name: str, *values: str) -> set[tuple[str, ...]]:
        frame = pd.DataFrame({"late": [0, 1] * 20, name: [*values] * 20, "amount": np.arange(40.0)})
        page = Tags()
        page.feed(write(described({"train": frame}, uuid.uuid4().hex)).read_text(encoding="utf-8"))
        return page.found

    assert tags(*names) <= tags("a name", "one", "two") | tags("a name", "1", "2")


@pytest.mark.slow
def test_three_hundred_features_and_one_of_a_million_values_stay_under_three_megabytes(described, opened):
    from pipeline.report.page import write

    random = np.random.default_rng(1)
    columns = {f"feature_{place}": random.normal(size=200) for place in range(300)}
    many = {"id": [f"value {place}" for place in range(1_000_000)]}
    ended = described({"train": pd.DataFrame(columns), "eval": pd.DataFrame(columns), "test": pd.DataFrame(many)})
    file = write(ended)
    assert file.stat().st_size < LARGEST
    page = opened(file)
    text = page.inner_text("#data")
    assert "Charts of 24 of 301 features" in text
    assert "could not be" not in page.inner_text("body")


def test_a_label_of_one_class_only_leaves_the_curves_undefined():
    from sklearn.metrics import average_precision_score, roc_auc_score

    from pipeline.report.scoring import auc, curves_of

    random = np.random.default_rng(2)
    probabilities = random.integers(0, 20, 500) / 20  # with ties
    labels = (random.random(500) < probabilities).astype(float)
    assert auc(labels, probabilities) == pytest.approx(roc_auc_score(labels, probabilities), abs=1e-12)
    recalls, precisions = curves_of(labels, probabilities, "binary")["precision_recall"]
    area = float(np.sum(np.diff([0.0, *recalls]) * precisions))
    assert area == pytest.approx(average_precision_score(labels, probabilities), abs=1e-12)

    ones = curves_of(np.ones(500), probabilities, "binary")
    assert ones["roc"] is None
    assert ones["precision_recall"] is None
    assert ones["calibration"][1] == [1.0] * 10


def test_a_run_that_fails_after_the_push_says_that_it_pushed(described):
    from tfx.types import standard_artifacts

    from pipeline.report import overview
    from pipeline.runs.step import Step

    failed = described({"train": pd.DataFrame({"x": [1.0, 2.0]})})
    assert overview.verdict(failed)[0].text == "The run failed in DataGate; nothing was pushed."
    model = standard_artifacts.PushedModel()
    model.set_int_custom_property("pushed", 1)
    model.set_string_custom_property("pushed_destination", "serving/flights/1")
    for state, said in (("ran", "the model had been pushed to serving/flights/1"), ("cached", "nothing was pushed")):
        pusher = Step("Pusher", state, 1.0, {"pushed_model": [model]}, None)
        after = dataclasses.replace(failed, steps=[*failed.steps, pusher], failed=("Verdict", 0.1))
        assert overview.verdict(after)[0].text == f"The run failed in Verdict; {said}."
