"""Find out from the options of a Beam pipeline where it runs."""

from collections.abc import Sequence

from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions

# Runners of Beam that compute on this machine; DirectRunner is the default.
LOCAL_RUNNERS = ("FnApiRunner", "DirectRunner", "BundleBasedDirectRunner", "PrismRunner")


def runs_here(options: PipelineOptions | Sequence[str]) -> bool:
    """Return whether pipelines with these options compute on this machine, so that workers can read its folders."""
    runner = _parsed(options).view_as(StandardOptions).runner or "DirectRunner"
    return str(runner).rpartition(".")[2] in LOCAL_RUNNERS


def in_process(options: PipelineOptions | Sequence[str]) -> bool:
    """Return whether pipelines with these options have this process as their only worker."""
    return runs_here(options) and int(_parsed(options).view_as(DirectOptions).direct_num_workers) == 1


def _parsed(options: PipelineOptions | Sequence[str]) -> PipelineOptions:
    return options if isinstance(options, PipelineOptions) else PipelineOptions(list(options))
