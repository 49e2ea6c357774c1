"""Estimate what a run takes and costs on other machines: from its times here, published speeds, and prices."""

import dataclasses
import math
import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipeline.costs.estimate import FROM_HERE, FROM_VERTEX, SEARCH, START, Rates, Times, estimate
from pipeline.costs.prices import Prices
from pipeline.errors import UserError
from pipeline.settings.machines import HYPERDISK_ONLY, TASKS, Disk, Job, Machines, is_tpu

TRAINER, HERE = "Trainer", "this machine"
# An estimate from less than this share of the rows starts with a warning.
LEAST_SHARE = 0.01
CHOICES = (
    *(f"{family}-standard-{cpus}" for family in ("n1", "n2") for cpus in (4, 8, 16, 32)),
    *("n1-standard-8+NVIDIA_TESLA_T4", "g2-standard-8", "n1-standard-8+NVIDIA_TESLA_V100", "a2-highgpu-1g"),
    "ct5lp-hightpu-1t",
)


@dataclass(frozen=True)
class Measured:
    """Times of a finished run on this machine."""

    run: str
    rows: Mapping[str, int]  # by split
    cores: int
    seconds: Mapping[str, float]  # by step
    examples_per_second: tuple[float, ...] = ()  # by epoch of the network; empty without a history
    accelerated: bool = False

    @property
    def all_rows(self) -> int:
        """Return the rows of all splits together."""
        return sum(self.rows.values())

    @property
    def speed(self) -> float | None:
        """Return the examples/s of an epoch in the middle, as the first one compiles; None where none was measured."""
        return statistics.median(self.examples_per_second) if self.examples_per_second else None


@dataclass(frozen=True)
class Question:
    """A training to estimate."""

    rows: int  # of all splits
    epochs: int  # at most
    kind: str  # of data, by which the table of prices has speeds
    precision: str
    epochs_here: int  # at most, in the measured run
    search_rows: int | None = None  # at most, of the train split in a trial; None: all


@dataclass(frozen=True)
class Answer:
    """An estimate for one choice of machines."""

    machine: str
    hours: tuple[float, float, float] | None  # least, likely, most
    dollars: float | None = None  # of the whole run on demand
    spot_dollars: float | None = None  # with the job on spot machines, which tasks never are
    job: bool = True  # or else the task of the Trainer
    missing: tuple[str, ...] = ()  # what is not known, in sentences


class _Unknown(Exception):
    """Reason why the time of a training cannot be known."""


class Advisor:
    """Estimates from one measured run."""

    def __init__(
        self, measured: Measured, question: Question, prices: Prices, rates: Callable[[Machines], Rates]
    ) -> None:
        self._measured, self._question, self._prices, self._rates = measured, question, prices, rates
        growth = question.rows / measured.all_rows
        self._others = {name: growth * seconds for name, seconds in measured.seconds.items() if name != TRAINER}
        if SEARCH in self._others and question.search_rows:
            train = measured.rows["train"]
            searched = min(question.search_rows, growth * train) / min(question.search_rows, train)
            self._others[SEARCH] = searched * measured.seconds[SEARCH]
        trainer, train = measured.seconds[TRAINER], measured.rows["train"]
        if measured.speed:
            epoch = train / measured.speed
            self._epochs = growth * question.epochs * epoch
            self._rest = growth * max(0.0, trainer - len(measured.examples_per_second) * epoch)
        else:
            self._epochs, self._rest = growth * trainer * question.epochs / question.epochs_here, 0.0

    def here(self) -> Answer:
        """Return the estimate for this machine."""
        hours = (sum(self._others.values()) + self._epochs + self._rest) / 3600
        return Answer(HERE, (hours * FROM_VERTEX[0], hours, hours * FROM_VERTEX[1]), job=False)

    def answer(self, machines: Machines) -> Answer:
        """Return the estimate for a table of machines."""
        job = machines.training
        try:
            trainer = self._trainer(machines)
        except _Unknown as error:
            return Answer(label(machines), None, job=bool(job), missing=(str(error),))
        on_demand, on_spot = (
            self._rates(dataclasses.replace(machines, training=job and dataclasses.replace(job, spot=spot)))
            for spot in (False, True)
        )
        return Answer(
            label(machines),
            self._hours(trainer, on_demand, machines),
            self._dollars(trainer, on_demand),
            self._dollars(trainer, on_spot),
            bool(job),
            on_demand.unpriced or on_spot.unpriced,
        )

    def _hardware(self, machines: Machines) -> tuple[int, str | None, int]:
        """Return the vCPUs of the training, its accelerator and how many of them."""
        job = machines.training
        if job is None:
            task = machines.task(TRAINER)
            return task.cpu, task.accelerator, task.accelerators
        machine = self._prices.machine(job.machine_type)
        accelerator, count = job.accelerator or machine.accelerator, job.accelerators or machine.accelerators
        return job.replicas * machine.cpus, accelerator, job.replicas * count

    def _trainer(self, machines: Machines) -> Times:
        here, (cpus, accelerator, count) = self._measured.cores, self._hardware(machines)
        if self._measured.accelerated:
            raise _Unknown("the run trained on an accelerator of this machine, and its type is not recorded")
        if accelerator is None:
            # What other cores change was not measured: from nothing to all, in proportion to their number. The likely
            # seconds are the geometric mean of both.
            ratio = math.sqrt(here / cpus)
            low, high = FROM_HERE[0] * min(ratio, 1 / ratio), FROM_HERE[1] * max(ratio, 1 / ratio)
            return Times("", {TRAINER: ratio * (self._epochs + self._rest)}, low=low, high=high)
        if not self._measured.speed:
            raise _Unknown(f"the run has no history of its training, so nothing is known about {accelerator}")
        kind, policy = self._question.kind, self._question.precision
        if policy == "auto":
            policy = "mixed_bfloat16" if accelerator.startswith("TPU") else "float32"
        speeds = self._prices.speeds.get(kind, {})
        speed, core = speeds.get(accelerator, {}).get(policy), speeds.get("vcpu", {}).get("float32")
        if not speed or not core:
            which = f"{accelerator} in {policy}" if speeds else "accelerators"
            raise _Unknown(f"{self._prices.path} has no published training speed of {which} for {kind}")
        gain = count * speed / (here * core)
        return Times("", {TRAINER: self._epochs / gain + self._rest})

    def _hours(self, trainer: Times, rates: Rates, machines: Machines) -> tuple[float, float, float]:
        """Return the hours of the whole run: each task gets its machine, and a job gets its own after that."""
        tasks = [task for task in TASKS if task != SEARCH or task in self._others]
        shares = {rate.task: rate.share for rate in rates.rates}
        others = sum(self._others.get(task, 0.0) * shares.get(task, 1.0) for task in tasks)
        machines_to_get = len(tasks) + bool(machines.training) + bool(machines.tuning and SEARCH in tasks)
        least, likely, most = (
            (machines_to_get * start + others * factor + trainer.seconds[TRAINER] * factor_of_trainer) / 3600
            for start, factor, factor_of_trainer in zip(
                START, (FROM_HERE[0], 1.0, FROM_HERE[1]), (trainer.low, 1.0, trainer.high), strict=True
            )
        )
        return least, likely, most

    def _dollars(self, trainer: Times, rates: Rates) -> float | None:
        if rates.unpriced:
            return None
        # A step without a time, such as the Pusher of a model that was not blessed, has to get its machine as well.
        return estimate(rates, [trainer, Times("", {**dict.fromkeys(TASKS, 0.0), **self._others})]).price


def label(machines: Machines) -> str:
    """Return the machines of the training in words."""
    job, task = machines.training, machines.task(TRAINER)
    name = job.machine_type if job else f"the task, {task.cpu} vCPUs"
    short = ((job or task).accelerator or "").removeprefix("NVIDIA_").removeprefix("TESLA_")
    replicas = f"{job.replicas} x " if job and job.replicas > 1 else ""
    return f"{replicas}{name}{f' + {(job or task).accelerators} {short}' if short else ''}"


def job_of(text: str, prices: Prices) -> Job:
    """Return the job on TYPE, TYPE+ACCELERATOR or TYPE+ACCELERATORxCOUNT."""
    found = re.fullmatch(r"([a-z0-9-]+)(?:\+([A-Z0-9_]+?)(?:x([0-9]{1,2}))?)?", text.strip())
    if not found:
        raise UserError(
            f"--machine must be TYPE, TYPE+ACCELERATOR or TYPE+ACCELERATORxCOUNT, such as "
            f"n1-standard-8+NVIDIA_TESLA_T4x2, got {text!r}"
        )
    machine = prices.machine(found[1])
    accelerator, count = (None, 0) if is_tpu(machine.name) else (machine.accelerator, machine.accelerators)
    if found[2]:
        accelerator = found[2]
        prices.has_host(accelerator)  # raises UserError about an unknown one
        count = int(found[3] or (count if machine.accelerator == accelerator else 1))
    disk: Disk = "hyperdisk-balanced" if re.fullmatch(HYPERDISK_ONLY, machine.name) else "pd-ssd"
    return Job(machine.name, accelerator, count, boot_disk_type=disk)


def with_job(machines: Machines, job: Job) -> Machines:
    """Return a table of machines whose Trainer runs as a job."""
    tasks = {name: resources for name, resources in machines.tasks.items() if name != TRAINER}
    return dataclasses.replace(machines, tasks=tasks, training=job)
