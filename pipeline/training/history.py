"""Record a training by epoch and by step; measure where its time goes, and name its bottleneck and the remedy."""

import contextlib
import csv
import io
import json
import logging
import tempfile
import time
import timeit
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import tensorflow as tf

from pipeline.training.input_pipeline import choose_cache
from pipeline.training.steps import RECORDED

if TYPE_CHECKING:
    from pipeline.training.loop import Fit


logger = logging.getLogger("pipeline.training")

# What the members of an ensemble lose on the eval split, in words; written by ``run``.
MEMBERS_FILE = "members.txt"
EPOCHS_FILE = "history.csv"
STEPS_FILE = "steps.csv"
# Where the time went and one sentence on that; written by ``diagnosis``.
DIAGNOSIS_FILE = "diagnosis.json"


class Journal:
    """Writes ``history.csv``, a row an epoch, ``steps.csv``, a row a step, and TensorBoard scalars.

    Attributes:
        steps: A row [step, epoch, *RECORDED] for every step; step and epoch count from 0.
        epochs: Metrics by name for every epoch.
    """

    def __init__(self, folder: str | None, tensorboard: str | None = None):
        self._folder = folder
        self.steps: list[list[float]] = []
        self.epochs: list[dict[str, float]] = []
        self._scalars = (
            tf.summary.create_file_writer(f"{tensorboard}/steps") if tensorboard else tf.summary.create_noop_writer()
        )

    def add_steps(self, first: int, epoch: int, records: Sequence[Sequence[float]]) -> None:
        """Add the steps of one call; TensorBoard gets the last of them."""
        self.steps += [[first + place, epoch, *record] for place, record in enumerate(records)]
        if records:
            with self._scalars.as_default(step=first + len(records)):
                for name, value in zip(RECORDED, records[-1], strict=True):
                    tf.summary.scalar(name, value)

    def add_epoch(self, metrics: dict[str, float]) -> None:
        """Add an epoch and write the files."""
        self.epochs.append(metrics)
        if self._folder:
            names = list(dict.fromkeys(name for epoch in self.epochs for name in epoch))
            rows = [[epoch, *(row.get(name, "") for name in names)] for epoch, row in enumerate(self.epochs)]
            self._write(EPOCHS_FILE, ["epoch", *names], rows)
            rows = [[int(step), int(epoch), *record] for step, epoch, *record in self.steps]
            self._write(STEPS_FILE, ["step", "epoch", *RECORDED], rows)
            self._scalars.flush()

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"steps": np.asarray(self.steps), "epochs": self.epochs}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take the state from a checkpoint."""
        self.steps, self.epochs = state["steps"].tolist(), state["epochs"]

    def _write(self, name: str, header: list[str], rows: list[list[Any]]) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
        write_file(f"{self._folder}/{name}", text.getvalue())


class Trace:
    """Writes a trace of the steps from the first to before the second of ``steps``, for TensorBoard's profiler."""

    def __init__(self, steps: tuple[int, int] | None, folder: str | None):
        self.stops = steps if steps and folder else ()
        self._folder = folder
        self._runs = self._begun = False

    def at(self, step: int) -> None:
        """Start the trace, or end it, if it is due before a step."""
        if not self.stops:
            return
        first, last = self.stops
        if step == first:
            self._runs = self._begun = True
            tf.profiler.experimental.start(self._folder)
        elif step >= last:
            self._stop()

    def end(self, step: int) -> None:
        """End the trace if it runs; warn of a training that ended at a step before the trace."""
        if self.stops and not self._begun and step < self.stops[0]:
            logger.warning(
                "no trace was written: training.profile=%s begins after the last step, which is %d", self.stops, step
            )
        self._stop()

    def _stop(self) -> None:
        if self._runs:
            self._runs = False
            tf.profiler.experimental.stop()


def write_file(path: str, content: str | bytes) -> None:
    """Write a file here or in a bucket, whole or not at all, with the folders above it."""
    tf.io.gfile.makedirs(path.rpartition("/")[0])
    with tf.io.gfile.GFile(f"{path}.partial", "wb") as file:
        file.write(content)
    tf.io.gfile.rename(f"{path}.partial", path, overwrite=True)


# Parts that a stopwatch measures, by the name of a block; PYTHON is the rest.
LOADING, COMPILING, STEPS, SUMMING, BETWEEN, PYTHON = "loading", "compiling", "steps", "summing", "between", "python"
EVALUATION, SAVING, SAVING_WITHIN_EPOCHS, CALLBACKS = "evaluation", "saving", "saving within epochs", "callbacks"
# Parts of the steps.
WAITING, COMPUTING = "waiting", "computing"
# The parts of a training in words, in the order of the report.
WORDS = {
    LOADING: "loading examples before the first step",
    COMPILING: "compiling",
    WAITING: "waiting for examples",
    COMPUTING: "computing",
    SUMMING: "summing gradients over the workers",
    EVALUATION: "evaluation",
    SAVING: "checkpoints after epochs",
    SAVING_WITHIN_EPOCHS: "checkpoints within epochs",
    CALLBACKS: "callbacks",
    BETWEEN: "Python between the steps",
    PYTHON: "the rest, such as writing the history",
}
# What saves less than a tenth of the time, or less than seconds, is not worth a sentence.
LEAST_SHARE, LEAST_SECONDS = 0.1, 2.0
# The factor by which a remedy raises a setting.
LARGER = 4
# The default of training.steps_per_call.
ENOUGH_STEPS_PER_CALL = 32
# What takes how much with the remedy, and the seconds that the remedy would save.
Finding: TypeAlias = tuple[str, float]


class Stopwatch:
    """Seconds by part; at every moment one part runs, so that their sum is the time since the start."""

    def __init__(self) -> None:
        self.part = PYTHON
        self.times: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._since = time.perf_counter()

    @contextlib.contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Count the time of a block for a part, without what a block inside it measures for another part."""
        self.times[part] += 1
        before = self._switch(part)
        try:
            yield
        finally:
            self._switch(before)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of every part up to now."""
        self._switch(self.part)
        return dict(self._seconds)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"seconds": self.seconds(), "times": dict(self.times)}

    def add(self, state: dict[str, Any]) -> None:
        """Add the state of the same training in a process before this one."""
        self.times.update(state.get("times", {}))
        for part, seconds in state.get("seconds", {}).items():
            self._seconds[part] += seconds

    def move(self, seconds: float, part: str, to: str) -> None:
        """Count seconds of a part, measured by another clock, for another part."""
        seconds = min(seconds, self._seconds[part])
        self._seconds[part] -= seconds
        self._seconds[to] += seconds

    def _switch(self, part: str) -> str:
        now = time.perf_counter()
        before = self.part
        self._seconds[before] += now - self._since
        self.part, self._since = part, now
        return before


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measurements of a training.

    Attributes:
        seconds: By part of the stopwatch.
        waited: Seconds that steps waited for examples, in the first epoch and in the later ones.
        calls: Calls of compiled steps.
        call: Seconds of a call of no steps.
        batch_size: Examples per replica that are computed together.
        times_halved: How often the batch was halved for want of memory.
        cache: Where the examples are kept.
        possible_cache: Where there would be room for them.
        decodes: Whether the module file decodes examples.
    """

    seconds: Mapping[str, float]
    waited: tuple[float, float] = (0.0, 0.0)
    steps: int = 1
    calls: int = 0
    call: float = 0.0
    batch_size: int = 1
    accumulate: int = 1
    times_halved: int = 0
    steps_per_call: int = ENOUGH_STEPS_PER_CALL
    cache: str = "memory"
    possible_cache: str = "memory"
    decodes: bool = False

    @classmethod
    def of(cls, fit: "Fit") -> "Measured":
        """Return the measurements of a training at its end; every worker must call it."""
        seconds = fit.stopwatch.seconds()
        journal, rows, parts = fit.journal.steps, fit.train.rows, fit.steps.micro_batches
        return cls(
            seconds=seconds,
            waited=(sum(row[5] for row in journal if row[1] == 0), sum(row[5] for row in journal if row[1] > 0)),
            steps=len(journal),
            calls=fit.stopwatch.times[STEPS],
            # The shortest of some, which other load has disturbed least.
            call=min(timeit.repeat(lambda: fit.steps.train(0), number=1)),
            batch_size=fit.batch_size // parts,
            accumulate=parts,
            times_halved=(parts // fit.settings.accumulate).bit_length() - 1,
            steps_per_call=fit.settings.steps_per_call,
            cache=fit.train.cache,
            possible_cache=choose_cache(fit.train.examples * rows.bytes, tempfile.gettempdir())[0],
            decodes=rows.decodes,
        )


@dataclass(frozen=True)
class Diagnosis:
    """Where the time went.

    Attributes:
        sentence: What stands out, the remedy and its expected gain; or what takes most of the time.
        stands_out: Whether something does.
        parts: Seconds by part, as in ``WORDS``; their sum is the time of the training.
    """

    sentence: str
    stands_out: bool
    parts: Mapping[str, float]

    def write(self, folder: str) -> None:
        """Write it to a file in a folder."""
        content = {"sentence": self.sentence, "seconds": {WORDS[part]: value for part, value in self.parts.items()}}
        write_file(f"{folder}/{DIAGNOSIS_FILE}", json.dumps(content, indent=1) + "\n")


def diagnose(measured: Measured) -> Diagnosis:
    """Return the parts of a training, and a sentence on the finding whose remedy saves most."""
    parts = parts_of(measured)
    total = sum(parts.values())
    finding, gain = max(_findings(measured, parts, total), key=lambda finding: finding[1])
    if gain >= max(LEAST_SECONDS, LEAST_SHARE * total):
        return Diagnosis(f"{finding} would save about {_percent(gain, total)}.", True, parts)
    largest = sorted(parts, key=lambda part: parts[part], reverse=True)[:2]
    if largest[0] == COMPUTING:
        step = 1e3 * parts[COMPUTING] / measured.steps
        text = (
            f"Computing limits the training ({_percent(parts[COMPUTING], total)} of {total:.0f} s, {step:,.1f} ms a "
            "step): try a larger training.batch_size or a faster machine; training.profile shows the operations."
        )
    else:
        shares = ", ".join(f"{WORDS[part]} {_percent(parts[part], total)}" for part in largest)
        text = f"No setting would make the training much shorter: of {total:.0f} s, {shares}."
    return Diagnosis(text, False, parts)


def parts_of(measured: Measured) -> dict[str, float]:
    """Return the seconds of a training by part, as in ``WORDS``; parts that took none are left out."""
    parts = dict.fromkeys(WORDS, 0.0) | {part: value for part, value in measured.seconds.items() if part != STEPS}
    left = measured.seconds.get(STEPS, 0.0)
    for part, value in ((WAITING, sum(measured.waited)), (BETWEEN, measured.calls * measured.call)):
        value = min(value, left)  # by another clock than the steps
        parts[part] += value
        left -= value
    parts[COMPUTING] = left
    return {part: value for part, value in parts.items() if value > 0}


def _findings(measured: Measured, parts: Mapping[str, float], total: float) -> list[Finding]:
    took = dict.fromkeys(WORDS, 0.0) | dict(parts)

    def percent(part: str) -> str:
        return _percent(took[part], total)

    few, calls = measured.steps_per_call, max(ENOUGH_STEPS_PER_CALL, LARGER * measured.steps_per_call)
    return [
        _waiting(measured, took[WAITING], total),
        (
            f"Loading the examples before the first step takes {percent(LOADING)}: {_lighter(measured)}",
            took[LOADING] / 2,
        ),
        (
            f"Summing the gradients over the workers takes {percent(SUMMING)}: "
            f"training.accumulate={LARGER * measured.accumulate}, or a batch_size {LARGER} times as large,",
            took[SUMMING] * (1 - 1 / LARGER),
        ),
        (
            f"A step was compiled {measured.times_halved + 1} times until it fitted into memory: "
            f"training.batch_size={measured.batch_size} and training.accumulate={measured.accumulate}",
            took[COMPILING] * measured.times_halved / (measured.times_halved + 1),
        ),
        (
            f"Python between the calls of {few} steps takes {percent(BETWEEN)}: training.steps_per_call={calls}",
            took[BETWEEN] * (1 - few / calls),
        ),
        (
            f"Callbacks take {percent(CALLBACKS)}: half the work in the module file's callbacks, or "
            f"training.steps_per_call={LARGER * few}, which makes fewer calls after batches,",
            took[CALLBACKS] / 2,
        ),
        (
            f"Evaluation after each epoch takes {percent(EVALUATION)}: half the rows in the eval split (data.split_by "
            "or data.splits)",
            took[EVALUATION] / 2,
        ),
        (
            f"Checkpoints within epochs take {percent(SAVING_WITHIN_EPOCHS)}: training.checkpoint_steps=None, to save "
            "after epochs only,",
            took[SAVING_WITHIN_EPOCHS],
        ),
    ]


def _waiting(measured: Measured, waiting: float, total: float) -> Finding:
    first, later = measured.waited
    again = waiting * later / (first + later) if first + later else 0.0
    text = f"The model waits {_percent(waiting, total)} for {'decoding' if measured.decodes else 'examples'}"
    # A cache saves all epochs but the first; without one, or on disk, memory or disk may have the room.
    if measured.cache == "none" and again >= waiting / 2:
        room = "" if measured.possible_cache != "none" else ", on a machine with the disk space for it,"
        cache = measured.possible_cache if measured.possible_cache != "none" else "disk"
        return f'{text}: training.cache="{cache}"{room}', again
    if measured.cache == "disk" and measured.possible_cache == "memory" and again >= waiting / 2:
        return f'{text}: training.cache="memory"', again
    return f"{text}: {_lighter(measured)}", waiting / 2


def _lighter(measured: Measured) -> str:
    cores = "a machine (configs/machines.py) with twice the cores"
    return f"half the work in decode(features) of the module file, or {cores}," if measured.decodes else cores


def _percent(seconds: float, total: float) -> str:
    return f"{100 * seconds / total:.0f} %"
