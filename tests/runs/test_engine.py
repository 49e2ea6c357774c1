"""An engine is looked at before a run: its options, its server."""

import pytest

from pipeline.errors import UserError
from pipeline.runs import engine
from pipeline.settings.target import Target
from tests.test_portable_runner import free_port

PROCESS = {"environment_type": "PROCESS", "environment_config": '{"command": "/opt/apache/beam/boot"}'}


def check(tmp_path, runner, **options):
    engine.check(Target.beam(tmp_path, "flights", runner, {**PROCESS, **options}))


def test_a_server_that_does_not_answer_is_named(tmp_path):
    port = free_port()
    with pytest.raises(
        UserError, match=rf"no server answers at localhost:{port}, the Beam option job_endpoint: .*refused"
    ):
        check(tmp_path, "PortableRunner", job_endpoint=f"localhost:{port}")
    with pytest.raises(UserError, match=rf"no server answers at http://localhost:{port}/, the Beam option flink_"):
        check(tmp_path, "FlinkRunner", flink_master=f"http://localhost:{port}/")


def test_a_misspelt_option_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(UserError, match=r"Beam has no option 'parallelsm'; did you mean parallelism\?"):
        check(tmp_path, "FlinkRunner", flink_master="h:1", parallelsm="4")


def test_a_value_that_beam_does_not_take_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"Beam does not take its options: argument --parallelism: invalid int value"):
        check(tmp_path, "FlinkRunner", flink_master="h:1", parallelism="many")
