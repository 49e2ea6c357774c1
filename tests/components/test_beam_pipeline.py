"""The options our executors give Beam behave as Beam's own."""

import dataclasses
import pickle
import threading

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import (
    DirectOptions,
    GoogleCloudOptions,
    PipelineOptions,
    StandardOptions,
    WorkerOptions,
)
from apache_beam.portability import common_urns
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from apache_beam.runners.worker import statesampler
from apache_beam.runners.worker.data_plane import ClosableOutputStream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import userstate

from pipeline.components.beam_pipeline import SAMPLING_PERIOD, BeamExecutor, Options
from pipeline.components.blocks import ReadBlocks
from pipeline.components.statistics_gen import StatisticsGenExecutor
from pipeline.settings.target import IN_PROCESS, Dataflow

FLAGS = [*IN_PROCESS, "--project=p", "--labels=one=1", "--labels=two=2"]


def test_there_is_one_view_of_each_kind_and_what_one_sets_all_see():
    options = Options(FLAGS)
    assert options.view_as(StandardOptions) is options.view_as(StandardOptions)
    assert options.view_as(DirectOptions).direct_num_workers == 1
    assert options.view_as(GoogleCloudOptions).labels == ["one=1", "two=2"]
    options.view_as(GoogleCloudOptions).project = "q"
    assert options.view_as(GoogleCloudOptions).project == "q"
    assert options.view_as(WorkerOptions).view_as(GoogleCloudOptions).project == "q"
    assert options.get_all_options()["project"] == "q"


def test_they_travel_with_a_transform():
    options = Options(FLAGS)
    options.view_as(GoogleCloudOptions).project = "q"
    travelled = pickle.loads(pickle.dumps(options))
    assert travelled.view_as(GoogleCloudOptions).project == "q"
    assert travelled.view_as(StandardOptions).runner == options.view_as(StandardOptions).runner


def test_an_executor_makes_its_pipelines_with_them():
    executor = StatisticsGenExecutor(BeamExecutor.Context(beam_pipeline_args=list(FLAGS)))
    with executor._make_beam_pipeline() as pipeline:
        assert isinstance(pipeline.options, Options)
        _ = pipeline | beam.Create([1, 2])


@pytest.mark.parametrize(
    "flags",
    [
        ("--runner=PortableRunner", "--job_endpoint=localhost:1", "--sdk_container_image=none"),
        (*IN_PROCESS[:1], "--direct_running_mode=multi_processing", "--direct_num_workers=4", IN_PROCESS[-1]),
    ],
)
def test_jobs_with_workers_elsewhere_are_of_beam_alone(flags):
    executor = StatisticsGenExecutor(BeamExecutor.Context(beam_pipeline_args=list(flags)))
    assert type(executor._make_beam_pipeline().options) is PipelineOptions


class Count(beam.DoFn):
    """(key, value) → (key, values so far)."""

    SPEC = userstate.CombiningValueStateSpec("so_far", sum)
    SO_FAR = beam.DoFn.StateParam(SPEC)

    def process(self, element, so_far=SO_FAR):
        so_far.add(1)
        yield element[0], so_far.read()


def test_states_and_side_inputs_work_as_ever():
    executor = StatisticsGenExecutor(BeamExecutor.Context(beam_pipeline_args=list(FLAGS)))
    with executor._make_beam_pipeline() as pipeline:
        side = beam.pvalue.AsList(pipeline | "Side" >> beam.Create([1, 2, 3]))
        counted = pipeline | beam.Create([("a", 1), ("b", 1), ("a", 1)]) | beam.ParDo(Count())
        with_side = counted | beam.Map(lambda one, side: (*one, sorted(side)), side)
        assert_that(with_side, equal_to([("a", 1, [1, 2, 3]), ("a", 2, [1, 2, 3]), ("b", 1, [1, 2, 3])]))
    count = Count()
    states, timers = userstate.get_dofn_specs(count)
    assert (states, timers) == ({Count.SPEC}, set())
    assert userstate.get_dofn_specs(count)[0] is states  # not looked for again


@dataclasses.dataclass
class Add(beam.DoFn):
    """Equal by what it adds, and so without a hash."""

    more: int

    def process(self, element):
        yield element + self.more


def test_a_dofn_may_be_a_dataclass():
    executor = StatisticsGenExecutor(BeamExecutor.Context(beam_pipeline_args=list(FLAGS)))
    with executor._make_beam_pipeline() as pipeline:
        assert_that(pipeline | beam.Create([1]) | beam.ParDo(Add(2)), equal_to([3]))


def test_no_bundle_waits_long_for_its_end():
    executor = StatisticsGenExecutor(BeamExecutor.Context(beam_pipeline_args=list(FLAGS)))
    with executor._make_beam_pipeline() as pipeline:
        periods = (
            pipeline | beam.Create([1]) | beam.Map(lambda _: statesampler.get_current_tracker().sampling_period_ms)
        )
        assert_that(periods, equal_to([SAMPLING_PERIOD]))


def test_no_bundle_measures_what_it_caches_for_others(monkeypatch):
    sizes = []
    cache = worker_handlers.StateCache
    monkeypatch.setattr(worker_handlers, "StateCache", lambda size: sizes.append(size) or cache(size))
    executor = StatisticsGenExecutor(BeamExecutor.Context(beam_pipeline_args=list(FLAGS)))
    with executor._make_beam_pipeline() as pipeline:
        _ = pipeline | beam.Create([1])
    assert set(sizes) == {0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "here"),
    [
        ((), True),
        (IN_PROCESS, True),
        (Dataflow("some-project", "europe-west4", "gs://some-bucket/temp", "docker.pkg.dev/p/r/i:1").beam_args, False),
        (("--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner",), True),
        (("--runner=FlinkRunner",), False),
    ],
)
def test_an_executor_knows_whether_its_workers_see_this_machines_folders(flags, here):
    executor = StatisticsGenExecutor(BeamExecutor.Context(beam_pipeline_args=list(flags)))
    assert executor._runs_here is here


@pytest.mark.parametrize("here", [True, False])
def test_only_workers_elsewhere_have_a_group_as_the_common_source_of_all_phases(here):
    pipeline = beam.Pipeline(options=Options(list(IN_PROCESS)) if here else PipelineOptions(list(IN_PROCESS)))
    _ = pipeline | ReadBlocks(["one", "two"])
    urns = {part.spec.urn for part in pipeline.to_runner_api().components.transforms.values()}
    assert (common_urns.primitives.GROUP_BY_KEY.urn in urns) is not here


def test_beam_loses_what_is_written_during_a_flush_by_the_clock():
    """Why several workers of FnApiRunner are refused (docs/decisions/0028); when Beam has mended it, this fails."""
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
