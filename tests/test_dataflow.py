"""The data steps as Dataflow jobs: their graphs are built and translated offline; none is submitted."""

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2

from pipeline.components.arrow_example_gen import write_examples
from pipeline.data.shards import Job
from pipeline.errors import UserError
from pipeline.settings.target import Dataflow

DATAFLOW = Dataflow(
    project="some-project",
    region="europe-west4",
    temp_location="gs://some-bucket/temp",
    image="europe-west4-docker.pkg.dev/some-project/images/pipeline:1",
    max_workers=7,
)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"project": ""}, r"dataflow.project must be a project id, such as my-project, got ''"),
        ({"region": "europe-west4-a"}, r"dataflow.region must be a region"),
        ({"temp_location": "/tmp"}, r"dataflow.temp_location must be a folder gs://bucket/folder, got '/tmp'"),
        ({"image": "pipeline"}, r"dataflow.image must be an image with its tag or digest"),
        ({"machine_type": "big"}, r"dataflow.machine_type must be a machine type"),
        ({"max_workers": 0}, r"dataflow.max_workers must be a whole number of 1 or more, got 0"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_to_write(setting, message):
    with pytest.raises(UserError, match=message):
        Dataflow(**{**vars(DATAFLOW), **setting})


def test_the_options_reach_beam():
    options = PipelineOptions([*DATAFLOW.beam_args]).get_all_options(drop_default=True)
    assert options["project"] == "some-project"
    assert options["region"] == "europe-west4"
    assert options["max_num_workers"] == 7
    assert options["machine_type"] == "n2-standard-4"
    assert options["autoscaling_algorithm"] == "THROUGHPUT_BASED"
    assert options["sdk_container_image"] == DATAFLOW.image


def translated(pipeline: beam.Pipeline) -> beam_runner_api_pb2.Pipeline:
    """The pipeline as DataflowRunner would submit it."""
    return pipeline.run().job.proto_pipeline


@pytest.mark.slow
def test_the_job_of_example_gen_is_built_offline():
    job = Job(
        files=tuple(("all", f"gs://some-bucket/data/{number}.parquet") for number in range(1000)),
        format="parquet",
        output_splits=("train", "eval", "test"),
        shares=(8, 1, 1),
        uri="gs://some-bucket/examples",
    )
    pipeline = beam.Pipeline(options=PipelineOptions([*DATAFLOW.beam_args, "--dry_run=True"]))
    write_examples(pipeline, job)
    graph = translated(pipeline)
    names = {transform.unique_name for transform in graph.components.transforms.values()}
    assert {"Scan", "Shards", "Write", "Summary"} <= names
    (environment,) = {one.payload for one in graph.components.environments.values() if one.urn == "beam:env:docker:v1"}
    assert DATAFLOW.image.encode() in environment
