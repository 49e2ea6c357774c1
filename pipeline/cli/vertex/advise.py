"""Say what a run takes and costs on machines of Vertex AI, from measurements on this one."""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import filesystem
from pipeline.cli.command_line import SUCCEEDED, pipeline_flags
from pipeline.cli.vertex.session import Session
from pipeline.costs import advice
from pipeline.costs.advice import Advisor, Answer, Choice, Question
from pipeline.costs.bill import dollars
from pipeline.costs.measured import Measured
from pipeline.costs.performance import line_of
from pipeline.costs.prices import TABLE, Prices, read_prices
from pipeline.errors import UserError
from pipeline.runs import measure
from pipeline.settings.config import PipelineConfig
from pipeline.settings.machines import Machines
from pipeline.settings.repository import find_root
from pipeline.settings.target import Target, only_run_in

if TYPE_CHECKING:
    from tfx.orchestration.pipeline import Pipeline

HEADER = ("machines of the training", "fits", "takes (between)", "on demand", "on spot", "limited by")
# Below this share of the time saved, an accelerator that costs more is not worth it.
LEAST_SAVED = 0.2


def advise(session: Session) -> int:
    """Measure, predict, and print a line for each choice of machines and sentences that name the best.

    Raises:
        UserError: there is no local run yet, or a machine, an accelerator or a region is unknown.
    """
    arguments, screen = session.arguments, session.screen
    file = find_root() / TABLE
    if arguments.refresh:
        _refresh(session, file)
    prices = read_prices(file)
    choices = [advice.parse_choice(text, prices) for text in arguments.machine or ()]
    if session.vertex.region not in prices.regions:
        raise UserError(
            f"{prices.path} has no prices of {session.vertex.region}; it has those of {', '.join(prices.regions)}: "
            "name one of them with --region"
        )
    with only_run_in(session.output):
        measured = measure.measured(
            session.config,
            session.output,
            _create,
            anew=arguments.measure,
            flags=pipeline_flags(arguments),
            tell=screen.note,
        )
    question = _question(session, measured)
    screen.note(_title(session, measured, question, prices))
    if stale := prices.stale(date.today()):
        screen.warning(stale)
    if measured.training is None:
        screen.note(_scaled(measured, question))
        return SUCCEEDED
    advisor = Advisor(measured, prices, question)
    answers = _answers(advisor, choices, session.vertex.machines)
    screen.table(HEADER, [_row(answer) for answer in (advisor.here(), *answers)], left=2)
    screen.note(
        "\n".join(["", *_sentences(answers, prices, arguments.spot, arguments.within), *_notes(measured, question)])
    )
    if arguments.json:
        _write(Path(arguments.json), advisor, answers, question)
    return SUCCEEDED


def _create(config: PipelineConfig, target: Target) -> Pipeline:
    """Create the graph. TFX takes seconds, and a measurement that is kept needs none of it."""
    from pipeline.graph import create_pipeline

    return create_pipeline(config, target)


def _refresh(session: Session, file: Path) -> None:
    """Bring the prices up to date.

    Raises:
        UserError: there is no project to ask for, or no answer.
    """
    if not session.arguments.project:
        raise UserError(
            "--refresh asks Google's Cloud Billing Catalog in the name of a project: give --project (or "
            "GOOGLE_CLOUD_PROJECT); everything else of advise goes without"
        )
    # Google's clients take seconds, and nothing else here needs them.
    from pipeline.vertex.pipelines import billing

    billing.refresh(file, session.connect(), session.screen.note)


def _question(session: Session, measured: Measured) -> Question:
    """Return what is asked: the settings of the config and the rows of the last run, where no flag says otherwise."""
    arguments, training = session.arguments, session.config.training
    batch_size = arguments.batch_size or training.batch_size
    return Question(
        rows=arguments.rows or sum(measured.rows.values()),
        epochs=arguments.epochs or training.epochs,
        batch_size=batch_size * training.accumulate,
        region=session.vertex.region,
        tasks=session.vertex.machines.task("default"),
    )


def _answers(advisor: Advisor, choices: list[Choice], machines: Machines) -> list[Answer]:
    """Return the answers for the choices that were asked about or, without any, for all sensible ones."""
    if choices:
        return [advisor.answer(choice) for choice in choices]
    current = _current(machines, advisor)
    known = [*([] if current in advice.CHOICES else [current]), *advice.CHOICES]
    answers = [advisor.answer(choice) for choice in known]
    # What has no price in the region is not to be had there.
    answers = [answer for answer in answers if not answer.parts or answer.price(False) < math.inf]
    return [*answers, *advice.with_replicas(answers, advisor)]


def _current(machines: Machines, advisor: Advisor) -> Choice:
    """Return what the training runs on by the table of machines."""
    job, task = machines.training, machines.task("Trainer")
    if job is None:
        return advisor.choice_of(task)
    return Choice(job.machine_type, job.accelerator, job.accelerators, job.replicas)


def _title(session: Session, measured: Measured, question: Question, prices: Prices) -> str:
    cores = measured.training.speeds[-1].cores if measured.training else None
    here = f", {cores} {'core' if cores == 1 else 'cores'}" if cores else ""
    return (
        f"{session.config.name}: {question.rows:,} rows, at most {question.epochs} epochs, batches of "
        f"{question.batch_size:,}\n  measured  run {measured.run} on this machine{here}\n"
        f"  prices    {prices.path} of {prices.date}, {question.region}, in US dollars\n"
    )


def _row(answer: Answer) -> tuple[str, ...]:
    if answer.parts is None:
        return (str(answer.choice), "no", "-", "-", "-", "memory")
    fits = "yes" if answer.parts == 1 else f"in {answer.parts} parts"
    return (
        str(answer.choice),
        fits,
        taken(answer),
        *("-" if amount is None else dollars(amount) for amount in (answer.dollars, answer.spot_dollars)),
        answer.limit,
    )


def taken(answer: Answer) -> str:
    """Return the time of a prediction, and between what it may lie, in minutes or hours."""
    unit, name = (60.0, "min") if answer.seconds < 5_400 else (3_600.0, "h")
    least, expected, most = (
        f"{value / unit:.0f}" if value / unit >= 10 else f"{value / unit:.1f}"
        for value in (answer.seconds / answer.factor, answer.seconds, answer.seconds * answer.factor)
    )
    return f"{expected} {name} ({least} to {most})"


def _sentences(answers: list[Answer], prices: Prices, spot: bool, within: float | None) -> list[str]:
    """Return a sentence for each question: which is the cheapest, which the fastest, is an accelerator worth it."""
    cheapest, fastest = advice.cheapest(answers, spot), advice.fastest(answers, spot)
    if not cheapest or not fastest:
        return ["no choice fits into memory and has a price: take a smaller batch or a larger machine"]
    lines = [f"cheapest  {_named(cheapest, spot)}", f"fastest   {_named(fastest, spot)}"]
    if within is not None:
        best = advice.cheapest(answers, spot, within)
        deadline = f"within {within / 3600:g} h" if within >= 3_600 else f"within {within / 60:g} min"
        lines.append(
            f"{deadline}  {_named(best, spot)}"
            if best
            else f"{deadline}  none ends in time; the fastest is {_named(fastest, spot)}"
        )
    return [*lines, *_worth_of_accelerators(answers, prices, spot)]


def _worth_of_accelerators(answers: list[Answer], prices: Prices, spot: bool) -> list[str]:
    """Return a sentence that accelerators are not worth their price, if they are not."""
    groups: tuple[list[Answer], list[Answer]] = ([], [])
    for answer in answers:
        groups[advice.has_accelerator(answer, prices)].append(answer)
    without, quickest = advice.cheapest(groups[False], spot), advice.fastest(groups[True], spot)
    if not without or not quickest or quickest.price(spot) <= without.price(spot):
        return []
    best = min((each for each in groups[False] if each.parts), key=lambda each: each.seconds)
    if quickest.seconds < (1 - LEAST_SAVED) * best.seconds:
        return []
    return [
        f"An accelerator is not worth it: the fastest, {_named(quickest, spot)}; without one, {_named(without, spot)}."
    ]


def _named(answer: Answer, spot: bool) -> str:
    return f"{answer.choice}: {taken(answer)}, {dollars(answer.price(spot))}{' on spot' if spot else ''}"


def _notes(measured: Measured, question: Question) -> list[str]:
    assert measured.training is not None
    rows = sum(measured.rows.values())
    notes = [
        "",
        f"Times are of the whole job: {advice.TASK_START / 60:g} min for each task to start and "
        f"{advice.JOB_START / 60:g} for the training's machines are assumed.",
        f"On machines that were not measured a time is right within a factor of {advice.ELSEWHERE:g}.",
    ]
    if question.rows > 2 * rows and any(len(runs) == 1 for runs in measured.steps.values()):
        notes.append(
            f"The run had {rows:,} rows, too few to tell what a step takes to start from what its rows take: for "
            f"{question.rows:,} rows all of it was multiplied, and these times are far too long. Advise on a run of "
            "more rows."
        )
    if measured.training.loops:
        notes.append("The model has loops, whose work TensorFlow does not count: accelerators take longer than this.")
    if len(measured.training.speeds) == 1:
        notes.append(
            "There was one number of cores to measure on: what more cores save is not known, and none is said."
        )
    return notes


def _scaled(measured: Measured, question: Question) -> str:
    """Return the whole seconds of each step, scaled by rows and epochs, where the training could not be measured."""
    lines = [f"note: {measured.why_not_measured}", ""]
    total = 0.0
    for name, runs in measured.steps.items():
        seconds = line_of(runs).at(question.rows)
        if name == "Trainer":
            seconds *= question.epochs / measured.epochs
        total += seconds
        lines.append(f"  {name:<20}{seconds:9.1f} s")
    answer = Answer(Choice("this machine"), 1, total, factor=advice.ELSEWHERE)
    return "\n".join([*lines, "", f"on this machine: {taken(answer)}"])


def _write(to: Path, advisor: Advisor, answers: list[Answer], question: Question) -> None:
    """Write the predictions as JSON; what is not known is null."""
    found = [
        {**dataclasses.asdict(answer), "choice": str(answer.choice)}
        | ({} if answer.parts else {"seconds": None, "training_seconds": None})
        for answer in (advisor.here(), *answers)
    ]
    content = {"question": dataclasses.asdict(question), "steps_here": advisor.steps_here(), "answers": found}
    filesystem.write(to, json.dumps(content, indent=2) + "\n")
