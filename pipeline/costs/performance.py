"""Predict the seconds of a pipeline's steps and of its training, here and on other machines, from measurements here.

A step of the graph takes a start and a time for each row. A training step takes an overhead and a time for each
example, on more cores less by Amdahl's law (Amdahl 1967). On an accelerator it takes what the slowest of four takes:
computing and moving its memory (Williams et al. 2009, "Roofline"), launching its operations, and waiting for the host's
input.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.costs.measured import Measured, StepRun, StepWork, TrainingMeasured, TrainingSpeed

# Share of an accelerator's peak that a training reaches. NVIDIA's ResNet-50 in TensorFlow computes 412 images/s in
# float32 on one V100 and 1,270 in mixed precision, and 2,375 in mixed precision on an A100
# (github.com/NVIDIA/DeepLearningExamples, TensorFlow/Classification/ConvNets/resnet50v1.5, read 2026-11-24), of 24.6
# GFLOP each: 65 % of the peak of its cores, and 25 % and 19 % of that of its matrix units.
OF_CORES, OF_MATRIX_UNITS = 0.65, 0.2
# Of the peak of the memory: a stream through a V100 reaches 80 to 90 % (babelstream, github.com/UoB-HPC/BabelStream).
OF_BANDWIDTH = 0.8
# The same table has 4.3 ms for one image through ResNet-50, of about 175 operations: 24 microseconds each, with the
# arithmetic. Launching alone takes 4 to 5 (developer.nvidia.com/blog/cuda-graphs). Their geometric mean.
LAUNCH_SECONDS = 11e-6
# TensorFlow leaves some of an accelerator's memory to the driver and the libraries.
OF_MEMORY = 0.9
# Bytes/s between machines: 2 Gbit/s for each vCPU, 10 to 32 without a special tier
# (cloud.google.com/compute/docs/network-bandwidth), and what of it an all-reduce of gradients gets over TCP.
BITS_PER_CPU, LEAST_BITS, MOST_BITS, OF_NETWORK = 2e9, 10e9, 32e9, 0.5
# Between accelerators of one machine, by PCI Express 3.0 with 16 lanes.
PCI_BYTES, OF_PCI = 16e9, 0.5
# Share of the host's memory that kept examples may take (pipeline/training/cache.py).
OF_HOST_FOR_EXAMPLES = 0.4


@dataclass(frozen=True)
class Line:
    """Seconds that grow with a number of rows: ``start`` + rows x ``row``."""

    start: float
    row: float

    def at(self, rows: float) -> float:
        """Return the seconds for so many rows."""
        return self.start + rows * self.row


@dataclass(frozen=True)
class Hardware:
    """Hardware of one replica.

    Attributes:
        cpus: Cores of the host.
        memory_bytes: Of the host.
        accelerators: How many; 0: the cores train.
        accelerator_bytes: Memory of each.
        bandwidth: Of its memory, bytes/s.
        flops: What it reaches in the training's precision, FLOP/s; see ``reached``.
        launch_seconds: Of one operation; a TPU runs a whole step as one program.
    """

    cpus: int
    memory_bytes: float
    accelerators: int = 0
    accelerator_bytes: float = 0.0
    bandwidth: float = 0.0
    flops: float = 0.0
    launch_seconds: float = LAUNCH_SECONDS


@dataclass(frozen=True)
class StepTime:
    """Seconds of a training step by what takes them.

    Attributes:
        compute: Arithmetic; on the host's cores all that a step does.
        memory: Moving the accelerator's memory.
        launch: Launching its operations.
        input: The host's preparing of the examples.
        all_reduce: Adding the gradients of all replicas.
    """

    compute: float
    memory: float = 0.0
    launch: float = 0.0
    input: float = 0.0
    all_reduce: float = 0.0

    @property
    def seconds(self) -> float:
        """Return the seconds of the step: the slowest part that runs beside the others, and the all-reduce."""
        return max(self.compute, self.memory, self.launch, self.input) + self.all_reduce

    @property
    def limit(self) -> str:
        """Return the part that takes the most."""
        parts = {
            "compute": self.compute,
            "memory speed": self.memory,
            "launching": self.launch,
            "input": self.input,
            "all-reduce": self.all_reduce,
        }
        return max(parts, key=lambda name: parts[name])


def reached(flops: Mapping[str, float], policy: str) -> float:
    """Return the FLOP/s that a training reaches on an accelerator.

    Args:
        flops: Its peak by Keras policy. One that knows bfloat16 multiplies float32 in its matrix units, too.
        policy: Of the training; where the accelerator does not have it, float32 is taken.
    """
    if policy not in flops:
        policy = "float32"
    in_cores = policy == "float32" and "mixed_bfloat16" not in flops
    return flops[policy] * (OF_CORES if in_cores else OF_MATRIX_UNITS)


def line_of(runs: Sequence[StepRun]) -> Line:
    """Return the line through a step's runs on few and on many rows; through one run, in proportion to its rows.

    A run on more rows that took no longer tells of a start only: it may have been disturbed less.
    """
    first, last = runs[0], runs[-1]
    if first.rows == last.rows:
        return Line(0.0, last.seconds / last.rows)
    row = max(0.0, (last.seconds - first.seconds) / (last.rows - first.rows))
    return Line(max(0.0, last.seconds - row * last.rows), row)


def line_through(points: Sequence[tuple[int, float]]) -> Line:
    """Return the line of least relative squared errors through (rows, seconds); neither part is negative."""
    if len(points) == 1:
        return Line(0.0, points[0][1] / points[0][0])
    weights = [1 / seconds**2 for _, seconds in points]
    total = sum(weights)
    mean_rows = sum(weight * rows for weight, (rows, _) in zip(weights, points, strict=True)) / total
    mean = sum(weight * seconds for weight, (_, seconds) in zip(weights, points, strict=True)) / total
    square = sum(weight * (rows - mean_rows) ** 2 for weight, (rows, _) in zip(weights, points, strict=True))
    product = sum(w * (rows - mean_rows) * (seconds - mean) for w, (rows, seconds) in zip(weights, points, strict=True))
    row = max(0.0, product / square)
    if mean - row * mean_rows >= 0:
        return Line(mean - row * mean_rows, row)
    # Through the origin: sum of w r s over sum of w r r.
    crossed = sum(weight * rows * seconds for weight, (rows, seconds) in zip(weights, points, strict=True))
    return Line(0.0, crossed / sum(weight * rows**2 for weight, (rows, _) in zip(weights, points, strict=True)))


def interpolated(points: Sequence[tuple[int, float]], rows: float) -> float:
    """Return the seconds for so many rows: between measured sizes on the line through both, outside like all of them.

    Larger batches leave a processor's caches, so one line through all of them is wrong in the middle.
    """
    ordered = sorted(points)
    for (fewer, less), (more, longer) in itertools.pairwise(ordered):
        if fewer <= rows <= more:
            return less + (longer - less) * (rows - fewer) / (more - fewer)
    line = line_through(ordered)
    nearest, seconds = ordered[0] if rows < ordered[0][0] else ordered[-1]
    return seconds * line.at(rows) / line.at(nearest)


def on_cores(few: TrainingSpeed, many: TrainingSpeed, cores: int, value: float, value_of_many: float) -> float:
    """Return seconds on a number of cores by Amdahl's law, from those on few and on many.

    With t(n) = s + p / n, both are known of two measured numbers of cores.
    """
    if cores == many.cores or few.cores == many.cores:
        return value_of_many
    parallel = max(0.0, (value - value_of_many) / (1 / few.cores - 1 / many.cores))
    serial = value_of_many - parallel / many.cores
    if serial < 0:
        serial, parallel = 0.0, value_of_many * many.cores
    return serial + parallel / cores


class Trainings:
    """Seconds of a measured training, on any hardware.

    Args:
        measured: The training.
    """

    def __init__(self, measured: TrainingMeasured):
        self.measured = measured
        self._few, self._many = measured.speeds[0], measured.speeds[-1]

    @property
    def cores_here(self) -> int:
        """Return the cores of this machine."""
        return self._many.cores

    def step_here(self, batch_size: int, cores: int) -> float:
        """Return the seconds of a training step on cores as this machine has them."""
        few, many = interpolated(self._few.steps, batch_size), interpolated(self._many.steps, batch_size)
        return on_cores(self._few, self._many, cores, few, many)

    def _row(self, name: str, cores: int) -> float:
        return on_cores(self._few, self._many, cores, getattr(self._few, name), getattr(self._many, name))

    def work(self, batch_size: int) -> StepWork:
        """Return the work of a step of a batch size."""
        works = self.measured.work
        points = {
            name: [(each.examples, max(getattr(each, name), 1.0)) for each in works] for name in ("flops", "bytes")
        }
        return StepWork(
            batch_size,
            line_through(points["flops"]).at(batch_size),
            line_through(points["bytes"]).at(batch_size),
            works[-1].operations,
        )

    def step(self, hardware: Hardware, batch_size: int, replicas: int = 1, parts: int = 1, rows: int = 0) -> StepTime:
        """Return the time of a training step on hardware.

        Args:
            hardware: Of one machine.
            batch_size: Examples of each accelerator, or of each machine that has none.
            replicas: Machines.
            parts: How many micro-batches a batch is computed in.
            rows: Of the train split, which the host keeps decoded if it has the memory.
        """
        devices = max(1, hardware.accelerators)
        all_reduce = self._all_reduce(hardware, replicas)
        if not hardware.accelerators:
            return StepTime(self.step_here(batch_size, hardware.cpus), all_reduce=all_reduce)
        work = self.work(batch_size)
        return StepTime(
            compute=work.flops / hardware.flops,
            memory=work.bytes / (hardware.bandwidth * OF_BANDWIDTH),
            launch=work.operations * parts * hardware.launch_seconds,
            input=batch_size * devices * self.input_row(hardware, rows),
            all_reduce=all_reduce,
        )

    def input_row(self, hardware: Hardware, rows: int) -> float:
        """Return the seconds of an example in the host's input pipeline; decoded every time where it cannot be kept."""
        kept = rows * self.measured.row_bytes <= hardware.memory_bytes * OF_HOST_FOR_EXAMPLES
        return self._row("input_row" if kept else "loading_row", hardware.cpus)

    def _all_reduce(self, hardware: Hardware, replicas: int) -> float:
        """Return the seconds of a ring all-reduce: each byte goes out and comes in 2 (n - 1) / n times."""
        devices = max(1, hardware.accelerators)
        size = self.measured.gradient_bytes
        inside = 2 * (devices - 1) / devices * size / (PCI_BYTES * OF_PCI)
        bits = min(MOST_BITS, max(LEAST_BITS, BITS_PER_CPU * hardware.cpus))
        return inside + 2 * (replicas - 1) / replicas * size / (bits / 8 * OF_NETWORK)

    def epoch(self, step: StepTime, hardware: Hardware, batch_size: int, replicas: int, rows: tuple[int, int]) -> float:
        """Return the seconds of an epoch: its training steps, and the evaluation on the eval split.

        Args:
            step: Time of a training step.
            hardware: Of one machine.
            batch_size: Examples of each accelerator, or machine.
            replicas: Machines.
            rows: Of the train and the eval split.
        """
        train, evaluated = rows
        together = min(train, batch_size * max(1, hardware.accelerators) * replicas)
        steps = max(1, train // together)
        here = self._row("evaluation_row", hardware.cpus)
        # A forward pass is a third of a training step (its backward pass twice the forward one).
        row = here if not hardware.accelerators else step.seconds / batch_size / 3 / hardware.accelerators
        return steps * step.seconds + evaluated * row / replicas

    def loading(self, hardware: Hardware, rows: int) -> float:
        """Return the seconds to read and decode the examples that are then kept in memory."""
        return rows * self._row("loading_row", hardware.cpus)

    def parts_that_fit(self, hardware: Hardware, batch_size: int, rows: int) -> int | None:
        """Return in how many parts a batch must be computed to fit into memory; None: not one example fits."""
        if not self.measured.memory:
            return 1
        memory = line_through([(size, max(1.0, bytes_)) for size, bytes_ in self.measured.memory])
        if hardware.accelerators:
            room = hardware.accelerator_bytes * OF_MEMORY - self.measured.model_bytes - 2 * self.measured.gradient_bytes
        else:
            kept = rows * self.measured.row_bytes
            # What does not fit is read from disk again.
            kept = kept if kept <= hardware.memory_bytes * OF_HOST_FOR_EXAMPLES else 0
            room = hardware.memory_bytes * OF_MEMORY - kept - self.measured.model_bytes
        parts = 1
        while room < memory.row * batch_size / parts:
            if parts >= batch_size:
                return None
            parts *= 2
        return parts if room > 0 else None


def trainer_rest(measured: Measured, trainings: Trainings) -> Line:
    """Return what the Trainer takes besides its epochs: to start, to export, to fit trees and answers."""
    hardware = Hardware(trainings.cores_here, float("inf"))
    total = sum(measured.rows.values())
    rests = []
    for run in measured.steps["Trainer"]:
        train, evaluated = (round(measured.rows[split] * run.rows / total) for split in ("train", "eval"))
        batch_size = min(trainings.measured.batch_size, max(1, train))
        step = trainings.step(hardware, batch_size, 1)
        loop = run.epochs * trainings.epoch(step, hardware, batch_size, 1, (train, evaluated))
        rests.append(StepRun(run.rows, max(0.0, run.seconds - loop)))
    return line_of(rests)
