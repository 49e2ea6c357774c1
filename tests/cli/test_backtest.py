"""Which spans a window learns from and is tested on, and what cannot be backtested."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.cli.backtest import config_of_window, windows_of
from pipeline.errors import UserError
from pipeline.settings.config import Data, Tuning, load_config
from pipeline.settings.image_data import Images

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def spans(tmp_path: Path) -> Path:
    for number in (3, 9, 10, 11, 12):
        (tmp_path / f"span-{number}").mkdir()
        (tmp_path / f"span-{number}/some.csv").write_text("a,b\n1,2\n")
    return tmp_path


@pytest.mark.parametrize(
    ("last", "count", "expected"),
    [
        (2, 2, [[9, 10, 11], [10, 11, 12]]),
        (None, 2, [[3, 9, 10, 11], [3, 9, 10, 11, 12]]),
        (1, 3, [[9, 10], [10, 11], [11, 12]]),
        (3, 4, [[3, 9], [3, 9, 10], [3, 9, 10, 11], [9, 10, 11, 12]]),
    ],
)
def test_each_window_learns_from_as_many_spans_as_a_run_and_is_tested_on_the_next_one(spans, last, count, expected):
    assert windows_of(Data(str(spans), files="span-{SPAN}/*", last_spans=last), count) == expected


def test_of_data_that_are_tested_on_their_newest_span_a_window_reads_as_many_spans_as_a_run(spans):
    data = Data(str(spans), files="span-{SPAN}/*", last_spans=3, test_newest=True)
    assert windows_of(data, 2) == [[9, 10, 11], [10, 11, 12]]


def test_spans_after_the_last_one_that_counts_do_not_count(spans):
    assert windows_of(Data(str(spans), files="span-{SPAN}/*", until_span=10), 1) == [[9, 10]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"files": "*/some.csv"}, r'a backtest needs tables in spans, with "\{SPAN\}"'),
        ({"files": "span-{SPAN}/*", "images": Images()}, "a backtest needs tables in spans"),
        ({"files": "span-{SPAN}/*"}, r"5 windows need at least 6 spans; found 5 in .* \(3, 9, 10, 11, 12\)"),
    ],
)
def test_what_has_no_spans_for_the_windows_is_refused(spans, settings, message):
    with pytest.raises(UserError, match=message):
        windows_of(Data(str(spans), **settings), 5)


def test_a_window_uses_nothing_that_has_seen_its_test_span():
    flights = load_config(ROOT / "configs/flights.py")
    data = Data("data/spans", files="span-{SPAN}/*", last_spans=4)
    config = replace(flights, data=data, training=replace(flights.training, warm_start=True))
    of_window = config_of_window(config, [3, 9, 10])
    assert not of_window.training.warm_start
    assert (of_window.data.until_span, of_window.data.last_spans, of_window.data.test_newest) == (10, 3, True)
    with pytest.raises(UserError, match="a backtest cannot reuse a search"):
        config_of_window(replace(config, tuning=Tuning(mode="reuse")), [3, 9, 10])
