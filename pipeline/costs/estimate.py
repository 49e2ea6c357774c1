"""Estimate what a run on Vertex AI takes and costs, from rates and the times of earlier runs; and what it has cost."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.costs.rates import Rate, Rates

# Between the time of a step here and on Vertex AI lie other processors, and buckets in the place of a disk; between two
# runs on the same machines the data and the neighbours. Assumptions, as factors: no run on Google Cloud was at hand.
FROM_HERE = (0.5, 2.0)
FROM_VERTEX = (0.8, 1.25)
# Seconds until a machine is there and has the image, which is paid for: least, likely and most. "You are charged ...
# from the moment when resources are provisioned for a job until the job finishes" (cloud.google.com/vertex-ai/pricing).
# An assumption until a job was watched: a watched task's time has it in it.
START = (30.0, 120.0, 300.0)


@dataclass(frozen=True)
class Times:
    """Durations of the tasks of an earlier run, with factors for the interval on the same machine."""

    source: str  # the run, for the reader of the estimate
    seconds: Mapping[str, float]  # by task; of a cached one, in the run that executed it
    machines: Mapping[str, str] = field(default_factory=dict)  # on Vertex AI, by task; empty: on this machine
    low: float = FROM_HERE[0]
    high: float = FROM_HERE[1]


@dataclass(frozen=True)
class Part:
    """Estimate of one part: hours and US dollars, each with its interval (low, high)."""

    task: str
    part: str
    machine: str
    hours: float
    hours_between: tuple[float, float]
    price: float
    price_between: tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """Estimate of the time and cost of a run."""

    parts: tuple[Part, ...]
    unknown: tuple[str, ...]  # tasks without an earlier run
    rates: Rates
    sources: tuple[str, ...]  # the earlier runs

    @property
    def price(self) -> float:
        """Return the sum in US dollars, with the fee of the run, without monthly costs."""
        return self.rates.run_fee + sum(part.price for part in self.parts)

    @property
    def price_between(self) -> tuple[float, float]:
        """Return the interval of the sum: that all parts are at its lower end, or all at its upper end."""
        low, high = (sum(part.price_between[end] for part in self.parts) for end in (0, 1))
        return self.rates.run_fee + low, self.rates.run_fee + high

    @property
    def gaps(self) -> tuple[str, ...]:
        """Return a sentence for each thing that keeps the sum from being whole."""
        untimed = f"no earlier run shows how long {', '.join(self.unknown) if self.parts else 'it'} takes"
        return (*self.rates.unpriced, *([untimed] if self.unknown else []))


def estimate(rates: Rates, earlier: Sequence[Times], start: tuple[float, float, float] = START) -> Estimate:
    """Return what a run will take and cost if no task is cached; the first of the earlier times of a task counts."""
    parts, unknown, sources = [], [], []
    for rate in rates.rates:
        times = next((times for times in earlier if rate.task in times.seconds), None)
        if times is None:
            # The report comes last and only on Vertex AI: until a job was watched, it is taken to be its start.
            times = Times("", {rate.task: 0.0}) if rate.task == "Report" and earlier else None
        if times is None:
            unknown.append(rate.task)
            continue
        parts.append(_part(rate, times, start))
        sources.append(times.source)
    return Estimate(
        tuple(parts), tuple(dict.fromkeys(unknown)), rates, tuple(dict.fromkeys(source for source in sources if source))
    )


def _part(rate: Rate, times: Times, start: tuple[float, float, float]) -> Part:
    seconds = times.seconds[rate.task]
    if times.machines:
        same = times.machines.get(f"{rate.task} {rate.part}") == rate.machine
        low, high = (times.low, times.high) if same else FROM_HERE
        least, likely, most = seconds * low, seconds, seconds * high
    else:
        least = start[0] + seconds * times.low * min(rate.share, rate.best_share)
        likely, most = start[1] + seconds * rate.share, start[2] + seconds * times.high * rate.share
    hours, between = likely / 3600, (least / 3600, most / 3600)
    price = rate.per_hour * hours
    prices = rate.per_hour * between[0], rate.per_hour * between[1]
    return Part(rate.task, rate.part, rate.machine, hours, between, price, prices)


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
