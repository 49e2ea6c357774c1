"""The options our executors give Beam behave as Beam's own."""

from __future__ import annotations

import pickle

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, GoogleCloudOptions, StandardOptions, WorkerOptions

from pipeline.components.beam_pipeline import BeamExecutor, Options
from pipeline.components.statistics_gen import Executor
from pipeline.target import IN_PROCESS

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
    executor = Executor(BeamExecutor.Context(beam_pipeline_args=list(FLAGS)))
    with executor._make_beam_pipeline() as pipeline:
        assert isinstance(pipeline.options, Options)
        _ = pipeline | beam.Create([1, 2])
