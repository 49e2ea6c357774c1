"""Take a table through everything a newcomer does, and judge what comes of it.

    python -m pipeline new NAME --data FILE --label LABEL
    python local_runner.py --pipeline NAME
    python -m pipeline predict --config configs/NAME.py --data FILE --to out.parquet
    python -m pipeline serve --config configs/NAME.py --port PORT       # and rows of the file, as JSON

The tables are in gauntlet_tables.py; benchmarks/gauntlet.py runs all of them, test_gauntlet.py a few.
"""

import csv
import datetime
import decimal
import json
import math
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.metrics import accuracy_score, roc_auc_score

from tests.e2e.gauntlet_tables import MARKER, TABLES, Table
from tests.e2e.run import copy_repository

ROWS_ASKED = 50
SECONDS = {"new": 600, "run": 1800, "predict": 900, "serve": 120}
JSON_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
WHOLE = re.compile(r"-?\d+")
# What a client takes for missing in a column that otherwise holds numbers.
MISSING = {"", "NA", "N/A", "n/a", "null", "NULL", "None", "nan", "NaN", "-", "?"}
INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)

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


class Failure(Exception):
    """Reason why a table did not come through; the message is the line that is printed."""


@dataclass(frozen=True)
class Called:
    """Output of a command and its exit code."""

    code: int
    stdout: str
    stderr: str

    @property
    def tail(self) -> str:
        """Its last lines."""
        lines = [line for line in (self.stdout + "\n" + self.stderr).splitlines() if line.strip()]
        return "\n".join(lines[-12:])


@dataclass
class Outcome:
    """Outcome of a table."""

    table: Table
    shape: str = "?"
    outcome: str = ""
    metric: str = ""
    reason: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def as_expected(self) -> bool:
        """Return whether nothing failed."""
        return not self.reason

    def __str__(self) -> str:
        times = " ".join(f"{phase} {seconds:.0f}" for phase, seconds in self.seconds.items())
        text = f"{'ok  ' if self.as_expected else 'FAIL'} {self.table.name:<24} {self.shape:>15}  {self.table.kind:<8}"
        text += f" {self.outcome:<8} {self.metric:<34} {times}"
        for line in [*self.notes, *self.reason.splitlines()]:
            text += f"\n       {line}"
        return text


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


# What the file holds


def read(path: Path, label: str) -> tuple[list[str], list[tuple[int, dict]]]:
    """Read a table as a client does who has the file and no pipeline.

    Returns:
        The label of every row as text; and of about 50 rows the place and the row without the label, with values as
        JSON has them.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    if files[0].suffix == ".parquet":
        whole = pa.concat_tables([pq.read_table(file) for file in files])
        truth = [str(value) for value in whole[label].to_pylist()]
        places = _spread(len(truth), range(len(truth)))
        records = whole.take(places).to_pylist()
        return truth, [(place, _without(row, label, place)) for place, row in zip(places, records, strict=True)]
    csv.field_size_limit(2**30)
    cells = pd.concat(
        [pd.read_csv(file, dtype=str, keep_default_na=False, na_filter=False, encoding="utf-8-sig") for file in files]
    )
    numbers = {name for name in cells if name != label and _is_number(cells[name])}
    lengths = cells.map(len) if len(cells) < 10_000 else None
    short = range(len(cells)) if lengths is None else np.flatnonzero((lengths < 100_000).all(axis=1))
    places = [
        place
        for place in _spread(len(cells), short)
        if not any(INFINITE.fullmatch(cells.at[cells.index[place], name]) for name in numbers)
    ]
    rows = []
    for place in places:
        row = {}
        for name in cells:
            text = cells[name].iat[place]
            if name in numbers:
                row[name] = None if text in MISSING else int(text) if WHOLE.fullmatch(text) else float(text)
            else:
                row[name] = text or None
        rows.append((place, _without(row, label, place)))
    return cells[label].to_list(), rows


def _is_number(column: pd.Series) -> bool:
    """Tell whether all values but missing ones are numbers as JSON writes them."""
    values = [text for text in column.unique() if text not in MISSING and not INFINITE.fullmatch(text)]
    return bool(values) and all(JSON_NUMBER.fullmatch(text) for text in values)


def _spread(rows: int, allowed: Sequence[int] | np.ndarray) -> list[int]:
    wanted = np.unique(np.linspace(0, rows - 1, ROWS_ASKED).astype(int))
    return [int(place) for place in wanted if place in set(allowed)]


def _without(row: dict, label: str, place: int) -> dict:
    """Leave out the label, and what is missing in every second row."""
    missing = {name for name, value in row.items() if value is None or (isinstance(value, float) and math.isnan(value))}
    return {
        name: None if name in missing else value
        for name, value in row.items()
        if name != label and not (place % 2 and name in missing)
    }


# What the answers are worth


def judge_answers(table: Table, answers: pd.DataFrame, truth: list[str], metrics: dict[str, float]) -> str:
    """Score the answers for the whole file.

    Returns:
        The metric, for the line that is printed.

    Raises:
        Failure: they are alike, at odds with the run's metrics, or no better than chance.
    """
    if len(answers) != len(truth):
        raise Failure(f"{len(answers)} answers for {len(truth)} rows")
    if table.kind == "number":
        wanted, given = np.array(truth, dtype=float), answers["prediction"].to_numpy(float)
        if np.ptp(given) == 0:
            raise Failure(f"all answers are {given[0]}")
        # Without the hundredth that is furthest off: of a skewed label a single row decides the error of the rest.
        kept = np.argsort(np.abs(wanted - given))[: max(1, int(0.99 * len(wanted)))]
        wanted, given = wanted[kept], given[kept]
        score = float(np.corrcoef(wanted, given)[0, 1] ** 2)
        name, tested = "r2", metrics.get("squared_correlation")
        error, tested_error = float(np.sqrt(np.mean((wanted - given) ** 2))), metrics.get("rmse")
        if tested_error is not None and error > 2 * tested_error + 0.1 * np.std(wanted):
            raise Failure(f"rmse on 99 % of the file is {error:.4g}, the run said {tested_error:.4g}")
    else:
        order = sorted(set(truth), key=_rank)
        keys = [_word(text) for text in truth]
        words = [_word(text) for text in answers["label"]]
        if len(set(words)) < 2:
            raise Failure(f"all answers are {words[0]!r}")
        unknown = set(words) - set(keys)
        if unknown:
            raise Failure(f"answers {sorted(map(str, unknown))[:3]} are no labels of the file: {order[:3]}")
        if table.kind == "two":
            score = float(roc_auc_score([key == _word(order[1]) for key in keys], answers["probability"]))
            name, tested = "auc", metrics.get("auc")
        else:
            score = float(accuracy_score([str(key) for key in keys], [str(word) for word in words]))
            name, tested = "accuracy", metrics.get("accuracy")
            majority = max(keys.count(key) for key in set(keys)) / len(keys)
            if score < majority + 0.1 * (1 - majority):
                raise Failure(f"accuracy {score:.3f}, always the most frequent class {majority:.3f}")
    text = f"{name} {score:.3f}" + (f" (test {tested:.3f})" if tested is not None else "")
    if tested is not None and score < tested - 0.1:
        raise Failure(f"{name} of the answers for the whole file is {score:.3f}, the run said {tested:.3f}")
    if score < table.reach or (tested is not None and tested < table.reach - 0.1):
        raise Failure(f"{text}: a model that reads all columns is above {table.reach}")
    return text


def _word(value: object) -> object:
    """Return the same for a class as the file writes it and as the model answers it."""
    text = value.decode() if isinstance(value, bytes) else str(value)
    try:
        return float(text) if JSON_NUMBER.fullmatch(text) else text.casefold() if text in ("True", "False") else text
    except ValueError:
        return text


def _rank(text: str) -> tuple:
    word = _word(text)
    return (0, word, "") if isinstance(word, float) else (1, 0, text)


# What the server answers


class Server:
    """`python -m pipeline serve` on a free port, as a context."""

    def __init__(self, copy: Path, name: str, config: str, logs: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}/v1/models/{name}"
        self.name, self.copy, self.config, self.log = name, copy, config, logs / "serve.log"

    def __enter__(self) -> "Server":
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        command = [sys.executable, "-m", "pipeline", "serve", "--config", self.config, "--port", str(self.port)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=self.copy, env=environment, stdout=log, stderr=log)
        end = time.monotonic() + SECONDS["serve"]
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise Failure(f"serve ended with {self.process.returncode}:\n{self.log.read_text()[-1500:]}")
            try:
                with urllib.request.urlopen(self.address, timeout=5) as answer:
                    if answer.status == 200:
                        return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        self.__exit__()
        raise Failure(f"serve does not answer after {SECONDS['serve']} s:\n{self.log.read_text()[-1500:]}")

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = -9
        self.code = code

    def post(self, instances: list[dict]) -> tuple[int, dict]:
        """Return the status and the answer for these rows."""
        body = json.dumps({"instances": instances}).encode()
        request = urllib.request.Request(f"{self.address}:predict", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            try:
                return error.code, json.loads(text)
            except ValueError:
                raise Failure(f"serve answers {error.code} without JSON: {text[:500]}") from None

    def properties(self) -> dict[str, dict]:
        """Return the features that the server documents, by name."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/openapi.json", timeout=10) as answer:
            document = json.load(answer)
        (path,) = (path for path in document["paths"] if path.endswith(":predict"))
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        return body["properties"]["instances"]["items"]["properties"]

    def logs(self) -> list[str]:
        """Return what it printed."""
        return [self.log.read_text(encoding="utf-8", errors="replace")]


def ask(server: Server, rows: list[dict], outcome: Outcome) -> list[dict]:
    """Return the answers for rows as they stand in the file.

    When the server knows fewer columns than the file has, as it says in openapi.json, they are left out: that is noted.
    """
    described = server.properties()
    rows = [{name: _json(value, described.get(name)) for name, value in row.items()} for row in rows]
    status, answer = server.post(rows)
    if status == 400:
        names = {name for row in rows for name in row}
        unknown = sorted(names - set(described))
        if unknown and set(described) & names:
            outcome.notes.append(f"serve refuses the whole row: {str(answer.get('error'))[:160]}")
            rows = [{name: value for name, value in row.items() if name in described} for row in rows]
            status, answer = server.post(rows)
    if status != 200:
        raise Failure(f"serve answers {status}: {str(answer)[:600]}")
    predictions = answer["predictions"]
    return [one if isinstance(one, dict) else {"prediction": one} for one in predictions]


def _json(value: object, described: dict | None) -> object:
    """Return a value as JSON has it: dates as the server documents them, as numbers or as ISO text."""
    integer = "integer" in json.dumps(described or {})
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, datetime.datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=datetime.timezone.utc)
        return round(moment.timestamp()) * 1_000_000 + value.microsecond if integer else value.isoformat()
    if isinstance(value, datetime.date):
        return (value - datetime.date(1970, 1, 1)).days if integer else value.isoformat()
    if isinstance(value, datetime.time):
        seconds = value.hour * 3600 + value.minute * 60 + value.second
        return seconds * 1_000_000 + value.microsecond if integer else value.isoformat()
    return value


def judge_served(served: list[dict], predicted: list[dict]) -> None:
    """Compare the server's answers with predict's for the same rows.

    Raises:
        Failure: they differ.
    """
    if len(served) != len(predicted):
        raise Failure(f"serve answers {len(served)} of {len(predicted)} rows")
    for place, (one, other) in enumerate(zip(served, predicted, strict=True)):
        if set(one) != set(other):
            raise Failure(f"serve answers {sorted(one)}, predict {sorted(other)}")
        for key, value in one.items():
            wanted = other[key]
            if key == "label":
                same = str(value) == str(wanted)
            else:
                same = np.allclose(value, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
            if not same:
                differ = sum(str(a.get(key)) != str(b.get(key)) for a, b in zip(served, predicted, strict=True))
                raise Failure(
                    f"row {place} asked: serve answers {key} {value}, predict {wanted} ({differ} rows differ)"
                )


def tables(names: Sequence[str] = ()) -> list[Table]:
    """Return the tables of these names, or all.

    Raises:
        SystemExit: there is none of a name.
    """
    unknown = [name for name in names if name not in TABLES]
    if unknown:
        raise SystemExit(f"no table {', '.join(unknown)}; there are {', '.join(TABLES)}")
    return [TABLES[name] for name in names] if names else list(TABLES.values())
