"""Take a table through everything a newcomer does, and judge the results.

python -m pipeline new NAME --data FILE --label LABEL
python local_runner.py --pipeline NAME
python -m pipeline predict --config configs/NAME.py --data FILE --to o.parquet
python -m pipeline serve --config configs/NAME.py --port 0       # and rows of the file, as JSON
"""

import json
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from tests.e2e.run import Run, call, copy_repository
from tests.gauntlet.answers import judge_answers, read
from tests.gauntlet.outcome import Failure, Outcome
from tests.gauntlet.server import ask, judge_served, serving
from tests.gauntlet.tables import MARKER, Table


def run_table(table: Table, folder: Path) -> Outcome:
    """Take a table through all commands in a fresh copy of the repository, in `folder`; never raise."""
    outcome = Outcome(table)
    try:
        MARKER.unlink(missing_ok=True)
        _through(table, copy_repository(folder / "copy"), folder / "logs", outcome)
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


def _through(table: Table, copy: Path, logs: Path, outcome: Outcome) -> None:
    data = table.write(copy).relative_to(copy)
    config = f"configs/{table.name}.py"
    logs.mkdir(parents=True)

    def step(phase: str, *command: str) -> Run:
        start = time.monotonic()
        done = call(copy, *command, preloaded=False)
        outcome.seconds[phase] = outcome.seconds.get(phase, 0) + time.monotonic() - start
        with (logs / f"{phase}.log").open("a", encoding="utf-8") as file:
            file.write(f"$ {shlex.join(command)}\n{done.text}exit {done.code}\n")
        check_text(done.text, f"the output of {phase}", table.not_on_terminal)
        return done

    new = ["-m", "pipeline", "new", table.name, "--data", str(data), "--label", table.label]
    made = step("new", *new)
    if refusal := judge_new(table, made, copy):
        outcome.outcome = "refused"
        outcome.notes.append(refusal[:200])
        if not table.advice:
            return
        advice = advised(refusal, table.advice)
        outcome.notes.append(f"refused; then {shlex.join(advice)}")
        made = step("new", *new, *advice)
        if made.code:
            raise Failure(f"new still refuses after {shlex.join(advice)}:\n{_tail(made)}")
    if shape := re.search(r"([\d,]+) rows, ([\d,]+) columns", made.text):
        outcome.shape = f"{shape[1]} x {shape[2]}"

    ran = step("run", "local_runner.py", "--pipeline", table.name, *([] if table.tuning else ["--tuning", "off"]))
    if ran.code:
        raise Failure(f"local_runner.py ended with {ran.code}:\n{_tail(ran)}")
    for page in copy.glob(f"output/{table.name}/runs/*/report.html"):
        check_text(page.read_text(encoding="utf-8"), "report.html", table.not_in_report)
    verdict = json.loads((copy / f"output/{table.name}/verdict.json").read_text())

    answered = step(
        "predict", *("-m", "pipeline", "predict", "--config", config), "--data", str(data), "--to", "o.parquet"
    )
    if answered.code:
        raise Failure(f"predict ended with {answered.code}:\n{_tail(answered)}")
    answers = pq.read_table(copy / "o.parquet").to_pandas()
    truth, rows = read(copy / data, table.label)
    outcome.metric = judge_answers(table, answers, truth, verdict["metrics"])

    start, log = time.monotonic(), logs / "serve.log"
    with serving(copy, config, log) as address:
        served = ask(address, [row for _, row in rows], outcome)
    outcome.seconds["serve"] = time.monotonic() - start
    check_text(log.read_text(encoding="utf-8", errors="replace"), "the output of serve", table.not_on_terminal)
    judge_served(served, answers.iloc[[place for place, _ in rows]].to_dict("records"))
    outcome.outcome = "pushed"


def check_text(text: str, where: str, absent: Sequence[str]) -> None:
    """Raise Failure if there is a traceback in a text, or one of these texts stands raw in it."""
    if "Traceback" in text:
        raise Failure(f"a traceback in {where}:\n" + "\n".join(text[text.index("Traceback") :].splitlines()[-8:]))
    for hostile in absent:
        if hostile in text:
            raise Failure(f"{hostile!r} stands raw in {where}")


def _tail(run: Run) -> str:
    return "\n".join([line for line in run.text.splitlines() if line.strip()][-12:])


def judge_new(table: Table, made: Run, copy: Path) -> str:
    """Compare the result of new with what the table expects.

    Returns:
        The sentence of the refusal, or nothing if new wrote the files.

    Raises:
        Failure: it is not as expected.
    """
    config, module, schema = (
        copy / path for path in (f"configs/{table.name}.py", f"models/{table.name}.py", f"schema/{table.name}")
    )
    if made.code == 0:
        if not table.expected.startswith("pushed"):
            raise Failure(f"new accepts it, expected {table.expected}:\n{_tail(made)}")
        for file in (config, module):
            compile(file.read_text(encoding="utf-8"), str(file), "exec")
        if not (schema / "schema.pbtxt").is_file():
            raise Failure("new wrote no schema")
        return ""
    sentence, pattern = made.text.strip(), table.expected.partition("refused: ")[2]
    if made.code != 1:
        raise Failure(f"new ended with {made.code}:\n{_tail(made)}")
    if not pattern:
        raise Failure(f"new refuses it: {sentence}")
    if not sentence or "\n\n" in sentence or len(sentence) > 1500:
        raise Failure(f"no single paragraph: {sentence[:500]!r}")
    if not re.search(pattern, sentence):
        raise Failure(f"refused with another sentence than {pattern!r}: {sentence}")
    if written := [str(path.relative_to(copy)) for path in (config, module, schema) if path.exists()]:
        raise Failure(f"refused, but wrote {', '.join(written)}")
    return sentence


def advised(sentence: str, option: str) -> list[str]:
    """Return the option that a sentence names, with its value.

    Raises:
        Failure: the sentence does not name it.
    """
    found = re.search(option + r""" ('[^']*'|"[^"]*"|\S+)""", sentence)
    if not found:
        raise Failure(f"no {option} in: {sentence}")
    return shlex.split(found[0].rstrip(".,;:"))
