"""Take a table through everything a newcomer does, and judge what comes of it.

    python -m pipeline new NAME --data FILE --label LABEL
    python local_runner.py --pipeline NAME
    python -m pipeline predict --config configs/NAME.py --data FILE --to out.parquet
    python -m pipeline serve --config configs/NAME.py --port PORT       # and rows of the file, as JSON

The tables are in gauntlet_tables/; benchmarks/gauntlet.py runs all of them, test_gauntlet.py a few.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from tests.e2e.gauntlet_answers import judge_answers, read
from tests.e2e.gauntlet_outcome import Called, Failure, Outcome
from tests.e2e.gauntlet_server import Server, ask, judge_served
from tests.e2e.gauntlet_tables import MARKER, TABLES, Table
from tests.e2e.run import copy_repository

SECONDS = {"new": 600, "run": 1800, "predict": 900}
# Executed in a copy of the repository: `pipeline` is the copy's, and imported once for all tables.
NEW_IN_PROCESS = """
import contextlib, io, json, sys, time, traceback
from pipeline.__main__ import main
for line in sys.stdin:
    out, err, start = io.StringIO(), io.StringIO(), time.monotonic()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(["new", *json.loads(line)])
        except SystemExit as end:
            code = end.code
        except BaseException:
            code = -1
            traceback.print_exc()
    print(json.dumps([code or 0, out.getvalue(), err.getvalue(), time.monotonic() - start]), flush=True)
"""


# A table through everything


def run_table(table: Table, folder: Path) -> Outcome:
    """Take a table through all commands in a fresh copy of the repository, in `folder`; never raise."""
    outcome = Outcome(table)
    try:
        MARKER.unlink(missing_ok=True)
        copy = copy_repository(folder / "copy")
        data = table.write(copy)
        _through(table, copy, data.relative_to(copy), folder / "logs", outcome)
    except Failure as failure:
        outcome.reason = str(failure)
    except Exception as error:
        # The harness could not read an answer: that is a failure of this table, and not of the others.
        outcome.reason = f"{type(error).__name__}: {error}"
    outcome.outcome = outcome.outcome or "failed"
    if MARKER.exists():
        outcome.reason += f"\nhostile text ran: {MARKER} is there"
        MARKER.unlink()
    return outcome


def _through(table: Table, copy: Path, data: Path, logs: Path, outcome: Outcome) -> None:
    name, config = table.name, f"configs/{table.name}.py"
    python = sys.executable

    def call(phase: str, *command: str) -> Called:
        start = time.monotonic()
        called = _call(copy, command, SECONDS[phase])
        outcome.seconds[phase] = outcome.seconds.get(phase, 0) + time.monotonic() - start
        _keep(logs / phase, called, command)
        for where, text in (("stdout", called.stdout), ("stderr", called.stderr)):
            _clean(text, f"{phase}'s {where}", table.not_on_terminal)
        return called

    new = [python, "-m", "pipeline", "new", name, "--data", str(data), "--label", table.label]
    made = call("new", *new)
    if judge_new(table, made, copy, outcome):
        if not table.advice:
            return
        advice = advised(made.stderr, table.advice)
        outcome.notes.append(f"refused; then {shlex.join(advice)}")
        made = call("new", *new, *advice)
        if made.code:
            raise Failure(f"new still refuses after {shlex.join(advice)}:\n{made.tail}")
    outcome.shape = _shape(made.stdout)

    runner = [python, "local_runner.py", "--pipeline", name, *([] if table.tuning else ["--tuning", "off"])]
    ran = call("run", *runner)
    if ran.code:
        raise Failure(f"local_runner.py ended with {ran.code}:\n{ran.tail}")
    for page in copy.glob(f"output/{name}/runs/*/report.html"):
        _clean(page.read_text(encoding="utf-8"), "report.html", table.not_in_report)
    verdict = json.loads((copy / f"output/{name}/verdict.json").read_text())

    answered = call(
        "predict", python, "-m", "pipeline", "predict", "--config", config, "--data", str(data), "--to", "o.parquet"
    )
    if answered.code:
        raise Failure(f"predict ended with {answered.code}:\n{answered.tail}")
    answers = pq.read_table(copy / "o.parquet").to_pandas()
    truth, rows = read(copy / data, table.label)
    outcome.metric = judge_answers(table, answers, truth, verdict["metrics"])

    start = time.monotonic()
    with Server(copy, name, config, logs) as server:
        served = ask(server, [row for _, row in rows], outcome)
    outcome.seconds["serve"] = time.monotonic() - start
    for text in server.logs():
        _clean(text, "serve's output", table.not_on_terminal)
    judge_served(served, answers.iloc[[place for place, _ in rows]].to_dict("records"))
    outcome.outcome = "pushed"


def _call(copy: Path, command: Sequence[str], seconds: float) -> Called:
    try:
        # Not what the harness was started with: `pipeline` is to be the copy's.
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        process = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"").decode(errors="replace")
        raise Failure(f"{' '.join(command[1:4])} took more than {seconds:.0f} s:\n{output[-1000:]}") from None
    return Called(process.returncode, process.stdout.decode(errors="replace"), process.stderr.decode(errors="replace"))


def _keep(log: Path, called: Called, command: Sequence[str]) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.with_suffix(".log").open("a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(command[1:])}\n{called.stdout}{called.stderr}exit {called.code}\n")


def _clean(text: str, where: str, absent: Sequence[str]) -> None:
    if "Traceback" in text:
        raise Failure(f"a traceback in {where}:\n" + "\n".join(text[text.index("Traceback") :].splitlines()[-8:]))
    for hostile in absent:
        if hostile in text:
            raise Failure(f"{hostile!r} stands raw in {where}")


def _shape(printed: str) -> str:
    found = re.search(r"([\d,]+) rows, ([\d,]+) columns", printed)
    return f"{found[1]} x {found[2]}" if found else "?"


# What new says


def judge_new(table: Table, made: Called, copy: Path, outcome: Outcome) -> bool:
    """Compare what new did with what is expected.

    Returns:
        Whether it was refused, as it may be.

    Raises:
        Failure: it is not as expected.
    """
    may_push = table.expected.startswith("pushed")
    pattern = table.expected.partition("refused: ")[2]
    if made.code == 0:
        if not may_push:
            raise Failure(f"new accepts it, expected {table.expected}:\n{made.tail}")
        for file in (copy / f"configs/{table.name}.py", copy / f"models/{table.name}.py"):
            compile(file.read_text(encoding="utf-8"), str(file), "exec")
        if not (copy / f"schema/{table.name}/schema.pbtxt").is_file():
            raise Failure("new wrote no schema")
        return False
    outcome.outcome = "refused"
    sentence = made.stderr.strip()
    if made.code != 1:
        raise Failure(f"new ended with {made.code}:\n{made.tail}")
    if not pattern:
        raise Failure(f"new refuses it: {sentence}")
    if not sentence or "\n\n" in sentence or len(sentence) > 1500:
        raise Failure(f"no single paragraph: {sentence[:500]!r}")
    if not re.search(pattern, sentence):
        raise Failure(f"refused with another sentence than {pattern!r}: {sentence}")
    written = [
        path
        for path in (f"configs/{table.name}.py", f"models/{table.name}.py", f"schema/{table.name}")
        if (copy / path).exists()
    ]
    if written:
        raise Failure(f"refused, and yet wrote {', '.join(written)}")
    outcome.notes.append(sentence[:200])
    return True


def advised(sentence: str, option: str) -> list[str]:
    """Return the option that a sentence names, with its value.

    Raises:
        Failure: it does not name it.
    """
    found = re.search(option + r""" ('[^']*'|"[^"]*"|\S+)""", sentence)
    if not found:
        raise Failure(f"no {option} in: {sentence}")
    return shlex.split(found[0].rstrip(".,;:"))


def new_only(tables: Iterable[Table], folder: Path) -> list[Outcome]:
    """Run `pipeline new` alone on all tables, in one process in one copy of the repository; never raise."""
    copy = copy_repository(folder / "copy")
    MARKER.unlink(missing_ok=True)
    outcomes = []
    with subprocess.Popen(
        [sys.executable, "-c", NEW_IN_PROCESS],
        cwd=copy,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(copy), "TF_CPP_MIN_LOG_LEVEL": "3"},
    ) as process:
        assert process.stdin
        assert process.stdout
        for table in tables:
            outcome = Outcome(table)
            outcomes.append(outcome)
            try:
                data = table.write(copy)
                process.stdin.write(json.dumps([table.name, "--data", str(data), "--label", table.label]) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
                if not line:
                    raise Failure("the process ended")
                code, stdout, stderr, outcome.seconds["new"] = json.loads(line)
                outcome.shape = _shape(stdout)
                for text in (stdout, stderr):
                    _clean(text, "new's output", table.not_on_terminal)
                judge_new(table, Called(code, stdout, stderr), copy, outcome)
                outcome.outcome = outcome.outcome or "written"
            except Exception as error:
                outcome.outcome = outcome.outcome or "failed"
                outcome.reason = str(error) if isinstance(error, Failure) else f"{type(error).__name__}: {error}"
            if MARKER.exists():
                outcome.reason += f"\nhostile text ran: {MARKER} is there"
                MARKER.unlink()
        process.stdin.close()
    return outcomes


def tables(names: Sequence[str] = ()) -> list[Table]:
    """Return the tables of these names, or all.

    Raises:
        SystemExit: there is none of a name.
    """
    unknown = [name for name in names if name not in TABLES]
    if unknown:
        raise SystemExit(f"no table {', '.join(unknown)}; there are {', '.join(TABLES)}")
    return [TABLES[name] for name in names] if names else list(TABLES.values())
