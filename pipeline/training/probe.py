"""Measure a training on this machine instead of training to the end: its steps, its input, its memory and its work.

It is the real training that is measured, its compiled steps and its input pipeline, at several batch sizes. The least
of several times counts: what another process on the machine takes is no part of the training.
"""

import logging
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import keras
import tensorflow as tf

from pipeline.costs.measured import TrainingMeasured, TrainingSpeed
from pipeline.progress import Progress
from pipeline.settings.checks import to_json
from pipeline.training import work
from pipeline.training.augmentation import Augment
from pipeline.training.decoding import Decoder
from pipeline.training.input_pipeline import Split, evaluation_steps, read
from pipeline.training.loop import EVALUATION_BATCH, Fit
from pipeline.training.settings import Settings
from pipeline.training.steps import Steps
from pipeline.training.strategy import Distribution, Part

logger = logging.getLogger("pipeline.training")

# Batch sizes that are measured, as parts of the config's.
SIZES = (1 / 8, 1 / 2, 1, 2)
# Of one time. Short ones, and many: on a busy machine one of them is not interrupted.
SECONDS = 0.03
REPETITIONS = 100
# Of all repetitions at most.
MOST_SECONDS = 3.0
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Training:
    """Parts of a training.

    Attributes:
        model: Compiled.
        train: The train split.
        evaluate: The eval split.
        settings: Of the training.
        distribution: The devices.
        seed: Of the order of examples.
        augment: The module file's function for training batches.
    """

    model: keras.Model
    train: Split
    evaluate: Split
    settings: Settings
    distribution: Distribution
    seed: int
    augment: Augment | None

    def fit(self, batch_size: int) -> Fit:
        """Return the training with a batch size, about to start."""
        settings = replace(self.settings, batch_size=batch_size, head_epochs=0, profile="off")
        return Fit(
            self.model,
            self.train,
            self.evaluate,
            settings,
            self.distribution,
            seed=self.seed,
            augment=self.augment,
        )


def measure(training: Training, decoder: Decoder, files: Sequence[str]) -> TrainingMeasured:
    """Measure a training.

    Args:
        training: What is measured.
        decoder: Of its examples.
        files: Patterns of the train split's files.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    progress = Progress("probe", every=0)
    settings, examples = training.settings, training.train.examples
    logger.info("%d examples to evaluate on.", training.evaluate.examples)  # loaded before a clock starts
    progress.tell("reading the examples")
    loading = _loading_seconds(training, decoder, files)
    steps, works, memory = [], [], []
    before = _resident()
    fit = None
    for batch_size in _sizes(settings.batch_size, examples):
        progress.tell(f"training steps of {batch_size:,} examples on {cores} {'core' if cores == 1 else 'cores'}")
        _forget_peak()
        fit = training.fit(batch_size)
        steps.append((fit.batch_size, _step_seconds(fit, training)))
        graph = fit.steps.graph_of_one_step(fit.batch_size)
        works.append(work.count(graph, fit.batch_size))
        if before is not None:
            memory.append((fit.batch_size, max(0, (_peak() or 0) - before)))
    assert fit is not None
    progress.tell("evaluation and input pipeline")
    speed = TrainingSpeed(
        cores=cores,
        steps=tuple(steps),
        evaluation_row=_evaluation_seconds(fit.steps, training) / training.evaluate.examples,
        input_row=_input_seconds(training),
        loading_row=loading,
    )
    variables = [*training.model.variables, *training.model.optimizer.variables]
    return TrainingMeasured(
        batch_size=settings.batch_size * settings.accumulate,
        precision=settings.precision,
        speeds=(speed,),
        work=tuple(works),
        memory=tuple(memory),
        model_bytes=_bytes(list({id(variable): variable for variable in variables}.values())),
        gradient_bytes=_bytes(training.model.trainable_variables),
        row_bytes=training.train.rows.bytes,
        loops=work.has_loops(graph),
    )


def write(training: Training, decoder: Decoder, files: Sequence[str], to: str) -> None:
    """Measure a training and write the measurement as JSON."""
    measured = measure(training, decoder, files)
    logger.info("Measured: %s", measured)
    Path(to).write_text(to_json(measured), encoding="utf-8")


def _sizes(batch_size: int, examples: int) -> list[int]:
    """Return the batch sizes to measure, the smallest first; none is more than the data."""
    return sorted({max(1, min(examples, math.ceil(batch_size * part))) for part in SIZES})


def _step_seconds(fit: Fit, training: Training) -> float:
    """Return the least seconds of a training step, its input included."""
    fit.steps.feed(training.train.training(fit.batch_size, fit.part, training.seed))
    fit.steps.train(1)  # allocates
    started = time.perf_counter()
    fit.steps.train(1)
    at_once = _at_once(time.perf_counter() - started, training.settings.steps_per_call)
    return _least(lambda: fit.steps.train(at_once)) / at_once


def _evaluation_seconds(steps: Steps, training: Training) -> float:
    """Return the least seconds of an evaluation of the eval split."""
    part, split = training.distribution.part, training.evaluate
    batch_size = training.settings.batch_size * EVALUATION_BATCH
    steps.set_evaluation_data(split.evaluation(batch_size, part, same_size=training.distribution.tpu), split.rows)
    count = evaluation_steps(split.examples, batch_size, part.replicas)
    steps.evaluate(count)  # compiles
    return _least(lambda: steps.evaluate(count))


def _input_seconds(training: Training) -> float:
    """Return the least seconds that the input pipeline takes for an example, with nobody who trains on it."""
    split = training.train
    batch_size = min(training.settings.batch_size, split.examples)
    chunks = iter(split.training(batch_size, Part(), training.seed))

    @tf.function(autograph=False)
    def pick(chunk: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.map_fn(lambda batch: tf.reduce_sum(split.rows.pick(batch)), chunk))

    def take(count: int) -> None:
        for _ in range(count):
            pick(next(chunks))

    take(1)  # compiles
    started = time.perf_counter()
    take(1)
    at_once = _at_once(time.perf_counter() - started, 1_000)
    examples = split.rows.chunk(batch_size).shape[0] * batch_size
    return _least(lambda: take(at_once)) / (at_once * examples)


def _loading_seconds(training: Training, decoder: Decoder, files: Sequence[str]) -> float:
    """Return the least seconds to read, parse and decode an example."""
    settings, distribution = training.settings, training.distribution

    def load() -> int:
        classes = len(settings.classes)
        return read(files, decoder, classes=classes, cache="memory", on_cpu=distribution.on_cpu).examples

    return _least(load, 3) / training.train.examples


def _at_once(seconds: float, most: int) -> int:
    """Return how many repetitions of something that takes ``seconds`` fill ``SECONDS``."""
    return max(1, min(most, int(SECONDS / max(seconds, 1e-6))))


def _least(action: Callable[[], object], repetitions: int = REPETITIONS) -> float:
    """Return the least seconds of several repetitions."""
    times: list[float] = []
    while len(times) < repetitions and (len(times) < 2 or sum(times) < MOST_SECONDS):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return min(times)


def _bytes(variables: Sequence[keras.Variable]) -> int:
    return sum(math.prod(variable.shape) * tf.as_dtype(variable.dtype).size for variable in variables)


def _resident() -> int | None:
    return _status("VmRSS")


def _peak() -> int | None:
    return _status("VmHWM")


def _status(name: str) -> int | None:
    """Return a number of bytes of this process's status; None where the system has none."""
    if not STATUS.exists():
        return None
    lines = dict(line.split(":", 1) for line in STATUS.read_text(encoding="ascii").splitlines())
    return int(lines[name].split()[0]) * 1024


def _forget_peak() -> None:
    """Let the peak of the memory start from what is resident now (man 5 proc, /proc/pid/clear_refs)."""
    if CLEAR.exists():
        CLEAR.write_text("5", encoding="ascii")
