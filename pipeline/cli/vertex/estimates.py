"""Show costs on Vertex AI: of a run before and after it, against a budget, and of unused resources."""

import datetime
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from pipeline.cli.command_line import SUCCEEDED, pipeline_flags
from pipeline.cli.terminal import Screen
from pipeline.cli.vertex.commands import Session
from pipeline.costs.estimate import (
    CAVEAT,
    Bill,
    Estimate,
    Part,
    Rate,
    Rates,
    Times,
    dollars,
    estimate,
    fee,
    run_rates,
    times_of,
)
from pipeline.costs.prices import TABLE, Prices, read_prices
from pipeline.errors import UserError
from pipeline.packaging.user_code import searches
from pipeline.runs import watched_jobs
from pipeline.settings.names import shortened
from pipeline.settings.repository import find_root, runner

NAMES = 2  # of tasks on one machine that a row shows

_Priced = TypeVar("_Priced", Part, Rate)


def rates_of(session: Session, prices: Prices, stored_gb: float = 0.0) -> Rates:
    """Return what the parts of the session's run cost an hour."""
    found = searches(session.config)
    return run_rates(session.config, session.vertex, prices, searching=found, stored_gb=stored_gb)


def compiled_rates(session: Session) -> Rates | None:
    """Return the rates for the bill at the run's end; None, and a line about it, if there are no prices."""
    try:
        return rates_of(session, read_prices(find_root() / TABLE))
    except UserError as error:
        session.screen.note(f"the run will have no bill: {error}")
        return None


def show(session: Session) -> bool:
    """Show the estimate of the session's run; return whether it keeps to its budget, if there is one."""
    screen = session.screen
    budget = session.arguments.max_cost or session.vertex.machines.max_cost
    try:
        prices = read_prices(find_root() / TABLE)
    except UserError as error:
        screen.finding("costs", "wrong" if budget else "unsure", str(error), "")
        return not budget
    try:
        earlier, stored_gb = _earlier(session.output)
    except UserError as error:  # what lies here is needed for the sum, and not for the run
        screen.finding("earlier runs", "unsure", str(error), "")
        earlier, stored_gb = [], 0.0
    found = estimate(rates_of(session, prices, stored_gb), earlier)
    local_run = f"{runner()}{pipeline_flags(session.arguments)}"
    _print(found, prices, local_run, screen)
    return _within(found, budget, local_run, screen) if budget else True


def show_bill(bill: Bill, screen: Screen) -> None:
    """Show what a run has taken and cost, by task."""
    rows = [
        (_name(line.task, line.part), line.machine, f"{line.seconds / 3600:.2f}", dollars(line.cost))
        for line in bill.lines
    ]
    rows += [("run of the pipeline", "", "", fee(bill.run_fee)), ("together", "", "", dollars(bill.total))]
    screen.note("")
    screen.table(("cost by task", "machine", "hours", "cost"), rows, left=2)
    _print_left_out(bill.unpriced, bill.date, screen)


def costs(session: Session) -> int:
    """List what is not used; change nothing, and return the same exit code with or without findings."""
    # Google's clients take seconds.
    from pipeline.vertex.cloud import explaining
    from pipeline.vertex.pipelines.unused import Scope, Unused, search

    vertex, screen, now = session.vertex, session.screen, datetime.datetime.now(datetime.UTC)
    prices = read_prices(find_root() / TABLE)
    days = session.arguments.days
    screen.note(f"not used by {session.config.name} for {days} days in {vertex.project}, {vertex.region}:\n")
    if stale := prices.stale(now.date()):
        screen.warning(stale)
    with explaining("looking for what is not used"):
        scope = Scope(session.connect(), session.config, vertex, prices, now - datetime.timedelta(days=days))
        found = list(search(scope, screen.busy))
    unused, lines = [one for one in found if isinstance(one, Unused)], [one for one in found if isinstance(one, str)]
    if unused:
        amounts = ["unknown" if one.price is None else f"{one.price:,.2f}" for one in unused]
        rows = [(f"{number:>2}", one.what, amounts[number - 1]) for number, one in enumerate(unused, 1)]
        rows.append(("", "total of the known prices", f"{sum(one.price or 0.0 for one in unused):,.2f}"))
        screen.table(("", "what", "$ a month"), rows, left=2)
        screen.note("\nwhat ends them; nothing was changed:")
        for number, one in enumerate(unused, 1):
            screen.note(f" {number:>2} {one.command}")
    else:
        screen.note("nothing" + (" in what could be checked" if lines else ""))
    for line in ["", *lines] if lines else ():
        screen.note(" ".join(line.split()))  # a line each, whatever is in a name
    return SUCCEEDED


def _earlier(output: Path) -> tuple[list[Times], float]:
    """Return the times of earlier runs, on Vertex AI first and the newest first; and what the last left here, in GB."""
    from pipeline.runs import store

    jobs = [job for job in reversed(watched_jobs.read_all(output)) if job.state == "succeeded"]
    times = [times_of(job.bill, f"the job {job.id} on Vertex AI") for job in jobs]
    runs = [run for run in store.runs(output) if run.record.exit_code is not None and run.makers]
    for run in reversed(runs):
        times.append(Times(f"the run {run.name} on this machine", run.seconds_of_steps))
    last = runs[-1].outputs.values() if runs else ()
    folders = {artifact.uri for outputs in last for artifacts in outputs.values() for artifact in artifacts}
    files = (file for folder in folders for file in Path(folder).rglob("*"))
    return times, sum(file.stat().st_size for file in files if file.is_file()) / 1e9


def _print(found: Estimate, prices: Prices, local_run: str, screen: Screen) -> None:
    if found.parts:
        screen.note(f"costs, estimated from {' and '.join(found.sources)}, if nothing is cached")
        rows = [
            (_names(parts), parts[0].machine, f"{sum(part.hours for part in parts):.2f}", *_amounts(parts))
            for parts in _grouped(found.parts)
        ]
        low, high = found.price_between
        rows.append(("run of the pipeline", "", "", fee(found.rates.run_fee), ""))
        rows.append(("together", "", "", dollars(found.price), f"{dollars(low)} to {dollars(high)}"))
        screen.table(("", "machine", "hours", "cost", "between"), rows, left=2)
    else:
        screen.note("costs an hour; no earlier run shows how long it takes")
        hourly = [
            (_names(rates), rates[0].machine, dollars(rates[0].per_hour)) for rates in _grouped(found.rates.rates)
        ]
        screen.table(("", "machine", "an hour"), hourly, left=2)
        screen.note(f"for a sum, run it once on this machine: {local_run}")
    for month in found.rates.monthly:
        screen.note(f"and {dollars(month.per_month)} a month for the {month.name}: {month.detail}")
    stale = prices.stale(datetime.date.today())
    if stale:
        screen.warning(stale)
    _print_left_out(found.gaps if found.parts else found.rates.unpriced, found.rates.date, screen)


def _print_left_out(sentences: Iterable[str], date: str, screen: Screen) -> None:
    for sentence in sentences:
        screen.note(f"not in the sum: {sentence}")
    screen.note(f"{CAVEAT} Prices of {date}.")


def _within(found: Estimate, budget: float, local_run: str, screen: Screen) -> bool:
    given = dollars(budget) if budget == round(budget, 2) else f"${budget:,.10g}"
    limit = f"the limit of {given} (--max-cost, or max_cost in the table of machines)"
    if found.gaps:
        reasons = "; ".join(found.gaps)
        remedies = [
            *([f"run it once on this machine ({local_run})"] if found.unknown else []),
            *(["give what lacks a price another machine or region"] if found.rates.unpriced else []),
            "lift the limit",
        ]
        remedy = ", or ".join(remedies)
        screen.finding(
            "budget", "wrong", f"what the run costs is not known, so {limit} cannot be kept: {reasons}", remedy
        )
        return False
    low, high = found.price_between
    # All digits where cents alone would say that it is both at the limit and above it.
    price = dollars(found.price) if abs(found.price - budget) >= 0.01 else f"${found.price:.4f}"
    text = f"the run is estimated at {price}, between {dollars(low)} and {dollars(high)};"
    if found.price > budget:
        dearest = max(_grouped(found.parts), key=lambda parts: sum(part.price for part in parts))
        share = dollars(sum(part.price for part in dearest))
        remedy = (
            f"{_names(dearest)} on {dearest[0].machine} has {share} of it: take a smaller machine, fewer replicas or "
            "trials, or spot machines for a job; or raise the limit"
        )
        screen.finding("budget", "wrong", f"{text} that is above {limit}", remedy)
        return False
    state = "unsure" if high > budget else "ok"
    screen.finding("budget", state, f"{text} {'it may pass' if high > budget else 'that is within'} {limit}", "")
    return True


def _grouped(parts: Sequence[_Priced]) -> list[list[_Priced]]:
    """Return parts that are paid for alike together: tasks on the same machine; a job stands alone."""
    groups: dict[tuple[str, str, str], list[_Priced]] = {}
    for part in parts:
        key = (part.part, part.machine, part.task if part.part == "job" else "")
        groups.setdefault(key, []).append(part)
    return list(groups.values())


def _names(parts: Sequence[_Priced]) -> str:
    return shortened((_name(part.task, part.part) for part in parts), NAMES)


def _name(task: str, part: str) -> str:
    return f"{task}, its job" if part == "job" else task


def _amounts(parts: Sequence[Part]) -> tuple[str, str]:
    low, high = (sum(part.price_between[end] for part in parts) for end in (0, 1))
    return dollars(sum(part.price for part in parts)), f"{dollars(low)} to {dollars(high)}"
