"""advise prints hours and prices from the last run here, and executes nothing."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.cli import command_line
from pipeline.cli.printing import Terminal
from pipeline.cli.terminal import Screen
from pipeline.cli.vertex import settings
from pipeline.cli.vertex.advise import _recommendation, advise
from pipeline.cli.vertex.arguments import parse_arguments
from pipeline.cli.vertex.commands import Session
from pipeline.costs.advice import Answer
from pipeline.errors import UserError, WrongArgument
from pipeline.settings.image_data import Images
from tests.e2e.run import Run

Ask = Callable[..., str]


@pytest.fixture
def ask(clone: Path, first: Run, tmp_path: Path) -> Ask:
    """Return a function that asks for advice in the clone with a run; it returns what is printed."""
    assert first.code == 0, first.text

    def ask(*argv: str, output: Path = clone / "output/flights", images: bool = False) -> str:
        arguments = parse_arguments(["advise", "--config", str(clone / "configs/small.py"), *argv], {})
        text = io.StringIO()
        screen = Screen(Terminal(file=text, width=100), tmp_path / "log")
        config = command_line.chosen_config(arguments, clone)
        if images:  # their speeds are published
            config = replace(config, data=replace(config.data, images=Images()))
        vertex = settings.read(arguments, clone)
        assert advise(Session(arguments, config, vertex, output, tmp_path, "now", screen)) == 0
        return text.getvalue()

    return ask


def rows(text: str) -> dict[str, list[str]]:
    """The cells of the table by machine."""
    lines = (line.split("  ") for line in text.splitlines())
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    return {line[0]: line[1:] for line in cells if len(line) == 4}


@pytest.mark.slow
def test_it_estimates_from_the_last_run_and_recommends_the_cheapest_in_time(ask: Ask, first: Run) -> None:
    text = ask("--within", "8h")
    assert f"  measured  run {first.run_id} on this machine, " in text
    assert " examples/s\n" in text
    table = rows(text)
    assert table["this machine"][1:] == ["-", "-"]
    assert table["the task, 8 vCPUs"][2] == "-"
    assert all(price.startswith("$") for price in table["n1-standard-8"][1:])
    assert "\ncheapest within 8 h: " in text
    assert max(map(len, text.splitlines()[:20])) <= 100


@pytest.mark.slow
def test_an_accelerator_is_unknown_for_tables_and_has_hours_and_prices_for_images(ask: Ask) -> None:
    text = ask()
    assert rows(text)["n1-standard-8 + 1 V100"] == ["unknown", "unknown", "unknown"]
    assert text.count("unknown: configs/prices.toml has no published training speed of accelerators for tables") == 1
    text = ask(images=True)
    assert all(cell[0] in "$0" for cell in rows(text)["n1-standard-8 + 1 V100"])
    assert rows(text)["n1-standard-8 + 1 T4"] == ["unknown", "unknown", "unknown"]


@pytest.mark.slow
def test_far_more_rows_than_the_run_had_are_a_warning_in_the_first_line(ask: Ask) -> None:
    more = ask("--rows", "1500000", "--epochs", "20")
    assert more.startswith("These times are extrapolated from ")
    assert more.splitlines()[0].endswith(" rows to 1,500,000; run on more rows.")
    assert "1,500,000 rows, at most 20 epochs" in more
    assert ask("--rows", "10000").startswith("flights: 10,000 rows, at most 2 epochs\n")


@pytest.mark.slow
def test_only_the_machines_that_were_named_are_listed_and_spot_prices_count_where_wanted(ask: Ask) -> None:
    text = ask("--machine", "n1-standard-16", "--machine", "n2-standard-4", "--spot")
    assert list(rows(text)) == ["machine", "this machine", "n1-standard-16", "n2-standard-4"]
    assert "\ncheapest: n" in text
    assert " price on spot: $" in text


@pytest.mark.slow
def test_an_unknown_machine_or_region_is_answered_with_what_there_is(ask: Ask) -> None:
    with pytest.raises(WrongArgument, match="no machine type 'n1-standrad-8'; the nearest is n1-standard-8"):
        ask("--machine", "n1-standrad-8")
    with pytest.raises(WrongArgument, match="has no prices of moon-north1; it has those of asia-"):
        ask("--region", "moon-north1")


@pytest.mark.slow
def test_without_a_finished_run_it_prints_how_to_start_one(ask: Ask, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no finished run below \S+ yet; start one: python \S*local_runner\.py"):
        ask(output=tmp_path)


def known(hours: float, machine: str = "n1-standard-8") -> Answer:
    return Answer(machine, (hours / 2, hours, hours * 2), 2.0, 1.0)


def test_the_sentence_says_what_may_be_late_and_what_no_machine_reaches() -> None:
    late = _recommendation([known(7)], False, 8)
    assert late == "cheapest within 8 h: n1-standard-8: 7.00 (3.50 to 14) h, price: $2.00. It may take longer."
    assert "longer" not in _recommendation([known(3)], False, 8)
    none = _recommendation([known(2_000)], True, 8)
    assert none.startswith(
        "No machine with a known time and price ends within 8 h. The fastest is n1-standard-8: 2,000 "
    )
    assert _recommendation([Answer("g2-standard-8", None)], False, None) == "No machine has a known time."


def test_a_recommended_tpu_names_the_image_that_it_needs() -> None:
    assert "A TPU needs an image of your own" in _recommendation([known(1, "cloud-tpu + 8 TPU_V2")], False, None)
    assert "TPU" not in _recommendation([known(1)], False, None)
