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

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from tests.e2e.run import Run, call, copy_repository, edit
from tests.gauntlet.answers import judge_answers, read
from tests.gauntlet.outcome import Failure, Outcome
from tests.gauntlet.server import ask, judge_served, serving
from tests.gauntlet.tables import MARKER, Asked, Table

CONFIG = """\
from pipeline.config import Data, Evaluation, Gate, Label, PipelineConfig, Training, Tuning

CONFIG = PipelineConfig(
    name={name!r},
    data=Data({data}),
    label=Label({label!r}, classes={classes!r}),
    module="models/{name}.py",
    training=Training(batch_size=64),
    evaluation=Evaluation(gates=(Gate({metric!r}, {floor}),)),
    tuning=Tuning(trials=3),
)
"""


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

    if table.module is not None:
        write_module(table, copy, data)
    else:
        new = ["-m", "pipeline", "new", table.name, "--data", str(data), "--label", table.label, *table.options]
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
        if table.edit:
            edit(copy / config, *table.edit)

    ran = step("run", "local_runner.py", "--pipeline", table.name, *([] if table.tuning else ["--tuning", "off"]))
    accepted, _, pattern = table.expected.partition(": ")
    if ran.code and "stopped" in accepted:
        if not re.search(pattern, ran.text):
            raise Failure(f"stopped with another message than {pattern!r}:\n{_tail(ran)}")
        outcome.outcome = "stopped"
        return
    if ran.code:
        raise Failure(f"local_runner.py ended with {ran.code}:\n{_tail(ran)}")
    if "pushed" not in accepted:
        raise Failure(f"pushed, expected {table.expected}:\n{_tail(ran)}")
    judge_says(table, "run", ran.text)
    for page in copy.glob(f"output/{table.name}/runs/*/report.html"):
        check_text(page.read_text(encoding="utf-8"), "report.html", table.not_in_report)
    verdict = json.loads((copy / f"output/{table.name}/verdict.json").read_text())

    answered = step(
        "predict", *("-m", "pipeline", "predict", "--config", config), "--data", str(data), "--to", "o.parquet"
    )
    if answered.code:
        raise Failure(f"predict ended with {answered.code}:\n{_tail(answered)}")
    judge_says(table, "predict", answered.text)
    answers = as_ours(table, pq.read_table(copy / "o.parquet").to_pandas())
    failures = []
    for number, asked in enumerate(table.asked):
        file, to = asked.write(copy).relative_to(copy), f"asked{number}.parquet"
        done = step("asked", *("-m", "pipeline", "predict", "--config", config), "--data", str(file), "--to", to)
        failures += judge_asked(asked, done, answers, copy / to)
    if failures:
        raise Failure("\n".join(failures))
    truth, rows = read(copy / data, table.label)
    outcome.metric = judge_answers(table, answers, truth, verdict["metrics"])

    if table.module is not None:
        outcome.outcome = "pushed"
        return
    start, log = time.monotonic(), logs / "serve.log"
    with serving(copy, config, log) as address:
        served = ask(address, [row for _, row in rows], outcome)
    outcome.seconds["serve"] = time.monotonic() - start
    check_text(log.read_text(encoding="utf-8", errors="replace"), "the output of serve", table.not_on_terminal)
    judge_served(served, answers.iloc[[place for place, _ in rows]].to_dict("records"))
    outcome.outcome = "pushed"


def write_module(table: Table, copy: Path, data: Path) -> None:
    """Write a plain config with the module file of the table."""
    text = (Path(__file__).parent / "modules/plain.py").read_text(encoding="utf-8")
    for old, new in (table.module or {}).items():
        assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in plain.py"
        text = text.replace(old, new)
    (copy / f"models/{table.name}.py").write_text(text, encoding="utf-8")
    metric, floor = {"two": ("auc", 0.6), "several": ("accuracy", 0.4), "number": ("squared_correlation", 0.2)}[
        table.kind
    ]
    (copy / f"configs/{table.name}.py").write_text(
        CONFIG.format(
            name=table.name,
            data=repr(str(data)),
            label=table.label,
            classes=table.classes,
            metric=metric,
            floor=floor,
        )
    )


def as_ours(table: Table, answers: pd.DataFrame) -> pd.DataFrame:
    """Name the only answer of a stock module file as the pipeline's own modules do, and add the label."""
    if table.module is None or len(answers.columns) > 1:
        return answers
    values = np.array([*answers.iloc[:, 0]]).reshape(len(answers), -1)
    if table.kind == "number":
        return pd.DataFrame({"prediction": values[:, 0]})
    if table.kind == "two":
        return pd.DataFrame(
            {"probability": values[:, 0], "label": np.take(table.classes, (values[:, 0] > 0.5).astype(int))}
        )
    return pd.DataFrame({"probabilities": [*values], "label": np.take(table.classes, values.argmax(1))})


def judge_says(table: Table, phase: str, text: str) -> None:
    """Raise Failure if the output of a phase lacks what the table expects there."""
    for pattern in table.says.get(phase, ()):
        if not re.search(pattern, text):
            raise Failure(f"nothing like {pattern!r} in the output of {phase}:\n{text.strip()[-1500:]}")


def judge_asked(asked: Asked, done: Run, wanted: pd.DataFrame, to: Path) -> list[str]:
    """Return what is wrong with the answers for another file, if anything."""
    accepted, _, pattern = asked.expected.partition(": ")
    matches = bool(pattern and re.search(pattern, done.text))
    text = f"predict of {asked.file} ended with {done.code}, expected {asked.expected}: {done.text.strip()[-300:]}"
    if done.code:
        return [] if "refused" in accepted and matches else [text]
    if "warned" in accepted and matches:
        return []
    given = pq.read_table(to).to_pandas()
    if "empty" in accepted:
        return [text] if len(given) else []
    if len(given) != len(wanted):
        return [f"{text}; {len(given)} answers"]
    (score,) = wanted.columns.intersection(["probability", "prediction", "probabilities"])
    same = np.isclose(np.array([*given[score]]), np.array([*wanted[score]]), rtol=1e-4, atol=1e-4)
    differ = (~same.reshape(len(given), -1)).any(axis=1).sum()
    return [f"{text}; {differ} of {len(given)} answers differ"] if differ or "alike" not in accepted else []


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
        if not re.match("pushed|stopped|refused or stopped", table.expected):
            raise Failure(f"new accepts it, expected {table.expected}:\n{_tail(made)}")
        for file in (config, module):
            compile(file.read_text(encoding="utf-8"), str(file), "exec")
        if not (schema / "schema.pbtxt").is_file():
            raise Failure("new wrote no schema")
        judge_says(table, "new", made.text)
        return ""
    accepted, _, pattern = table.expected.partition(": ")
    sentence = made.text.strip()
    if made.code != 1:
        raise Failure(f"new ended with {made.code}:\n{_tail(made)}")
    if "refused" not in accepted:
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
