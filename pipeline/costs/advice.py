"""Compare machines for a pipeline's training: hours, price, what limits them, and which to take."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.costs.estimate import START
from pipeline.costs.measured import Measured
from pipeline.costs.performance import (
    LAUNCH_SECONDS,
    Hardware,
    Line,
    StepTime,
    Trainings,
    line_of,
    reached,
    trainer_rest,
)
from pipeline.costs.prices import Prices
from pipeline.costs.rates import DISK, DISK_GIB, Rates, task_machine, task_per_hour
from pipeline.errors import UserError
from pipeline.settings.machines import TASKS, WAITING, Resources, check_accelerator, is_tpu

# Seconds in which a task gets its machine with the image, and in which a job with accelerators does: assumptions of the
# estimate, the likely and the most.
TASK_START, JOB_START = START[1], START[2]
# The factor by which a prediction may be off. Here: what benchmarks/advice.py allows at worst. Elsewhere: the cores of
# another machine and the share of an accelerator's peak that a model reaches are not known; the published ones that
# performance.py takes its shares from differ by less than this.
HERE, ELSEWHERE = 1.35, 2.0
# Predictions of other machines do not tell times apart that differ by less than this share.
TIE = 0.05
# Replicas are worth their price when they save this share of the time.
WORTH_SAVING = 0.25
TRAINING_STEPS = ("Trainer", "Tuner")
CPU_TYPES = (
    *(f"n1-standard-{cpus}" for cpus in (4, 8, 16, 32)),
    *(f"n2-standard-{cpus}" for cpus in (4, 8, 16, 32)),
)


@dataclass(frozen=True)
class Choice:
    """Machines that train.

    Attributes:
        machine_type: Of every replica.
        accelerator: Added to it; None: none, or those of the type.
        accelerators: How many are added.
        replicas: Machines that train together.
        job: Whether they are those of a job, which a task of the pipeline starts and waits for; else the task trains.
    """

    machine_type: str
    accelerator: str | None = None
    accelerators: int = 0
    replicas: int = 1
    job: bool = True

    def __str__(self) -> str:
        short = (self.accelerator or "").removeprefix("NVIDIA_").removeprefix("TESLA_")
        added = f" + {self.accelerators} {short}" if self.accelerator else ""
        where = "" if self.job else ", in the task"
        return f"{f'{self.replicas} x ' if self.replicas > 1 else ''}{self.machine_type}{added}{where}"


CHOICES = (
    *(Choice(name) for name in CPU_TYPES),
    *(Choice("n1-standard-8", "NVIDIA_TESLA_T4", count) for count in (1, 2)),
    Choice("g2-standard-8"),
    Choice("n1-standard-8", "NVIDIA_TESLA_V100", 1),
    Choice("a2-highgpu-1g"),
    *(Choice(f"ct5lp-hightpu-{chips}t") for chips in (1, 4)),
)


@dataclass(frozen=True)
class Question:
    """Training to advise on, and its place.

    Attributes:
        rows: Of all splits together.
        epochs: Passes over the train split.
        batch_size: Examples per replica.
        region: Of the prices.
        rates: What the other steps run on, and what that costs.
    """

    rows: int
    epochs: int
    batch_size: int
    region: str
    rates: Rates


@dataclass(frozen=True)
class Answer:
    """A choice with its prediction.

    Attributes:
        choice: The machines.
        parts: In how many parts a batch is computed; None: the training does not fit into memory.
        seconds: Of the whole pipeline.
        training_seconds: Of them, those in which the machines of the choice are paid for.
        factor: By which the seconds may be off, either way.
        dollars: Of the whole run on demand; None: there is no such price.
        spot_dollars: The same with the machines of the choice on spot; those of a task never are.
        limit: What takes most of the time.
        unpriced: Why there is no price, on demand or else on spot; "": there are both.
    """

    choice: Choice
    parts: int | None
    seconds: float = math.inf
    training_seconds: float = math.inf
    factor: float = ELSEWHERE
    dollars: float | None = None
    spot_dollars: float | None = None
    limit: str = "memory"
    unpriced: str = ""

    def price(self, spot: bool) -> float:
        """Return the price that counts; infinite where there is none."""
        dollars = self.spot_dollars if spot else self.dollars
        return math.inf if dollars is None else dollars


class Advisor:
    """Predictions for one measured pipeline.

    Args:
        measured: The pipeline.
        prices: Machines and their prices.
        question: What is to be trained.

    Raises:
        UserError: the training was not measured.
    """

    def __init__(self, measured: Measured, prices: Prices, question: Question):
        if measured.training is None:
            raise UserError(measured.why_not_measured)
        self._measured, self._prices, self._question = measured, prices, question
        self._trainings = Trainings(measured.training)
        self._rest = trainer_rest(measured, self._trainings)
        self._lines = {
            name: line_of([replace(run, rows=self._counted(name, run.rows)) for run in runs])
            for name, runs in measured.steps.items()
        }
        total = sum(measured.rows.values())
        self._rows = (
            max(1, round(question.rows * measured.rows["train"] / total)),
            round(question.rows * measured.rows["eval"] / total),
        )

    @property
    def data_seconds(self) -> float:
        """Return the seconds of all steps but the training and the search."""
        return sum(self._seconds(name) for name in self._lines if name not in TRAINING_STEPS)

    def steps_here(self) -> dict[str, float]:
        """Return the predicted seconds of each step of the graph on this machine."""
        hardware = Hardware(self._trainings.cores_here, math.inf)
        epochs, _, _ = self._epochs(hardware, 1)
        steps = {name: self._seconds(name) for name in self._lines}
        return {**steps, "Trainer": self._rest.at(self._question.rows) + epochs}

    def here(self) -> Answer:
        """Return the prediction for this machine."""
        steps = self.steps_here()
        training = sum(steps.get(name, 0.0) for name in TRAINING_STEPS)
        hardware = Hardware(self._trainings.cores_here, math.inf)
        epochs, step, _ = self._epochs(hardware, 1)
        limit = self._limit(0.0, training - epochs, epochs, step)
        return Answer(Choice("this machine"), 1, sum(steps.values()), training, HERE, limit=limit)

    def choice_of(self, resources: Resources) -> Choice:
        """Return the machine that a task with these resources gets.

        Raises:
            UserError: none has them, or none that has them has a price.
        """
        name = task_machine(resources, self._prices, self._question.region)
        added = resources.accelerator if self._prices.machine(name).accelerator is None else None
        return Choice(name, added, resources.accelerators if added else 0, job=False)

    def answer(self, choice: Choice) -> Answer:
        """Return the prediction for a choice.

        Raises:
            UserError: a machine, an accelerator or its price is unknown.
        """
        hardware, question = self._hardware(choice), self._question
        parts = self._trainings.parts_that_fit(hardware, question.batch_size, self._rows[0])
        if parts is None:
            return Answer(choice, None)
        epochs, step, loading = self._epochs(hardware, choice.replicas, parts)
        here = self._epochs(Hardware(self._trainings.cores_here, math.inf), 1)[0]
        # The search trains the same model in the same way.
        search = self._lines.get("Tuner", Line(0.0, 0.0))
        searching = search.start + search.row * question.rows * epochs / here
        work = self._rest.at(question.rows) + search.start
        steps = sum(name in self._lines for name in TRAINING_STEPS)
        starting = steps * (JOB_START if choice.job else TASK_START)
        training = starting + work + loading + searching - search.start + epochs
        # The tasks that start the jobs have to get their own machines before.
        tasks = (len(TASKS) - len(TRAINING_STEPS) + (steps if choice.job else 0)) * TASK_START
        limit = self._limit(starting + tasks, work + loading, epochs + searching - search.start, step)
        waiting = training + steps * TASK_START if choice.job else 0.0
        (dollars, problem), (on_spot, spot_problem) = (
            self._dollars(choice, training, waiting, spot) for spot in (False, True)
        )
        return Answer(
            choice,
            parts,
            training + self.data_seconds + tasks,
            training,
            dollars=dollars,
            spot_dollars=on_spot,
            limit=limit,
            unpriced=problem or spot_problem,
        )

    def _seconds(self, name: str) -> float:
        return self._lines[name].at(self._counted(name, self._question.rows))

    def _counted(self, name: str, rows: int) -> int:
        """Return how many of so many rows a step works on."""
        return min(rows, self._measured.most_rows.get(name, rows))

    def _epochs(self, hardware: Hardware, replicas: int, parts: int = 1) -> tuple[float, StepTime, float]:
        """Return the seconds of all epochs, the time of a training step, and the seconds to load the examples."""
        question, trainings = self._question, self._trainings
        batch_size = min(question.batch_size, max(1, self._rows[0] // (max(1, hardware.accelerators) * replicas)))
        step = trainings.step(hardware, batch_size, replicas, parts, self._rows[0])
        epoch = trainings.epoch(step, hardware, batch_size, replicas, self._rows)
        # What is loaded here is in the rest of the Trainer: more cores load it faster.
        here = Hardware(trainings.cores_here, math.inf)
        loading = trainings.loading(hardware, self._rows[0]) - trainings.loading(here, self._rows[0])
        return question.epochs * epoch, step, loading

    def _limit(self, starting: float, work: float, epochs: float, step: StepTime) -> str:
        """Return what takes most of the time."""
        parts = {"start-up": starting, "data steps": self.data_seconds, "export": work, step.limit: epochs}
        return max(parts, key=lambda name: parts[name])

    def _hardware(self, choice: Choice) -> Hardware:
        machine = self._prices.machine(choice.machine_type)
        name, count = machine.accelerator or choice.accelerator, machine.accelerators or choice.accelerators
        memory = machine.memory_gib * 2**30
        if not name:
            return Hardware(machine.cpus, memory)
        accelerator = self._prices.accelerator(name)
        assert self._measured.training is not None
        policy = self._measured.training.precision
        if policy == "auto":
            policy = "mixed_bfloat16" if is_tpu(choice.machine_type) else "float32"
        return Hardware(
            machine.cpus,
            memory,
            count,
            accelerator.memory_gib * 2**30,
            accelerator.bandwidth,
            reached(accelerator.flops, policy),
            0.0 if is_tpu(choice.machine_type) else LAUNCH_SECONDS,
        )

    def _dollars(self, choice: Choice, training: float, waiting: float, spot: bool) -> tuple[float | None, str]:
        """Return the price of the whole run, or None and why it is not known.

        Args:
            choice: The machines.
            training: Seconds in which they are paid for.
            waiting: Seconds in which tasks wait for them.
            spot: Whether they are spot machines; the tasks of a pipeline never are.
        """
        prices, region, rates = self._prices, self._question.region, self._question.rates
        added = (choice.accelerator, choice.accelerators)
        try:
            machine = prices.per_hour(choice.machine_type, *added, region=region, spot=spot and choice.job)
            machine += prices.disk_per_hour(DISK, DISK_GIB, region=region)
            # Where the task trains, nothing waits.
            task = task_per_hour(WAITING, prices, region) if choice.job else 0.0
        except UserError as error:
            return None, str(error)
        others = sum(
            rate.per_hour * (TASK_START + rate.share * (self._seconds(rate.task) if rate.task in self._lines else 0.0))
            for rate in rates.rates
            if rate.task not in TRAINING_STEPS
        )
        return rates.run_fee + (choice.replicas * machine * training + task * waiting + others) / 3600, ""


def with_replicas(answers: Sequence[Answer], advisor: Advisor) -> list[Answer]:
    """Return answers for 2 and 4 replicas of the fastest machine without a TPU, as long as each step saves time."""
    alone = [answer for answer in answers if answer.parts and not is_tpu(answer.choice.machine_type)]
    fastest = min(alone, key=lambda answer: answer.seconds, default=None)
    found: list[Answer] = []
    while fastest and fastest.choice.replicas < 4:
        more = advisor.answer(replace(fastest.choice, replicas=2 * fastest.choice.replicas))
        if more.seconds > (1 - WORTH_SAVING) * fastest.seconds:
            break
        found.append(more)
        fastest = more
    return found


def cheapest(answers: Sequence[Answer], spot: bool, within: float = math.inf) -> Answer | None:
    """Return the answer with the least price that ends within some seconds; of equal ones the fastest."""
    possible = [each for each in answers if each.parts and each.seconds <= within and each.price(spot) < math.inf]
    return min(possible, key=lambda each: (each.price(spot), each.seconds), default=None)


def fastest(answers: Sequence[Answer], spot: bool) -> Answer | None:
    """Return the cheapest of the answers with the fewest hours; a difference of ``TIE`` is none."""
    possible = [each for each in answers if each.parts and each.price(spot) < math.inf]
    least = min((each.seconds for each in possible), default=0.0)
    return cheapest(possible, spot, (1 + TIE) * least)


def has_accelerator(answer: Answer, prices: Prices) -> bool:
    """Return whether the machines of an answer have accelerators."""
    return bool(answer.choice.accelerator or prices.machine(answer.choice.machine_type).accelerator)


def parse_choice(text: str, prices: Prices) -> Choice:
    """Return the choice of TYPE, TYPE+ACCELERATOR or TYPE+ACCELERATORxCOUNT.

    Raises:
        UserError: a name is unknown, or the machine does not take the accelerator.
    """
    found = re.fullmatch(r"([a-z0-9-]+)(?:\+([A-Z0-9_]+?)(?:x([0-9]{1,2}))?)?", text.strip())
    if not found:
        raise UserError(
            f"--machine must be TYPE, TYPE+ACCELERATOR or TYPE+ACCELERATORxCOUNT, such as "
            f"n1-standard-8+NVIDIA_TESLA_T4x2, got {text!r}"
        )
    machine = prices.machine(found[1])
    if found[2] is None:
        return Choice(machine.name)
    name = prices.accelerator(found[2]).name
    of_the_type = machine.accelerator == name
    count = int(found[3] or (machine.accelerators if of_the_type else 1))
    check_accelerator(machine.name, name, count)
    return Choice(machine.name) if of_the_type else Choice(machine.name, name, count)
