"""The command line of vertex_runner.py: commands, their own flags, and mistakes that are answered with what to type."""

from pathlib import Path

import pytest

from pipeline.cli.vertex import settings
from pipeline.cli.vertex.arguments import COMMANDS, parse_arguments
from pipeline.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
PLACE = {"GOOGLE_CLOUD_PROJECT": "demo", "GOOGLE_CLOUD_REGION": "us-central1"}


@pytest.mark.parametrize("argv", [[], ["--pipeline", "churn", "--region", "x"], ["run", "--no-wait"]])
def test_without_a_command_the_pipeline_runs(argv):
    assert parse_arguments(argv, {}).command == "run"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["shedule", "0 3 * * 1"], "no command 'shedule'; did you mean python vertex_runner.py schedule?"),
        (["x"], "no command 'x'; there are run, check, compile, rehearse,"),
        (["--rehearse"], "--rehearse is a command, no flag; did you mean python vertex_runner.py rehearse?"),
        (["--project", "demo", "--check"], "--check is a command, no flag"),
        (["watch", "1", "--no-wait"], "unrecognized arguments: --no-wait"),
        (["pause", "flights", "--bucket", "b"], "unrecognized arguments: --bucket"),
        (["--project", "demo", "check"], "the command comes first: python vertex_runner.py check"),
        (["schedule", "every monday"], "must be a cron line of five fields"),
        (["costs", "--days", "0"], "must be a whole number of days from 1 to 730, got '0'"),
        (["costs", "--days", "99999999999"], "must be a whole number of days from 1 to 730, got '99999999999'"),
        (["costs", "--dry-run"], "unrecognized arguments: --dry-run"),
        (["advise", "--measure"], "unrecognized arguments: --measure"),
        (["check", "--max-cost", "five"], "--max-cost: must be US dollars, a number above 0, got 'five'"),
        (["run", "--max-cost", "-1"], "--max-cost: must be US dollars, a number above 0, got '-1'"),
        (["watch"], "the following arguments are required: JOB"),
        (["watch", "projects/demo"], "or projects/PROJECT/locations/REGION/pipelineJobs/ID, got 'projects/demo'"),
    ],
)
def test_a_mistake_is_answered_with_what_to_type(argv, message, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_arguments(argv, {})
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_a_help_of_its_own_with_its_exit_codes(command, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_arguments([command, "--help"], {})
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: python vertex_runner.py {command} ")
    assert "Exit codes: 0 " in text
    assert ("4 Vertex AI no longer" in " ".join(text.split())) == (command in ("run", "watch"))


def test_a_job_is_watched_where_its_name_says():
    arguments = parse_arguments(["watch", "projects/other/locations/asia-east1/pipelineJobs/flights-1"], PLACE)
    vertex = settings.read(arguments, ROOT)
    assert (vertex.project, vertex.region) == ("other", "asia-east1")


def test_batch_prediction_needs_a_bucket_for_answers_without_a_place():
    with pytest.raises(UserError, match=r"^--bucket \(or VERTEX_BUCKET\) is missing"):
        settings.read(parse_arguments(["batch-predict", "bigquery://p.d.t"], PLACE), ROOT)
    settings.read(parse_arguments(["batch-predict", "bigquery://p.d.t", "--to", "bq://p.d"], PLACE), ROOT)


def test_a_rehearsal_needs_no_settings_and_stands_in_the_region_of_its_endpoint(tmp_path):
    file = tmp_path / "endpoint.py"
    file.write_text(
        "from pipeline.settings.endpoint import Endpoint\n"
        "ENDPOINT = Endpoint('projects/p/locations/asia-east1/endpoints/1')\n"
    )
    assert settings.read(parse_arguments(["rehearse"], {}), ROOT).project == "rehearsal"
    vertex = settings.read(parse_arguments(["rehearse", "--endpoint", str(file)], {}), ROOT)
    assert vertex.region == "asia-east1"
