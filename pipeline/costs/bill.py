"""Compute what a run on Vertex AI has cost from the times of its tasks."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.costs.estimate import FROM_VERTEX, Times
from pipeline.costs.rates import Rates

CAVEAT = "About, at list prices in US dollars; discounts, taxes and other currencies are left out."


def dollars(amount: float) -> str:
    """Return an amount of US dollars as text."""
    return "<$0.01" if 0 < amount < 0.005 else f"${amount:,.2f}"


def fee(amount: float) -> str:
    """Return the fee of a run as text; it is never 0, which stands for a price that is missing."""
    return dollars(amount) if amount else "not known"


@dataclass(frozen=True)
class Line:
    """Cost of one part of a run: its task, its machines, seconds of the task and US dollars."""

    task: str
    part: str
    machine: str
    seconds: float
    cost: float


@dataclass(frozen=True)
class Bill:
    """Cost of a run that has ended."""

    lines: tuple[Line, ...]
    run_fee: float
    unpriced: tuple[str, ...]  # a sentence for each missing price
    date: str  # of the prices, ISO 8601

    @property
    def total(self) -> float:
        """Return the sum in US dollars."""
        return self.run_fee + sum(line.cost for line in self.lines)


def bill_of(rates: Rates, seconds: Mapping[str, float]) -> Bill:
    """Return what the tasks of a run have cost, by their seconds; cached ones are not among them."""
    # The job says nothing about workers of Dataflow, which come and go. A job that a task waits for has its time.
    parts = [rate for rate in rates.rates if rate.task in seconds and rate.part != "dataflow"]
    lines = (
        Line(rate.task, rate.part, rate.machine, seconds[rate.task], rate.per_hour * seconds[rate.task] / 3600)
        for rate in parts
    )
    left_out = ("the workers of Dataflow are not in it",) if any(r.part == "dataflow" for r in rates.rates) else ()
    return Bill(tuple(lines), rates.run_fee, (*rates.unpriced, *left_out), rates.date)


def to_dict(bill: Bill) -> dict[str, Any]:
    """Return a bill as the record of a run has it, with its total."""
    return {**dataclasses.asdict(bill), "total": bill.total}


def from_dict(values: Mapping[str, Any]) -> Bill:
    """Return the bill that ``to_dict`` wrote."""
    lines = tuple(Line(**line) for line in values["lines"])
    return Bill(lines, values["run_fee"], tuple(values["unpriced"]), values["date"])


def times_of(bill: Bill, source: str) -> Times:
    """Return the times of the tasks of a run, and what they ran on, for the estimate of the next."""
    machines = {f"{line.task} {line.part}": line.machine for line in bill.lines}
    return Times(source, {line.task: line.seconds for line in bill.lines}, machines, *FROM_VERTEX)
