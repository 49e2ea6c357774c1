"""Beam pipelines that are put together faster."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor


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
        if self._make_beam_pipeline_fn is not None:
            return super()._make_beam_pipeline()
        return beam.Pipeline(options=Options(self._beam_pipeline_args))
