"""Beam pipelines that are put together and run faster."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from apache_beam.runners.worker import statesampler
from apache_beam.transforms import userstate
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor

# Milliseconds between two looks at what a worker is busy with.
SAMPLING_PERIOD = 10
_get_dofn_specs = userstate.get_dofn_specs
_known_specs: weakref.WeakKeyDictionary[beam.DoFn, Any] = weakref.WeakKeyDictionary()


class Options(PipelineOptions):
    """Options of which there is one view of each kind.

    Beam asks for one several times for every transform, and each time parses all options anew: 2 of the 30 seconds of
    Transform. Views share their values, so that one is as good as another.
    """

    def __init__(self, flags: list[str]):
        object.__setattr__(self, "_views", {})  # PipelineOptions takes attributes for options
        super().__init__(flags)

    def view_as(self, cls: type[PipelineOptions]) -> PipelineOptions:
        """Returns the view that there is, or makes it."""
        if cls not in self._views:
            self._views[cls] = super().view_as(cls)
        return self._views[cls]


class BeamExecutor(BaseBeamExecutor):
    """An executor whose pipelines have such options."""

    def _make_beam_pipeline(self) -> beam.Pipeline:
        hasten()
        if self._make_beam_pipeline_fn is not None:
            return super()._make_beam_pipeline()
        return beam.Pipeline(options=Options(self._beam_pipeline_args))


def hasten() -> None:
    """Spares Beam in this process some work for which it has no option: a seventh of Transform's time."""
    # The end of a bundle waits for the thread that looks what a worker is busy with, every 200 ms.
    statesampler.StateSampler.__init__.__defaults__ = (SAMPLING_PERIOD,)
    # What another bundle may need is measured by a walk through all modules of Python. A bundle keeps its own anyway.
    worker_handlers.STATE_CACHE_SIZE_MB = 0
    # Whether a DoFn has states or timers is asked seven times, and told by the signatures of all its methods.
    userstate.get_dofn_specs = _specs_of


def _specs_of(dofn: beam.DoFn) -> Any:
    if not isinstance(dofn, Hashable):
        return _get_dofn_specs(dofn)
    if dofn not in _known_specs:
        _known_specs[dofn] = _get_dofn_specs(dofn)
    return _known_specs[dofn]
