"""Estimate what a run takes and costs on machines of Vertex AI, from the last run on this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date

from pipeline.cli.command_line import SUCCEEDED, pipeline_flags
from pipeline.cli.vertex.commands import Session
from pipeline.costs import advice
from pipeline.costs.advice import Advisor, Answer, Measured, Question
from pipeline.costs.estimate import SEARCH, Rates, dollars, run_rates
from pipeline.costs.prices import TABLE, Prices, read_prices
from pipeline.errors import UserError, WrongArgument
from pipeline.packaging.user_code import searches
from pipeline.runs import store
from pipeline.runs.timings import measured
from pipeline.settings.machines import Machines
from pipeline.settings.repository import find_root, runner, shown

HEADER = ("machine", "hours (between)", "on demand", "spot")


def advise(session: Session) -> int:
    """Print a line for each choice of machines."""
    arguments, screen, table = session.arguments, session.screen, session.vertex.machines
    prices = read_prices(find_root() / TABLE)
    try:
        jobs = [advice.job_of(text, prices) for text in arguments.machine or advice.CHOICES]
    except UserError as error:
        raise WrongArgument(str(error)) from error
    if session.vertex.region not in prices.regions:
        raise WrongArgument(
            f"{prices.path} has no prices of {session.vertex.region}; it has those of {', '.join(prices.regions)}: "
            "name one of them with --region"
        )
    run = _last_run(session)
    question = Question(
        rows=arguments.rows or run.all_rows,
        epochs=arguments.epochs or session.config.training.epochs,
        kind="images" if session.config.data.images else "tables",
        precision=session.config.training.precision,
        epochs_here=session.config.training.epochs,
        search_rows=session.config.tuning.rows,
    )
    searching = searches(session.config) and SEARCH in run.seconds
    run = replace(run, seconds={name: run.seconds[name] for name in run.seconds if searching or name != SEARCH})

    def rates(machines: Machines) -> Rates:
        vertex = replace(session.vertex, machines=machines)
        return run_rates(session.config, vertex, prices, searching=searching, stored_gb=0.0)

    advisor = Advisor(run, question, prices, rates)
    choices = [*([] if arguments.machine else [table]), *(advice.with_job(table, job) for job in jobs)]
    answers, here = [advisor.answer(machines) for machines in choices], advisor.here()
    screen.note("\n".join(_title(session, run, question, prices)))
    if stale := prices.stale(date.today()):
        screen.warning(stale)
    screen.table(HEADER, [_row(answer) for answer in (here, *answers)])
    screen.note("\n".join(["", *_notes(answers)]))
    if searches(session.config) and not searching:
        screen.note("The run took the hyperparameters of an earlier search: no search is in these times and prices.")
    return SUCCEEDED


def _last_run(session: Session) -> Measured:
    output, command = session.output, f"{runner()}{pipeline_flags(session.arguments)}"
    for run in reversed(store.runs(output)):
        if run.record.exit_code is not None and run.artifact("Trainer", "model_run"):
            return measured(run)
    raise UserError(f"there is no finished run below {shown(output)} yet; start one: {command}")


def _title(session: Session, run: Measured, question: Question, prices: Prices) -> list[str]:
    """Return the lines above the table; the first one warns where the run had far fewer rows."""
    few = run.all_rows < advice.LEAST_SHARE * question.rows
    speed = f", {run.speed:,.0f} examples/s" if run.speed else ""
    warning = f"These times are extrapolated from {run.all_rows:,} rows to {question.rows:,}; run on more rows."
    return [
        *([warning] if few else []),
        f"{session.config.name}: {question.rows:,} rows, at most {question.epochs} epochs",
        f"  measured  run {run.run} on this machine, {run.cores} {'core' if run.cores == 1 else 'cores'}{speed}",
        f"  prices    {prices.path} of {prices.date}, {session.vertex.region}, in US dollars",
        "",
    ]


def _row(answer: Answer) -> tuple[str, ...]:
    on_demand = "-" if answer.machine == advice.HERE else _amount(answer.dollars)
    return answer.machine, _taken(answer), on_demand, _amount(answer.spot_dollars) if answer.job else "-"


def _amount(price: float | None) -> str:
    return "unknown" if price is None else dollars(price)


def _taken(answer: Answer) -> str:
    if answer.hours is None:
        return "unknown"
    least, likely, most = (f"{hours:.2f}" if hours < 10 else f"{hours:,.0f}" for hours in answer.hours)
    return f"{likely} ({least} to {most})"


def _notes(answers: Sequence[Answer]) -> list[str]:
    tpus = ("tpu" in answer.machine and answer.hours for answer in answers)
    missing = dict.fromkeys(sentence for answer in answers for sentence in answer.missing)
    return [
        *(f"unknown: {sentence}" for sentence in missing),
        *(["A TPU needs an image of your own with libtpu: docs/machines.md."] if any(tpus) else []),
        "Hours and prices are of the whole run, start of the machines included. Other machines: --machine TYPE.",
    ]
