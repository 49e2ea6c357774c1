"""Text from data at the terminal, in logs, in the server's description and in names of files: shown, never obeyed."""

import io
import json
import keyword
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.printing import LogFormatter, Terminal, assembled, say
from pipeline.cli.terminal import RunningLine, Screen, print_table
from pipeline.settings.names import plain_names
from tests.hostile.mutations import CASES, TEXTS

# What rich writes to a terminal itself: styles, and the movements by which a line is written anew.
OF_RICH = re.compile(r"\x1b\[[\d;]*[mAKH]|\x1b\[\?25[lh]|\r")


def obeyed(output: str) -> list[str]:
    """The signs that a terminal would not just show."""
    return [sign for sign in output if not sign.isprintable() and sign != "\n"]


@pytest.mark.slow
@CASES
@given(TEXTS, TEXTS)
def test_no_text_of_a_run_moves_the_terminal_s_cursor(tmp_path_factory, name, text):
    for colours in ("truecolor", None):
        file = io.StringIO()
        console = Terminal(file=file, force_terminal=bool(colours), color_system=colours, width=100)
        screen = Screen(console, tmp_path_factory.getbasetemp() / "x.log")
        screen.step_starts("Trainer")
        screen.progress(name, text)
        screen.line("Trainer", "failed", 1.0, text)
        screen.note(text)
        screen.finding("data", "failed", text, text)
        screen.warning(text)
        print_table(console, ("", name, "x"), [(text, name, text)])
        line = RunningLine(console)
        line.progress(name, text)
        console.print(line._render())
        line.start(text, name)
        console.print(line._render())
        line.stop()
        written = file.getvalue()
        assert not obeyed(OF_RICH.sub("", written) if colours else written)


@CASES
@given(TEXTS)
def test_what_is_printable_is_printed_as_it_is(text):
    file = io.StringIO()
    console = Terminal(file=file, width=10_000)
    console.print(text, soft_wrap=True)
    if text.isprintable():
        assert file.getvalue() == f"{text}\n"
        assert assembled(text).plain == text


@CASES
@given(TEXTS)
def test_commands_and_logs_say_it_without_its_control_codes(capsys, text):
    say(text)
    say(text, error=True)
    printed = capsys.readouterr()
    assert printed.out == printed.err
    record = logging.LogRecord("pipeline", logging.ERROR, "", 1, "%s failed: %s", ("Trainer", text), None)
    assert not obeyed(printed.out + LogFormatter("%(levelname)s %(message)s").format(record))


@CASES
@given(st.lists(TEXTS, unique=True, max_size=5))
def test_columns_of_any_names_have_names_of_their_own_in_a_signature(names):
    plain = plain_names(names)
    assert plain.keys() == set(names)
    assert len(set(plain.values())) == len(names)
    for name in plain.values():
        assert re.fullmatch(r"[A-Za-z]\w{0,99}", name, re.ASCII)
        assert not keyword.iskeyword(name)
    assert json.loads(json.dumps(plain)) == plain
