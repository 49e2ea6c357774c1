"""Beam pipelines that are built and run faster, where they run in this process."""

import weakref
from collections.abc import Hashable
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from apache_beam.runners.worker import statesampler
from apache_beam.transforms import userstate
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor

# Milliseconds between two samples of a worker's state.
SAMPLING_PERIOD = 10
# Beam's runners that compute on this machine; DirectRunner is Beam's default.
HERE = ("FnApiRunner", "DirectRunner", "BundleBasedDirectRunner", "PrismRunner")
_get_dofn_specs = userstate.get_dofn_specs
_known_specs: weakref.WeakKeyDictionary[beam.DoFn, Any] = weakref.WeakKeyDictionary()


class Options(PipelineOptions):
    """Pipeline options that keep their views; of a pipeline in this process, with one worker.

    Beam asks for a view several times for every transform, and parses all options each time: 2 of the 30 seconds of
    Transform. Views share their values, so one of each class is enough.
    """

    def __init__(self, flags: list[str]):
        object.__setattr__(self, "_views", {})  # PipelineOptions takes attributes for options
        super().__init__(flags)

    def view_as(self, cls: type[PipelineOptions]) -> PipelineOptions:
        """Return the view of a class, the same each time."""
        if cls not in self._views:
            self._views[cls] = super().view_as(cls)
        return self._views[cls]


class BeamExecutor(BaseBeamExecutor):
    """Executor whose pipelines, in this process, have ``Options`` and the patches of ``patch_beam_overheads``."""

    def _make_beam_pipeline(self) -> beam.Pipeline:
        # Elsewhere a job is Beam's own from end to end: there is little to gain, and nothing of it was measured.
        if not self._is_in_process:
            return super()._make_beam_pipeline()
        patch_beam_overheads()
        return beam.Pipeline(options=Options(self._beam_pipeline_args))

    @property
    def _is_in_process(self) -> bool:
        """Return whether the pipelines compute in this process alone, where a step may do without Beam."""
        return self._runs_here and not self._has_workers

    @property
    def _has_workers(self) -> bool:
        """Return whether the pipelines have several workers."""
        return int(PipelineOptions(self._beam_pipeline_args).view_as(DirectOptions).direct_num_workers) != 1

    @property
    def _runs_here(self) -> bool:
        """Return whether the pipelines compute on this machine, so that their workers see its folders."""
        return self._make_beam_pipeline_fn is None and runs_here(self._beam_pipeline_args)


def runs_here(beam_args: list[str]) -> bool:
    """Return whether pipelines with these options compute on this machine."""
    runner = Options(beam_args).view_as(StandardOptions).runner or "DirectRunner"
    return runner.rpartition(".")[2] in HERE


def patch_beam_overheads() -> None:
    """Work around three slow paths of Beam that have no option: a seventh of Transform's time."""
    # The end of a bundle waits for the thread that samples the state of the worker, every 200 ms.
    statesampler.StateSampler.__init__.__defaults__ = (SAMPLING_PERIOD,)
    # Beam measures the objects that it caches across bundles by a walk through all Python modules. A bundle has its own
    # cache anyway.
    worker_handlers.STATE_CACHE_SIZE_MB = 0
    # Beam looks for states and timers in the signatures of all methods of a DoFn, seven times.
    userstate.get_dofn_specs = _specs_of


def _specs_of(dofn: beam.DoFn) -> Any:
    if not isinstance(dofn, Hashable):
        return _get_dofn_specs(dofn)
    if dofn not in _known_specs:
        _known_specs[dofn] = _get_dofn_specs(dofn)
    return _known_specs[dofn]
