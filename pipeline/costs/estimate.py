"""Estimate what a run on Vertex AI takes and costs, from settings and earlier runs; compute what it has cost."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pipeline.costs.prices import HOURS_A_MONTH, Machine, Prices
from pipeline.errors import UserError
from pipeline.settings.config import PipelineConfig
from pipeline.settings.machines import TASKS, Job, Resources
from pipeline.settings.names import shortened
from pipeline.settings.target import Dataflow, Vertex

SEARCH = "Tuner"
# Tasks that hand their work to Dataflow, where that is on.
BEAM_TASKS = ("ExampleGen", "StatisticsGen", "Transform", "Evaluator")
# Families among which Vertex AI Pipelines finds the machine of a task without accelerators: a task that asks for
# nothing runs on e2-standard-4 (cloud.google.com/vertex-ai/docs/pipelines/machine-types), and the most a task may ask
# for, 96 cores and 624 GB, is n1-highmem-96. Which one it takes between is not written; the cheapest that fits is
# assumed.
TASK_FAMILIES = ("e2", "n1")
# Disk of a task, and the default of a job: cloud.google.com/vertex-ai/docs/reference/rest/v1/DiskSpec.
DISK, DISK_GIB = "pd-ssd", 100
# Disk of a worker with Dataflow's own shuffle: cloud.google.com/dataflow/docs/reference/pipeline-options.
WORKER_DISK_GIB = 25
# Share of the time of this machine that an accelerator may need at best: a bound for the interval of an estimate.
BEST_SHARE = 0.05
NAMES = 3  # of parts that need the same missing price that a sentence shows
LEAST_STORED_GB = 0.1  # less costs a fifth of a cent a month

_Found = TypeVar("_Found")
# Between the time of a step here and on Vertex AI lie other processors, and buckets in the place of a disk; between two
# runs on the same machines the data and the neighbours. Assumptions, as factors: no run on Google Cloud was at hand.
FROM_HERE = (0.5, 2.0)
FROM_VERTEX = (0.8, 1.25)
# Seconds until a machine is there and has the image, which is paid for: least, likely and most. "You are charged ...
# from the moment when resources are provisioned for a job until the job finishes" (cloud.google.com/vertex-ai/pricing).
# An assumption until a job was watched: a watched task's time has it in it.
START = (30.0, 120.0, 300.0)


@dataclass(frozen=True)
class Rate:
    """Price of a part of a run for an hour."""

    task: str  # whose time it takes
    part: str  # "task", "job" that the task waits for, or "dataflow"
    machine: str  # such as "2 x n1-standard-8 with 1 NVIDIA_TESLA_T4"
    per_hour: float  # US dollars for all of them
    share: float = 1.0  # of the time of one process on this machine, if the work is dealt to replicas
    best_share: float = 1.0  # the same at best


@dataclass(frozen=True)
class Monthly:
    """Price of something that stays after the run, for a month, in US dollars."""

    name: str
    detail: str
    per_month: float


@dataclass(frozen=True)
class Rates:
    """Prices of all parts of a run."""

    rates: tuple[Rate, ...]  # in the order of the graph
    run_fee: float  # however long the run takes
    monthly: tuple[Monthly, ...]  # paid as long as it stays
    unpriced: tuple[str, ...]  # a sentence for each missing price, with the parts that need it
    date: str  # of the prices, ISO 8601


def run_rates(config: PipelineConfig, vertex: Vertex, prices: Prices, *, searching: bool, stored_gb: float) -> Rates:
    """Return what the parts of a run cost an hour; ``stored_gb`` is the size of its artifacts, 0 if not known."""
    unpriced: dict[str, list[str]] = {}

    def priced(name: str, make: Callable[[], _Found]) -> list[_Found]:
        try:
            return [make()]
        except UserError as error:
            unpriced.setdefault(str(error), []).append(name)
            return []

    tasks = [task for task in TASKS if task != SEARCH or searching]
    parts = [part for task in tasks for part in _parts(task, config, vertex, prices)]
    rates = [rate for name, make in parts for rate in priced(name, make)]
    fees = priced("run of the pipeline", lambda: prices.price("pipeline_run", vertex.region))
    monthly = priced("endpoint", lambda: _endpoint(vertex, prices)) if vertex.endpoint else []
    if stored_gb >= LEAST_STORED_GB:
        detail = f"{stored_gb:,.2f} GB of artifacts of one run"
        monthly += priced(
            "storage", lambda: Monthly("storage", detail, stored_gb * prices.price("storage", vertex.region))
        )
    sentences = tuple(f"{shortened(names, NAMES)}: {sentence}" for sentence, names in unpriced.items())
    return Rates(tuple(rates), sum(fees), tuple(monthly), sentences, prices.date.isoformat())


def task_machine(resources: Resources, prices: Prices, region: str) -> str:
    """Return the machine type that a task gets: the cheapest that has its cores, memory and accelerators."""
    accelerator, count = resources.accelerator, resources.accelerators
    built_in = any(accelerator and machine.accelerator == accelerator for machine in prices.machines.values())

    def fits(machine: Machine) -> bool:
        if machine.cpus < resources.cpu or machine.memory_gib < resources.memory_gib:
            return False
        if built_in:
            return (machine.accelerator, machine.accelerators) == (accelerator, count)
        return machine.family in (("n1",) if accelerator else TASK_FAMILIES)

    fitting = [name for name, machine in prices.machines.items() if fits(machine)]
    if not fitting:
        wanted = f"{resources.cpu} cores and {resources.memory_gib} GiB{_beside(accelerator, count)}"
        raise UserError(f"{prices.path} has no machine type with {wanted}; ask for less, or run it as a job")
    priced: dict[str, float] = {}
    for name in fitting:
        with contextlib.suppress(UserError):
            priced[name] = prices.per_hour(name, accelerator, count, region=region)
    if not priced:
        prices.per_hour(fitting[0], accelerator, count, region=region)  # which says what has no price
    return min(priced, key=lambda name: priced[name])


def _parts(
    task: str, config: PipelineConfig, vertex: Vertex, prices: Prices
) -> Iterator[tuple[str, Callable[[], Rate]]]:
    job = {"Trainer": vertex.machines.training, SEARCH: vertex.machines.tuning}.get(task)
    share, best = 1.0, 1.0
    if job and task == SEARCH:
        share = best = math.ceil(config.tuning.trials / job.replicas) / config.tuning.trials
    elif job:
        best = 1 / job.replicas
    if (job and (job.accelerator or job.tpu)) or vertex.machines.task(task).accelerator:
        best *= BEST_SHARE
    yield task, lambda: _task(task, vertex, prices, share, best)
    if job:
        yield f"job of the {task}", lambda: _job(task, job, vertex.region, prices, share, best)
    if vertex.dataflow and task in BEAM_TASKS:
        dataflow = vertex.dataflow
        yield f"Dataflow of {task}", lambda: _worker(task, dataflow, prices)


def _task(task: str, vertex: Vertex, prices: Prices, share: float, best: float) -> Rate:
    resources, region = vertex.machines.task(task), vertex.region
    machine = task_machine(resources, prices, region)
    built_in = prices.machine(machine).accelerator
    text = machine if built_in else f"{machine}{_beside(resources.accelerator, resources.accelerators)}"
    price = prices.per_hour(machine, resources.accelerator, resources.accelerators, region=region)
    return Rate(task, "task", text, price + prices.disk_per_hour(DISK, DISK_GIB, region=region), share, best)


def _job(task: str, job: Job, region: str, prices: Prices, share: float, best: float) -> Rate:
    disk = prices.disk_per_hour(job.boot_disk_type, job.boot_disk_gib, region=region)
    replica = prices.per_hour(job.machine_type, job.accelerator, job.accelerators, region=region, spot=job.spot)
    price = job.replicas * (replica + disk)
    text = f"{job.replicas} x {job.machine_type}{_beside(job.accelerator, job.accelerators)}"
    if job.reduction_servers:
        server = prices.per_hour(job.reduction_machine_type, region=region, spot=job.spot)
        price += job.reduction_servers * (server + disk)
        text += f", {job.reduction_servers} x {job.reduction_machine_type}"
    return Rate(task, "job", f"{text}{', spot' if job.spot else ''}", price, share, best)


def _worker(task: str, dataflow: Dataflow, prices: Prices) -> Rate:
    machine, region = prices.machine(dataflow.machine_type), dataflow.region
    price = machine.cpus * prices.price("dataflow.vcpu", region)
    price += machine.memory_gib * prices.price("dataflow.gib", region)
    price += WORKER_DISK_GIB * prices.price("dataflow.disk", region)
    # One worker does what one process does here; several share the same work.
    return Rate(task, "dataflow", f"Dataflow, {machine.name}", price, 1.0, 1 / machine.cpus)


def _endpoint(vertex: Vertex, prices: Prices) -> Monthly:
    endpoint = vertex.endpoint
    assert endpoint
    price = prices.per_hour(
        endpoint.machine_type, endpoint.accelerator, endpoint.accelerators, region=vertex.region, use="prediction"
    )
    machines = f"{endpoint.machine_type}{_beside(endpoint.accelerator, endpoint.accelerators)}"
    detail = f"{endpoint.min_replicas} x {machines} without traffic, up to {endpoint.max_replicas} with it"
    return Monthly("endpoint", detail, price * endpoint.min_replicas * HOURS_A_MONTH)


def _beside(accelerator: str | None, count: int) -> str:
    return f" with {count} {accelerator}" if accelerator else ""


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
