"""Say what a run takes and costs on machines of Vertex AI, from measurements on this one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import filesystem
from pipeline.cli.command_line import SUCCEEDED, pipeline_flags
from pipeline.cli.vertex.estimates import rates_of
from pipeline.cli.vertex.session import Session
from pipeline.costs import advice
from pipeline.costs.advice import Advisor, Answer, Choice, Question
from pipeline.costs.bill import dollars
from pipeline.costs.measured import Measured
from pipeline.costs.performance import line_of
from pipeline.costs.prices import TABLE, Prices, read_prices
from pipeline.costs.rates import Rates
from pipeline.errors import UserError, WrongArgument
from pipeline.packaging.user_code import searches
from pipeline.runs import measure
from pipeline.settings.config import PipelineConfig
from pipeline.settings.machines import Machines, is_tpu
from pipeline.settings.repository import find_root
from pipeline.settings.target import Target, only_run_in

if TYPE_CHECKING:
    from tfx.orchestration.pipeline import Pipeline

    from pipeline.data.sample import Sample

HEADER = ("machines of the training", "fits", "takes (between)", "on demand", "on spot", "limited by")
# Below this share of the time saved, an accelerator that costs more is not worth it.
LEAST_SAVED = 0.2


def advise(session: Session) -> int:
    """Measure, predict, and print a line for each choice of machines and sentences that name the best.

    Raises:
        WrongArgument: a machine, an accelerator or a region is unknown, or no batch is as large as asked for.
        UserError: there is no local run yet.
    """
    arguments, screen = session.arguments, session.screen
    file = find_root() / TABLE
    if arguments.refresh:
        _refresh(session, file)
    prices = read_prices(file)
    try:
        choices = [advice.parse_choice(text, prices) for text in arguments.machine or ()]
    except UserError as error:
        raise WrongArgument(str(error)) from error
    if session.vertex.region not in prices.regions:
        raise WrongArgument(
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
    question = _question(session, measured, rates_of(session, prices))
    screen.note(_title(session, measured, question, prices))
    if stale := prices.stale(date.today()):
        screen.warning(stale)
    if measured.training is None:
        screen.note(_scaled(measured, question))
        return SUCCEEDED
    advisor = Advisor(measured, prices, question)
    answers, left_out = _answers(advisor, choices, session.vertex.machines)
    here = advisor.here()
    screen.table(HEADER, [_row(answer) for answer in (here, *answers)], left=2)
    sentences = _sentences(answers, here, prices, arguments.spot, arguments.within)
    screen.note("\n".join(["", *sentences, *_unpriced(answers, left_out, question), *_notes(measured, question)]))
    if searches(session.config) and "Tuner" not in measured.steps:
        screen.note("The run took the hyperparameters of an earlier search: no search is in these times and prices.")
    if arguments.json:
        _write(Path(arguments.json), advisor, answers, question)
        screen.note(f"written to {arguments.json}")
    return SUCCEEDED


def _create(config: PipelineConfig, target: Target, sample: Sample) -> Pipeline:
    """Create the graph. TFX takes seconds, and a measurement that is kept needs none of it."""
    from pipeline.graph import create_pipeline

    return create_pipeline(config, target, sample)


def _refresh(session: Session, file: Path) -> None:
    """Bring the prices up to date.

    Raises:
        WrongArgument: there is no project to ask for.
        UserError: there is no answer.
    """
    if not session.arguments.project:
        raise WrongArgument(
            "--refresh asks Google's Cloud Billing Catalog in the name of a project: give --project (or "
            "GOOGLE_CLOUD_PROJECT); everything else of advise goes without"
        )
    # Google's clients take seconds, and nothing else here needs them.
    from pipeline.vertex.pipelines import billing

    billing.refresh(file, session.connect(), session.screen.note)


def _question(session: Session, measured: Measured, rates: Rates) -> Question:
    """Return what is asked: the settings of the config and the rows of the last run, where no flag says otherwise.

    Raises:
        WrongArgument: no batch is as large as asked for.
    """
    arguments, training = session.arguments, session.config.training
    rows = arguments.rows or sum(measured.rows.values())
    of_training = rows * measured.rows["train"] // sum(measured.rows.values())
    if (arguments.batch_size or 0) > of_training:
        raise WrongArgument(
            f"--batch-size is {arguments.batch_size:,}, and of {rows:,} rows {of_training:,} are trained on; take fewer"
        )
    batch_size = arguments.batch_size or training.batch_size
    return Question(
        rows=rows,
        epochs=arguments.epochs or training.epochs,
        batch_size=batch_size * training.accumulate,
        region=session.vertex.region,
        rates=rates,
    )


def _answers(advisor: Advisor, choices: list[Choice], machines: Machines) -> tuple[list[Answer], list[Answer]]:
    """Return the answers for the choices that were asked about or, without any, for all sensible ones with a price.

    Returns:
        The answers, and those that are left out because they have no price in the region.
    """
    if choices:
        return [advisor.answer(choice) for choice in choices], []
    current = _current(machines, advisor)
    known = [*([] if current is None or current in advice.CHOICES else [current]), *advice.CHOICES]
    found = [advisor.answer(choice) for choice in known]
    answers = [answer for answer in found if not answer.parts or answer.price(False) < math.inf]
    left_out = [answer for answer in found if answer not in answers]
    return [*answers, *advice.with_replicas(answers, advisor)], left_out


def _current(machines: Machines, advisor: Advisor) -> Choice | None:
    """Return what the training runs on by the table of machines; None: no machine with a price has what it asks for."""
    job, task = machines.training, machines.task("Trainer")
    if job:
        return Choice(job.machine_type, job.accelerator, job.accelerators, job.replicas)
    with contextlib.suppress(UserError):
        return advisor.choice_of(task)
    return None


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
        "-" if answer.dollars is None else dollars(answer.dollars),
        "-" if answer.spot_dollars is None or not answer.choice.job else dollars(answer.spot_dollars),
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


def _sentences(answers: list[Answer], here: Answer, prices: Prices, spot: bool, within: float | None) -> list[str]:
    """Return a sentence for each question: which is the cheapest, which the fastest, is an accelerator worth it."""
    cheapest, fastest = advice.cheapest(answers, spot), advice.fastest(answers, spot)
    if not cheapest or not fastest:
        fits = any(answer.parts for answer in answers)
        return [] if fits else ["no choice fits into memory: take a smaller batch or a larger machine"]
    lines = [f"cheapest  {_named(cheapest, spot)}", f"fastest   {_named(fastest, spot)}"]
    best = None
    if within is not None:
        best = advice.cheapest(answers, spot, within)
        lines.append(
            f"within {_time(within)}  {_named(best, spot)}{_unless_late(best, within)}"
            if best
            else f"within {_time(within)}  none ends in time; the fastest is {_named(fastest, spot)}"
        )
    if here.seconds < fastest.seconds and (within is None or here.seconds <= within):
        lines.append(f"this machine does it in {taken(here)}")
    if any(answer and is_tpu(answer.choice.machine_type) for answer in (cheapest, fastest, best)):
        lines.append("A TPU needs an image of your own with libtpu: docs/machines.md.")
    return [*lines, *_worth_of_accelerators(answers, prices, spot)]


def _unless_late(answer: Answer, within: float) -> str:
    return "; it may end too late" if answer.seconds * answer.factor > within else ""


def _time(seconds: float) -> str:
    """Return a deadline as one gives it."""
    for unit, name, least in ((86_400, "d", 2), (3_600, "h", 1)):
        if seconds >= least * unit:
            return f"{seconds / unit:g} {name}"
    return f"{seconds / 60:g} min"


def _unpriced(answers: list[Answer], left_out: list[Answer], question: Question) -> list[str]:
    """Return a sentence for each price that is missing, with the machines or the tasks that need it."""
    missing: dict[str, list[str]] = {}
    for answer in answers:
        if answer.unpriced:
            missing.setdefault(answer.unpriced, []).append(str(answer.choice))
    lines = [f"no price: {', '.join(names)}: {sentence}" for sentence, names in missing.items()]
    if left_out:
        lines.append(
            f"left out, without a price in {question.region}: {', '.join(str(answer.choice) for answer in left_out)}"
        )
    return [*lines, *(f"not in the prices: {sentence}" for sentence in question.rates.unpriced)]


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
    on_spot = " on spot" if spot and answer.choice.job else ""
    return f"{answer.choice}: {taken(answer)}, {dollars(answer.price(spot))}{on_spot}"


def _notes(measured: Measured, question: Question) -> list[str]:
    assert measured.training is not None
    rows = sum(measured.rows.values())
    notes = [
        "",
        f"Times and prices are of the whole run: {advice.TASK_START / 60:g} min for each task to start and "
        f"{advice.JOB_START / 60:g} for the machines of a job are assumed. Other machines: --machine TYPE.",
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
    asked = {name: value for name, value in dataclasses.asdict(question).items() if name != "rates"}
    content = {"question": asked, "steps_here": advisor.steps_here(), "answers": found}
    filesystem.write(to, json.dumps(content, indent=2) + "\n")
