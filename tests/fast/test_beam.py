"""The options of a Beam pipeline tell where it runs."""

import threading

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import common_urns
from apache_beam.runners.worker.data_plane import ClosableOutputStream

from pipeline.fast import beam_options
from pipeline.fast.blocks import ReadBlocks
from pipeline.settings.target import IN_PROCESS, Dataflow

WORKERS = (*IN_PROCESS[:1], "--direct_running_mode=multi_processing", "--direct_num_workers=4", IN_PROCESS[-1])
DATAFLOW = Dataflow("some-project", "europe-west4", "gs://some-bucket/temp", "docker.pkg.dev/p/r/i:1").beam_args


@pytest.mark.parametrize(
    ("flags", "runs_here", "in_process"),
    [
        ((), True, True),
        (IN_PROCESS, True, True),
        (WORKERS, True, False),
        (DATAFLOW, False, False),
        (("--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner",), True, True),
        (("--runner=FlinkRunner",), False, False),
        (("--runner=PortableRunner", "--job_endpoint=localhost:1", "--sdk_container_image=none"), False, False),
    ],
)
def test_options_tell_where_a_pipeline_runs(flags, runs_here, in_process):
    assert beam_options.runs_here(flags) is runs_here
    assert beam_options.in_process(flags) is in_process


@pytest.mark.parametrize("flags", [IN_PROCESS, WORKERS])
def test_only_workers_elsewhere_have_a_group_as_the_common_source_of_all_phases(flags):
    pipeline = beam.Pipeline(options=PipelineOptions(list(flags)))
    _ = pipeline | ReadBlocks(["one", "two"])
    urns = {part.spec.urn for part in pipeline.to_runner_api().components.transforms.values()}
    assert (common_urns.primitives.GROUP_BY_KEY.urn in urns) is (flags is WORKERS)


def test_beam_loses_what_is_written_during_a_flush_by_the_clock():
    """Show why FnApiRunner must have one worker (docs/decisions/0028); fails once Beam fixes the bug."""
    sent: list[bytes] = []
    flushing, written = threading.Event(), threading.Event()

    def flush(data: bytes) -> None:
        sent.append(data)
        flushing.set()
        written.wait()

    stream = ClosableOutputStream.create(sent.append, flush, data_buffer_time_limit_ms=10)
    stream.write(b"early ")
    assert flushing.wait(300)
    stream.write(b"late")
    written.set()
    stream.close()  # waits for the flush
    assert b"".join(sent) == b"early "
