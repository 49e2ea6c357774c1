"""Engines of Beam: what is missing or wrong is one sentence, before anything starts."""

import pytest

from pipeline.errors import UserError
from pipeline.settings.engine import beam_args
from pipeline.settings.target import IN_PROCESS, Target

FLINK = {"flink_master": "flink:8081", "sdk_container_image": "registry/pipeline:1"}


@pytest.mark.parametrize(
    ("runner", "options", "message"),
    [
        ("FlinkRuner", FLINK, r"no Beam runner 'FlinkRuner': did you mean FlinkRunner\? expected one of Fl"),
        ("Airflow", {}, r"no Beam runner 'Airflow': expected one of FlinkRunner, PortableRunner, Sp"),
        ("DataflowRunner", {}, r"see buckets only, .* vertex_runner.py --dataflow on runs the data steps there"),
        (
            "FlinkRunner",
            {**FLINK, "--parallelism": "4"},
            r"option '--parallelism' begins with a dash; write parallelism",
        ),
        ("FlinkRunner", {**FLINK, "runner": "SparkRunner"}, r"runner is 'SparkRunner', and .* already: FlinkRunner"),
        ("FlinkRunner", {"sdk_container_image": "i"}, r"FlinkRunner needs flink_master or job_endpoint, where"),
        ("SparkRunner", {}, r"SparkRunner needs spark_master_url or spark_rest_url or job_endpoint"),
        ("FlinkRunner", {**FLINK, "job_endpoint": "h:1"}, r"flink_master and job_endpoint exclude each other"),
        (
            "PortableRunner",
            {"job_endpoint": "h:1"},
            r"PortableRunner needs sdk_container_image, .* or environment_type",
        ),
        (
            "FlinkRunner",
            {**FLINK, "environment_type": "EXTERNAL"},
            r"sdk_container_image and environment_type=EXTERNAL exclude each other",
        ),
        ("FlinkRunner", {**FLINK, "environment_config": "i"}, r"sdk_container_image and environment_config exclude"),
        (
            "FlinkRunner",
            {**FLINK, "experiments": "data_buffer_time_limit_ms=100"},
            r"experiment data_buffer_time_limit_ms makes workers lose rows .*; leave it out",
        ),
        ("FnApiRunner", {}, r"already, in this process; several of its workers lose rows"),
    ],
)
def test_wrong_options_are_refused_with_what_to_write(runner, options, message):
    with pytest.raises(UserError, match=message):
        beam_args(runner, options)


def test_all_that_is_wrong_is_one_message():
    with pytest.raises(UserError) as refused:
        beam_args("FlinkRunner", {"runner": "x"})
    assert len(str(refused.value).splitlines()) == 3


def test_an_image_is_what_the_workers_are_and_no_package_is_made_for_them():
    assert beam_args("FlinkRunner", {**FLINK, "flink_submit_uber_jar": ""}) == (
        "--runner=FlinkRunner",
        "--flink_master=flink:8081",
        "--sdk_container_image=registry/pipeline:1",
        "--flink_submit_uber_jar",
        "--environment_type=DOCKER",
        "--environment_config=registry/pipeline:1",
    )
    external = {"job_endpoint": "h:1", "environment_type": "EXTERNAL", "environment_config": "h:2"}
    assert "--sdk_container_image=none" in beam_args("PortableRunner", external)


def test_a_target_with_an_engine_differs_from_this_machine_in_that_only(tmp_path):
    here, there = Target.local(tmp_path, "flights"), Target.beam(tmp_path, "flights", "FlinkRunner", FLINK)
    assert here.beam_args == IN_PROCESS
    assert there.beam_args[0] == "--runner=FlinkRunner"
    assert vars(here) == {**vars(there), "beam_args": IN_PROCESS}
