"""Measure a training besides its metrics: where its time goes, and how busy the machine is."""

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from pipeline.training.cache import choose_cache
from pipeline.training.diagnosis import CALLBACKS, COMPILING, LARGER, LEAST_STEPS, STEPS, Diagnosis, Measured, diagnose
from pipeline.training.probes import all_reduce_seconds, growth_of_a_step, moving_seconds, seconds_of
from pipeline.training.stacks import CALLBACK, HOST_FUNCTION, TRACING, StackSamples
from pipeline.training.stopwatch import Stopwatch
from pipeline.training.utilisation import Utilisation

if TYPE_CHECKING:
    from pipeline.training.loop import Fit

logger = logging.getLogger("pipeline.training")

# One process times probes after a training that took so many times as long as compiling it did: compiling them, each a
# tenth of a step, is then a hundredth of the training. Several workers would have to agree, and always do.
TIMES_COMPILING = 10


class Observation:
    """Measurements of one training.

    Attributes:
        stopwatch: Of its parts.
        calls: Calls of compiled training steps.
        saves: Checkpoints, and how many of them within an epoch.
    """

    def __init__(self) -> None:
        self.stopwatch = Stopwatch()
        self.calls = 0
        self.saves = [0, 0]
        self._samples = StackSamples()
        self._utilisation: Utilisation | None = None

    @contextlib.contextmanager
    def sampling(self, wanted: bool) -> Iterator[None]:
        """Sample the machine and the Python stacks in the background until the block ends, if it is wanted."""
        if not wanted:
            yield
            return
        with Utilisation(lambda: self._samples.look(self.stopwatch.part)) as self._utilisation:
            yield

    def columns(self) -> dict[str, float]:
        """Return how busy the machine was since the last call, as columns of history.csv."""
        return self._utilisation.take() if self._utilisation else {}

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "seconds": self.stopwatch.seconds(),
            "counts": [self.calls, *self.saves],
            "samples": self._samples.state(),
        }

    def add(self, state: dict[str, Any]) -> None:
        """Add what was measured of the same training in a process before this one, if it is in its checkpoint."""
        if not state:
            return
        self.stopwatch.add(state["seconds"])
        calls, saves, within = state["counts"]
        self.calls += calls
        self.saves = [self.saves[0] + saves, self.saves[1] + within]
        self._samples.add(state["samples"])

    def diagnose(self, fit: "Fit") -> Diagnosis:
        """Return where the time of a training went; every worker must call it, at its end."""
        seconds, samples = self.stopwatch.seconds(), self._samples
        distribution, rows = fit.distribution, fit.train.rows
        journal = fit.journal.steps
        affords = distribution.workers > 1 or sum(seconds.values()) > TIMES_COMPILING * seconds.get(COMPILING, 0.0)
        all_reduce = moving = 0.0
        if distribution.replicas > 1 and affords:
            all_reduce = all_reduce_seconds(distribution.strategy, fit.model.trainable_variables)
        if not distribution.on_cpu:
            chunk = rows.chunk(fit.batch_size)
            moving = sum(moving_seconds(device, chunk) for device in distribution.fed_devices) / chunk.shape[0]
        parts = fit.steps.micro_batches
        growth = None
        if affords and fit.steps_per_epoch >= LEAST_STEPS and not distribution.tpu:
            growth = growth_of_a_step(fit.model, rows, fit.batch_size // parts, LARGER)
        return diagnose(
            Measured(
                seconds=seconds,
                waited=(
                    sum(row[5] for row in journal if row[1] == 0),
                    sum(row[5] for row in journal if row[1] > 0),
                ),
                steps=len(journal),
                steps_per_epoch=fit.steps_per_epoch,
                calls=self.calls,
                call=seconds_of(lambda: fit.steps.train(0)),
                all_reduce=all_reduce,
                moving=moving,
                host=samples.share(STEPS, HOST_FUNCTION),
                callback=samples.most_seen(CALLBACKS, CALLBACK),
                traced={part: samples.share(part, TRACING) for part in seconds},
                replicas=distribution.replicas,
                batch_size=fit.batch_size // parts,
                growth=growth,
                accumulate=parts,
                times_halved=(parts // fit.settings.accumulate).bit_length() - 1,
                steps_per_call=fit.settings.steps_per_call,
                saves=(self.saves[0], self.saves[1]),
                cache=fit.train.cache,
                possible_cache=choose_cache(fit.train.examples * rows.bytes, tempfile.gettempdir())[0],
                decodes=rows.decodes,
            )
        )


class Trace:
    """Writes a trace of some steps for TensorBoard's profile plug-in.

    Args:
        profile: The setting.
        folder: Of the TensorBoard files; None writes no trace.
    """

    def __init__(self, profile: str | tuple[int, int], folder: str | None):
        self.stops = () if isinstance(profile, str) or not folder else profile
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
        """End the trace if it runs; warn that there is none if the training ended at a step before it."""
        if self.stops and not self._begun and step < self.stops[0]:
            logger.warning(
                "no trace was written: training.profile=%s begins after the last step, which is %d", self.stops, step
            )
        self._stop()

    def _stop(self) -> None:
        if self._runs:
            self._runs = False
            tf.profiler.experimental.stop()
