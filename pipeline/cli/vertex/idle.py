"""List what is paid for on Google Cloud and not used, with its price a month and the command that ends it."""

import datetime

from pipeline.cli.command_line import SUCCEEDED
from pipeline.cli.vertex.session import Session
from pipeline.costs.prices import TABLE, read_prices
from pipeline.settings.repository import find_root
from pipeline.vertex.cloud import explaining
from pipeline.vertex.pipelines.idle.finding import Scope
from pipeline.vertex.pipelines.idle.search import Found, search


def costs(session: Session) -> int:
    """List what is idle; nothing is changed, and the exit code is 0 also when something is."""
    vertex, arguments, screen = session.vertex, session.arguments, session.screen
    prices = read_prices(find_root() / TABLE)
    now = datetime.datetime.now(datetime.UTC)
    whose = "everything" if arguments.all else f"the pipeline {session.config.name}"
    screen.note(
        f"{whose} in {vertex.project}, {vertex.region}, gs://{vertex.bucket}: not used for {arguments.days} days\n"
    )
    if stale := prices.stale(now.date()):
        screen.warning(stale)
    with explaining("looking for what is idle"):
        scope = Scope(
            cloud=session.connect(),
            pipeline=session.config.name,
            bucket=vertex.bucket,
            endpoint=vertex.endpoint.name if vertex.endpoint else None,
            tensorboards=frozenset(
                job.tensorboard for job in (vertex.machines.training, vertex.machines.tuning) if job and job.tensorboard
            ),
            whole=arguments.all,
            days=arguments.days,
            now=now,
            prices=prices,
        )
        _show(search(scope, screen.step_starts), session)
    return SUCCEEDED


def _show(found: Found, session: Session) -> None:
    """Print a table of what is idle, the commands that end it, and what could not be looked at."""
    screen = session.screen
    if found.idle:
        known = [idle.price.dollars for idle in found.idle if idle.price.dollars is not None]
        amounts = [_amount(idle.price.dollars) for idle in found.idle]
        rows = [
            (f"{number:>2} {idle.what}", idle.why, amount)
            for number, (idle, amount) in enumerate(zip(found.idle, amounts, strict=True), 1)
        ]
        unknown = len(found.idle) - len(known)
        without = f"without {unknown} whose price is unknown" if unknown else ""
        screen.table(("what", "why", "$ a month"), [*rows, ("   total", without, _amount(sum(known)))], left=2)
        screen.note("\nwhat ends them; nothing was changed:")
        for number, idle in enumerate(found.idle, 1):
            screen.note(f" {number:>2} {idle.command}")
    else:
        screen.note("nothing idle" + (" in what could be looked at" if found.unseen else ""))
    reasons = dict.fromkeys(idle.price.unknown for idle in found.idle if idle.price.dollars is None)
    lines = [f"price unknown: {reason}" for reason in reasons]
    lines += [f"not looked at: {unseen.what}: {unseen.reason}" for unseen in found.unseen]
    lines += [note.text for note in found.notes]
    if lines:
        screen.note("")
    for line in lines:
        screen.note(" ".join(line.split()))  # a line each, whatever is in a name


def _amount(dollars: float | None) -> str:
    if dollars is None:
        return "unknown"
    return "<0.01" if 0 < dollars < 0.005 else f"{dollars:,.2f}"
