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
from pipeline.cli.vertex.advise import _notes, advise
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
def test_it_estimates_from_the_last_run_and_compares_machines(ask: Ask, first: Run) -> None:
    text = ask()
    assert f"  measured  run {first.run_id} on this machine, " in text
    assert " examples/s\n" in text
    table = rows(text)
    assert table["this machine"][1:] == ["-", "-"]
    assert table["the task, 8 vCPUs"][2] == "-"
    assert all(price.startswith("$") for price in table["n1-standard-8"][1:])
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
def test_only_the_machines_that_were_named_are_listed(ask: Ask) -> None:
    text = ask("--machine", "n1-standard-16", "--machine", "n2-standard-4")
    assert list(rows(text)) == ["machine", "this machine", "n1-standard-16", "n2-standard-4"]


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


def known(machine: str) -> Answer:
    return Answer(machine, (0.5, 1, 2), 2.0, 1.0)


def test_a_tpu_needs_an_image_of_ones_own() -> None:
    assert any("A TPU needs an image of your own" in note for note in _notes([known("cloud-tpu + 8 TPU_V2")]))
    assert not any("TPU" in note for note in _notes([known("n1-standard-8")]))
