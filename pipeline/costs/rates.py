"""Compute from the settings what the parts of a run on Vertex AI cost an hour, and what stays costs a month."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

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


def task_per_hour(resources: Resources, prices: Prices, region: str) -> float:
    """Return US dollars for an hour of a task with these resources, its disk included."""
    machine = task_machine(resources, prices, region)
    price = prices.per_hour(machine, resources.accelerator, resources.accelerators, region=region)
    return price + prices.disk_per_hour(DISK, DISK_GIB, region=region)


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
    return Rate(task, "task", text, task_per_hour(resources, prices, region), share, best)


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
