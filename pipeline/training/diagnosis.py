"""Where the time of a training goes, and one sentence on what limits it and what would make it shorter."""

import json
import tempfile
import timeit
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.training.cache import choose_cache
from pipeline.training.history import DIAGNOSIS_FILE, write_text
from pipeline.training.stopwatch import PYTHON

if TYPE_CHECKING:
    from pipeline.training.loop import Fit

# Parts that a stopwatch measures, by the name of a block.
LOADING, COMPILING, STEPS, SUMMING, BETWEEN = "loading", "compiling", "steps", "summing", "between"
EVALUATION, SAVING, SAVING_WITHIN_EPOCHS, CALLBACKS = "evaluation", "saving", "saving within epochs", "callbacks"
# Parts of the steps.
WAITING, COMPUTING = "waiting", "computing"
# The parts of a training in words for people, in the order of the report.
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


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measurements of a training.

    Attributes:
        seconds: By part of the stopwatch.
        waited: Seconds that steps waited for examples, in the first epoch and in the later ones.
        steps: Training steps.
        calls: Calls of compiled steps.
        call: Seconds of a call of no steps.
        batch_size: Examples per replica that are computed together.
        accumulate: Batches whose gradients are summed for one step.
        times_halved: How often the batch was halved for want of memory.
        steps_per_call: The setting.
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
class Finding:
    """Something that a training suffers from.

    Attributes:
        text: What takes how much, and the remedy.
        gain: Seconds that the remedy would save.
    """

    text: str
    gain: float


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
        write_text(folder, DIAGNOSIS_FILE, json.dumps(content, indent=1) + "\n")


def diagnose(measured: Measured) -> Diagnosis:
    """Return the parts of a training, and a sentence on the finding whose remedy saves most."""
    parts = parts_of(measured)
    total = sum(parts.values())
    best = max(_findings(measured, parts, total), key=lambda finding: finding.gain)
    if best.gain >= max(LEAST_SECONDS, LEAST_SHARE * total):
        return Diagnosis(f"{best.text} would save about {_percent(best.gain, total)}.", True, parts)
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


def _findings(measured: Measured, parts: Mapping[str, float], total: float) -> Iterator[Finding]:
    def percent(part: str) -> str:
        return _percent(parts[part], total)

    yield _waiting(measured, parts.get(WAITING, 0.0), total)
    if LOADING in parts:
        yield Finding(
            f"Loading the examples before the first step takes {percent(LOADING)}: {_lighter(measured)}",
            parts[LOADING] / 2,
        )
    if SUMMING in parts:
        yield Finding(
            f"Summing the gradients over the workers takes {percent(SUMMING)}: "
            f"training.accumulate={LARGER * measured.accumulate}, or a batch_size {LARGER} times as large,",
            parts[SUMMING] * (1 - 1 / LARGER),
        )
    if measured.times_halved:
        yield Finding(
            f"A step was compiled {measured.times_halved + 1} times until it fitted into memory: "
            f"training.batch_size={measured.batch_size} and training.accumulate={measured.accumulate}",
            parts.get(COMPILING, 0.0) * measured.times_halved / (measured.times_halved + 1),
        )
    if BETWEEN in parts:
        few, calls = measured.steps_per_call, max(ENOUGH_STEPS_PER_CALL, LARGER * measured.steps_per_call)
        yield Finding(
            f"Python between the calls of {few} steps takes {percent(BETWEEN)}: training.steps_per_call={calls}",
            parts[BETWEEN] * (1 - few / calls),
        )
    if CALLBACKS in parts:
        yield Finding(
            f"Callbacks take {percent(CALLBACKS)}: half the work in the module file's callbacks, or "
            f"training.steps_per_call={LARGER * measured.steps_per_call}, which makes fewer calls after batches,",
            parts[CALLBACKS] / 2,
        )
    if EVALUATION in parts:
        yield Finding(
            f"Evaluation after each epoch takes {percent(EVALUATION)}: half the rows in the eval split (data.split_by "
            "or data.splits)",
            parts[EVALUATION] / 2,
        )
    if SAVING_WITHIN_EPOCHS in parts:
        yield Finding(
            f"Checkpoints within epochs take {percent(SAVING_WITHIN_EPOCHS)}: training.checkpoint_steps=None, to save "
            "after epochs only,",
            parts[SAVING_WITHIN_EPOCHS],
        )


def _waiting(measured: Measured, waiting: float, total: float) -> Finding:
    first, later = measured.waited
    again = waiting * later / (first + later) if first + later else 0.0
    text = f"The model waits {_percent(waiting, total)} for {'decoding' if measured.decodes else 'examples'}"
    # A cache saves all epochs but the first; without one, or on disk, memory or disk may have the room.
    if measured.cache == "none" and again >= waiting / 2:
        room = "" if measured.possible_cache != "none" else ", on a machine with the disk space for it,"
        cache = measured.possible_cache if measured.possible_cache != "none" else "disk"
        return Finding(f'{text}: training.cache="{cache}"{room}', again)
    if measured.cache == "disk" and measured.possible_cache == "memory" and again >= waiting / 2:
        return Finding(f'{text}: training.cache="memory"', again)
    return Finding(f"{text}: {_lighter(measured)}", waiting / 2)


def _lighter(measured: Measured) -> str:
    """Return what makes examples come faster where no cache does."""
    cores = "a machine (configs/machines.py) with twice the cores"
    return f"half the work in decode(features) of the module file, or {cores}," if measured.decodes else cores


def _percent(seconds: float, total: float) -> str:
    return f"{100 * seconds / total:.0f} %"
