"""List what the pipeline pays for on Google Cloud and does not use, with prices and the commands that end it."""

import datetime

from pipeline.cli.command_line import SUCCEEDED
from pipeline.cli.vertex.session import Session
from pipeline.costs.prices import TABLE, read_prices
from pipeline.settings.repository import find_root
from pipeline.vertex.cloud import explaining
from pipeline.vertex.pipelines.unused import Scope, Unused, search


def costs(session: Session) -> int:
    """List what is not used; change nothing, and return the same exit code with or without findings."""
    vertex, screen, now = session.vertex, session.screen, datetime.datetime.now(datetime.UTC)
    prices = read_prices(find_root() / TABLE)
    days = session.arguments.days
    screen.note(f"not used by {session.config.name} for {days} days in {vertex.project}, {vertex.region}:\n")
    if stale := prices.stale(now.date()):
        screen.warning(stale)
    with explaining("looking for what is not used"):
        scope = Scope(session.connect(), session.config, vertex, prices, now - datetime.timedelta(days=days))
        found = list(search(scope, screen.step_starts))
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
