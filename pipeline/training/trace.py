"""Record a trace of some training steps for TensorBoard's profile plug-in."""

import logging

import tensorflow as tf

logger = logging.getLogger("pipeline.training")


class Trace:
    """Writes a trace of some steps.

    Args:
        steps: The first step to trace and the one after the last; None traces none.
        folder: Of the TensorBoard files; None writes no trace.
    """

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
