"""Where the time of a training goes, and one sentence on what would make it shorter."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.training.history import DIAGNOSIS_FILE, write_text
from pipeline.training.stopwatch import PYTHON

# Parts that a stopwatch measures, by the name of a block.
LOADING, COMPILING, STEPS, BETWEEN = "loading", "compiling", "steps", "between"
EVALUATION, CHECKPOINTS, CALLBACKS = "evaluation", "checkpoints", "callbacks"
# The parts of a training in words for people, in the order of the report.
WORDS = {
    LOADING: "loading examples before the first step",
    COMPILING: "compiling",
    "waiting": "waiting for examples",
    "moving": "moving examples to the devices",
    "compute": "computing",
    "all_reduce": "summing gradients over the devices",
    "host": "Python functions inside the step",
    EVALUATION: "evaluation",
    CHECKPOINTS: "checkpoints",
    CALLBACKS: "callbacks",
    "retracing": "tracing again what was compiled",
    BETWEEN: "Python between the steps",
    PYTHON: "the rest, such as writing the history",
}
# What saves less than a tenth of the time, or less than seconds, is not worth a sentence.
LEAST_SHARE, LEAST_SECONDS = 0.1, 2.0
# A batch is made larger by this factor, if an epoch keeps 32 steps: with fewer, larger batches cost quality rather than
# save time.
LARGER, LEAST_STEPS = 4, 128
# The default of training.steps_per_call.
ENOUGH_STEPS_PER_CALL = 32


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measurements of a training.

    Attributes:
        seconds: By part of the stopwatch.
        waited: Seconds that steps waited for examples, in the first epoch and in the later ones.
        steps: Training steps.
        steps_per_epoch: Of them.
        calls: Calls of compiled steps.
        call: Seconds of a call of no steps.
        all_reduce: Seconds of one sum of the gradients.
        moving: Seconds of moving one step's examples to the devices.
        host: Share of the steps' time in which a Python function ran that the step calls, and its name.
        callback: Share of the time in callbacks that one method takes, the longest, and its name.
        traced: Share of the time in which a tf.function was traced, by part of the stopwatch; and its name.
        replicas: Copies of the model.
        batch_size: Examples per replica that are computed at once.
        growth: How many times as long a batch takes that is ``LARGER`` times as large; None: not measured.
        accumulate: Batches whose gradients are summed for one step.
        times_halved: How often the batch was halved for want of memory.
        steps_per_call: The setting.
        saves: Checkpoints, and how many of them within an epoch.
        cache: Where the examples are kept.
        possible_cache: Where there would be room for them.
        decodes: Whether the module file decodes examples.
    """

    seconds: Mapping[str, float]
    waited: tuple[float, float] = (0.0, 0.0)
    steps: int = 0
    steps_per_epoch: int = 0
    calls: int = 0
    call: float = 0.0
    all_reduce: float = 0.0
    moving: float = 0.0
    host: tuple[float, str] = (0.0, "")
    callback: tuple[float, str] = (0.0, "")
    traced: Mapping[str, tuple[float, str]] | None = None
    replicas: int = 1
    batch_size: int = 1
    growth: float | None = None
    accumulate: int = 1
    times_halved: int = 0
    steps_per_call: int = ENOUGH_STEPS_PER_CALL
    saves: tuple[int, int] = (0, 0)
    cache: str = "memory"
    possible_cache: str = "memory"
    decodes: bool = False


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
        sentence: What stands out, the remedy and its expected gain; or that there is none.
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
    best = max(_findings(measured, parts, total), key=lambda finding: finding.gain, default=None)
    if best is None or best.gain < max(LEAST_SECONDS, LEAST_SHARE * total):
        largest = sorted(parts, key=lambda part: parts[part], reverse=True)[:2]
        shares = ", ".join(f"{WORDS[part]} {_percent(parts[part], total)}" for part in largest)
        return Diagnosis(f"No setting would make it much shorter: of {total:.0f} s, {shares}.", False, parts)
    return Diagnosis(f"{best.text} would save about {_percent(best.gain, total)}.", True, parts)


def parts_of(measured: Measured) -> dict[str, float]:
    """Return the seconds of a training by part, as in ``WORDS``; parts that took none are left out."""
    parts = dict.fromkeys(WORDS, 0.0) | {part: value for part, value in measured.seconds.items() if part != STEPS}
    for part, (share, _) in (measured.traced or {}).items():
        if part not in (LOADING, COMPILING):
            parts["retracing"] += share * measured.seconds[part]
            if part != STEPS:
                parts[part] -= share * measured.seconds[part]
    left = steps = measured.seconds.get(STEPS, 0.0)
    left -= (measured.traced or {}).get(STEPS, (0.0, ""))[0] * steps
    # In this order: what was timed itself before what is estimated. No more is taken than there is.
    inside = {
        "waiting": sum(measured.waited),
        BETWEEN: measured.calls * measured.call,
        "host": measured.host[0] * steps,
        "all_reduce": measured.all_reduce * measured.steps,
    }
    for part, value in inside.items():
        value = min(value, left)
        parts[part] += value
        left -= value
    parts["compute"] = left
    # A copy is made ahead: it costs what is waited for it.
    parts["moving"] = min(measured.moving * measured.steps, parts["waiting"])
    parts["waiting"] -= parts["moving"]
    return {part: value for part, value in parts.items() if value > 0}


def _findings(measured: Measured, parts: Mapping[str, float], total: float) -> Iterator[Finding]:
    def takes(part: str) -> str:
        return _percent(parts.get(part, 0.0), total)

    yield _waiting(measured, parts, takes("waiting"))
    if LOADING in parts:
        yield Finding(
            f"Loading the examples before the first step takes {takes(LOADING)}: {_lighter(measured)}",
            parts[LOADING] / 2,
        )
    if "moving" in parts:
        yield Finding(
            f"The model waits {takes('moving')} for examples to be moved to the devices: smaller types, such as uint8 "
            "from decode(features), made floats in build_model,",
            parts["moving"] / 2,
        )
    more = f"training.accumulate={LARGER * measured.accumulate}, or a batch_size {LARGER} times as large,"
    if "all_reduce" in parts:
        yield Finding(
            f"Summing the gradients over {measured.replicas} devices takes {takes('all_reduce')}: {more}",
            parts["all_reduce"] * (1 - 1 / LARGER),
        )
    if "host" in parts:
        function = measured.host[1] or "a Python function"
        yield Finding(
            f"{function}, which every step calls back in Python, takes {takes('host')}: TensorFlow operations in place "
            "of tf.py_function or tf.numpy_function in the module file",
            parts["host"],
        )
    yield from _small_batches(measured, parts)
    yield from _compiling(measured, parts, total)
    yield from _between(measured, parts, total)


def _waiting(measured: Measured, parts: Mapping[str, float], takes: str) -> Finding:
    first, later = measured.waited
    waiting = parts.get("waiting", 0.0)
    again = waiting * later / (first + later) if first + later else 0.0
    text = f"The model waits {takes} for {'decoding' if measured.decodes else 'examples'}"
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


def _small_batches(measured: Measured, parts: Mapping[str, float]) -> Iterator[Finding]:
    """Find batches so small that what a step costs whatever its size dominates.

    A larger batch makes a step longer, and steps and calls fewer.
    """
    if measured.growth is None:
        return
    gain = parts.get("compute", 0.0) * (1 - measured.growth / LARGER) + parts.get(BETWEEN, 0.0) * (1 - 1 / LARGER)
    each = "" if measured.replicas == 1 else " per device"
    yield Finding(
        f"Batches of {measured.batch_size}{each} are too small to keep the processor busy: "
        f"training.batch_size={LARGER * measured.batch_size}",
        gain if measured.growth < LARGER / 2 else 0.0,
    )


def _compiling(measured: Measured, parts: Mapping[str, float], total: float) -> Iterator[Finding]:
    if "retracing" in parts:
        shares = measured.traced or {}
        longest = max(
            shares, key=lambda part: shares[part][0] * measured.seconds[part] * (part not in (LOADING, COMPILING))
        )
        function = shares[longest][1] or "a tf.function"
        yield Finding(
            f"{function} is traced again and again, {_percent(parts['retracing'], total)} of the time: tensors in "
            "place of its Python arguments, and one tf.function made once,",
            parts["retracing"],
        )
    if measured.times_halved:
        yield Finding(
            f"A step was compiled {measured.times_halved + 1} times until it fitted into memory: "
            f"training.batch_size={measured.batch_size} and training.accumulate={measured.accumulate}",
            parts.get(COMPILING, 0.0) * measured.times_halved / (measured.times_halved + 1),
        )


def _between(measured: Measured, parts: Mapping[str, float], total: float) -> Iterator[Finding]:
    """Find what takes time between the steps."""

    def takes(part: str) -> str:
        return _percent(parts[part], total)

    if BETWEEN in parts:
        few, calls = measured.steps_per_call, max(ENOUGH_STEPS_PER_CALL, LARGER * measured.steps_per_call)
        yield Finding(
            f"Python between the calls of {few} steps takes {takes(BETWEEN)}: training.steps_per_call={calls}",
            parts[BETWEEN] * (1 - few / calls),
        )
    if CALLBACKS in parts:
        share, method = measured.callback
        seconds = parts[CALLBACKS] * share if method else parts[CALLBACKS]
        text = f"The callback {method or 'of the module file'} takes {_percent(seconds, total)}"
        if "_batch_" in method:
            rarer = f"training.steps_per_call={LARGER * measured.steps_per_call}, with which it is called less often,"
            yield Finding(f"{text}: {rarer}", seconds * (1 - 1 / LARGER))
        else:
            yield Finding(f"{text}: half the work in it", seconds / 2)
    if EVALUATION in parts:
        yield Finding(
            f"Evaluation after each epoch takes {takes(EVALUATION)}: half the rows in the eval split (data.split_by or "
            "data.splits)",
            parts[EVALUATION] / 2,
        )
    saves, within = measured.saves
    if CHECKPOINTS in parts and within:
        yield Finding(
            f"Checkpoints take {takes(CHECKPOINTS)}: training.checkpoint_steps=None, to save after epochs only,",
            parts[CHECKPOINTS] * within / saves,
        )


def _percent(seconds: float, total: float) -> str:
    return f"{100 * seconds / total:.0f} %"
