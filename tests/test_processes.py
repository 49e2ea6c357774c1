"""Work in processes of its own: results, errors, questions, and the end of each."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="processes are forked on Linux, with two cores"
)
START = """
import logging, os, signal, subprocess, sys, threading, time
from pipeline.errors import UserError, frames_of
from pipeline.processes import ask, cpu_seconds, processes

class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")

def fails(how):
    try:
        raise Odd("this", "that")
    except Odd as cause:
        raise how("too large") from cause

def sleeps(seconds, file=None):
    time.sleep(seconds)
    if file:
        open(file, "w").close()
    return os.getpid()

def meets(mine, other):
    open(mine, "w").close()
    while not os.path.exists(other):
        time.sleep(0.05)
    return os.getpid()

def starts(file):
    return subprocess.run(["sh", "-c", f"echo $$ > {file}.new; mv {file}.new {file}; exec sleep 3600"])

def burns(seconds, also=()):
    if also:
        subprocess.run([sys.executable, "-c", f"import time\\nwhile time.process_time() < {seconds}: pass"])
        with processes() as made:
            made.run(burns, seconds, name="nested")
    while time.process_time() < seconds:
        pass

def asks(number):
    return ask(number) + ask("more")

def unpicklable():
    return lambda: None

def logs():
    logging.getLogger("pipeline.training").warning("slow %s", "disk")
    logging.getLogger("pipeline.progress.search").info("trial 1")
    logging.getLogger("absl").warning("not ours")
"""


def ran(script: str, *arguments: str, code: int = 0) -> str:
    """Runs a script with the functions above in a new process; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(script), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def wait_until_gone(pids: list[int]) -> None:
    end = time.monotonic() + 300
    while any(map(runs, pids)):
        assert time.monotonic() < end, "a process has stayed"
        time.sleep(0.1)


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_two_pieces_of_work_run_at_the_same_time_and_each_in_a_process_of_its_own(tmp_path):
    script = """
        files, found = sys.argv[1:], []
        with processes() as made:
            def meet(mine, other):
                found.append(made.run(meets, mine, other, name=mine))

            threads = [threading.Thread(target=meet, args=names) for names in (files, files[::-1])]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
        print(len({*found, os.getpid()}))
    """
    assert ran(script, str(tmp_path / "one"), str(tmp_path / "other")) == "3\n"


def test_what_work_needs_is_loaded_once_and_before_it_begins():
    text = ran("""
        is_loaded = "'wave' in __import__('sys').modules"
        for modules in ((), ("wave",)):
            with processes(*modules) as made:
                print(made.run(eval, is_loaded, name="eval"))
    """)
    assert text == "False\nTrue\n"


def test_an_error_comes_with_its_cause_and_where_it_arose():
    text = ran("""
        with processes() as made:
            for how in (ValueError, UserError, KeyboardInterrupt):
                try:
                    made.run(fails, how, name="fails")
                except Exception as error:
                    frame, cause = frames_of(error)[-1], error.__cause__
                    print(type(error).__name__, error, frame.name, type(cause).__name__, cause, cause.__cause__)
    """)
    assert text.splitlines() == [
        "ValueError too large fails Odd this and that None",
        "UserError too large fails Odd this and that None",
        "KeyboardInterrupt too large fails Odd this and that None",
    ]


def test_a_result_that_cannot_be_sent_is_an_error_and_the_program_does_not_go_on_twice():
    text = ran("""
        with processes() as made:
            try:
                made.run(unpicklable, name="unpicklable")
            except Exception as error:
                print(type(error).__name__, "lambda" in str(error))
        print("goes on")
    """)
    assert text in ("AttributeError True\ngoes on\n", "PicklingError True\ngoes on\n")


def test_work_asks_and_its_log_lines_are_shown_here():
    text = ran("""
        class Shown(logging.Handler):
            def emit(self, record):
                print(record.name, record.levelname, record.getMessage())

        logging.getLogger("pipeline").addHandler(Shown())
        logging.getLogger("pipeline").setLevel(logging.INFO)
        with processes() as made:
            print(made.run(asks, 20, name="asks", answer=lambda question: 2 if question == "more" else 2 * question))
            made.run(logs, name="logs")
    """)
    assert text.splitlines() == ["42", "pipeline.training WARNING slow disk", "pipeline.progress.search INFO trial 1"]


@pytest.mark.slow
def test_cpu_time_of_work_is_counted_with_that_of_the_processes_that_work_for_it():
    text = ran("""
        with processes() as made:
            made.run(burns, 0.2, ("child", "nested"), name="burns")
            made.run(sleeps, 0.5, name="sleeps")
            assert 0.6 <= made.cpu_seconds["burns"] <= cpu_seconds()
            print(made.cpu_seconds["sleeps"] < 0.4)
    """)
    assert text == "True\n"


def test_work_has_the_priority_of_who_runs_it():
    text = ran("""
        with processes() as made:
            print(made.run(os.nice, 0, name="nice") - os.nice(0))
    """)
    assert text == "0\n"


@pytest.mark.slow
def test_work_that_is_ended_is_said_to_be_and_what_it_has_started_ends_with_it(tmp_path):
    text = ran(
        """
        with processes() as made:
            def end():
                made.kill_all(["sleeps"])
                while not os.path.exists(sys.argv[1]):
                    time.sleep(0.05)
                made.kill_all(["starts"])

            threading.Timer(1.0, end).start()
            for work, arguments, name in ((sleeps, (3600,), "sleeps"), (starts, (sys.argv[1],), "starts")):
                try:
                    made.run(work, *arguments, name=name)
                except UserError as error:
                    print(error)
            made.kill_all(["later"])
            try:
                made.run(sleeps, 3600, name="later")
            except UserError as error:
                print(error)
        """,
        str(tmp_path / "file"),
    )
    assert [line.split(":")[0] for line in text.splitlines()] == ["its process exited without an error message"] * 3
    wait_until_gone([int((tmp_path / "file").read_text())])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_processes_end_when_the_one_that_wanted_the_work_is_gone(number):
    script = START + textwrap.dedent("""
        with processes() as made:
            made.run(sleeps, 3600, name="sleeps")
    """)
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    while len(below := psutil.Process(parent.pid).children(recursive=True)) < 2:
        assert parent.poll() is None
        time.sleep(0.1)
    assert len(below) == 2
    parent.send_signal(number)
    parent.wait(300)
    wait_until_gone([one.pid for one in below])


@pytest.mark.slow
def test_there_are_none_where_tensorflow_has_computed():
    text = ran("""
        import tensorflow as tf
        with processes() as made:
            print(made is None)
        tf.constant(1)
        with processes() as made:
            print(made is None)
    """)
    assert text == "False\nTrue\n"


@pytest.mark.slow
def test_cuda_is_not_started_before_processes_are_forked_which_could_not_use_it_then():
    text = ran("""
        import tensorflow as tf
        _ = tf.keras.Model
        from pipeline.graph import create_pipeline
        import pipeline.serving.app
        from pipeline.runs import engine
        from tensorflow.python.eager import context

        with processes() as made:
            print(made is not None, context.context()._physical_devices)
    """)
    assert text == "True None\n"


@pytest.mark.slow
def test_a_default_timeout_of_sockets_as_beam_sets_one_breaks_nothing():
    script = """
        import socket
        socket.setdefaulttimeout(0.1)
        with processes() as made:
            time.sleep(0.3)
            print(made.run(sleeps, 0.3, name="idle") != os.getpid(), len(made.run(bytes, 8 << 20, name="long")))
            print(made.run(len, bytes(8 << 20), name="long"))
    """
    assert ran(script) == f"True {8 << 20}\n{8 << 20}\n"
