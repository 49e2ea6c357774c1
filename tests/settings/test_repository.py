"""Choice of the clone that a command works on, and of the pipeline: from any folder, by its name."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.cli import command_line
from pipeline.errors import UserError
from pipeline.settings import repository

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {
    "predict": ("--data", "x.csv", "--to", "y.csv"),
    "serve": (),
    "monitor": ("--log", "log"),
    "schema": ("diff",),
    "runs": ("list",),
}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Another clone than the one that is installed, with two pipelines in which nothing has run."""
    (tmp_path / "clone/configs").mkdir(parents=True)
    (tmp_path / "clone/local_runner.py").touch()
    (tmp_path / "clone/configs/machines.py").write_text("MACHINES = {}\n")
    config = (ROOT / "configs/flights.py").read_text()
    for name in ("flights", "churn"):
        (tmp_path / f"clone/configs/{name}.py").write_text(config.replace('"flights"', f'"{name}"', 1))
    return tmp_path / "clone"


def run(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """Return what the command says when it fails."""
    assert main([command, *COMMANDS[command], *more]) == 1
    return capsys.readouterr().err


def test_the_repository_is_the_nearest_clone_above_the_working_folder(clone, monkeypatch, tmp_path):
    (clone / "data/deep").mkdir(parents=True)
    for folder in (clone, clone / "data/deep"):
        monkeypatch.chdir(folder)
        assert repository.find_root() == clone
    monkeypatch.chdir(tmp_path)
    assert repository.find_root() == ROOT


def test_paths_are_relative_below_the_working_folder_and_absolute_elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert repository.shown(tmp_path / "a/b") == "a/b"
    assert repository.shown("a/b") == "a/b"
    assert repository.shown(tmp_path.parent / "a") == str(tmp_path.parent / "a")
    assert repository.shown("../a") == str(tmp_path.parent / "a")
    assert repository.shown("gs://bucket/a") == "gs://bucket/a"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_the_name_of_a_pipeline_and_names_the_nearest(command, clone, monkeypatch, capsys):
    monkeypatch.chdir(clone)
    (clone / "x.csv").touch()
    message = run(command, monkeypatch, capsys, "--pipeline", "chrun")
    assert message.startswith(f"pipeline {command}: no pipeline 'chrun' in configs: did you mean churn?"), message
    message = run(command, monkeypatch, capsys, "--pipeline", "xyz")
    assert "there is churn, flights. To make one of your data: python -m pipeline new xyz" in message


@pytest.mark.parametrize("command", ["predict", "serve", "schema", "runs"])
def test_what_has_not_run_yet_is_said_with_the_command_for_where_the_user_stands(command, clone, monkeypatch, capsys):
    monkeypatch.chdir(clone)
    (clone / "x.csv").touch()
    message = run(command, monkeypatch, capsys, "--pipeline", "churn")
    assert "output/churn" in message
    assert str(clone) not in message
    assert "python local_runner.py --pipeline churn" in message
    (clone / "deep").mkdir()
    monkeypatch.chdir(clone / "deep")
    (clone / "deep/x.csv").touch()
    message = run(command, monkeypatch, capsys, "--config", "../configs/churn.py")
    assert f"{clone}/output/churn" in message
    assert f"python {clone}/local_runner.py --config ../configs/churn.py" in message


def test_a_reader_that_has_seen_enough_ends_a_command_quietly():
    command = [sys.executable, "-m", "pipeline"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_the_config_and_the_name_exclude_each_other(monkeypatch, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["runs", "list", "--pipeline", "churn", "--config", "configs/flights.py"])
    assert "not allowed with argument" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_no_message_obeys_what_a_name_says_to_the_terminal(command, clone, monkeypatch, capsys):
    monkeypatch.chdir(clone)
    (clone / "x.csv").touch()
    message = run(command, monkeypatch, capsys, "--config", "\x1b[31m.py")
    assert "\x1b" not in message
    assert "\\x1b[31m.py" in message


def test_the_flags_of_another_command_name_the_same_pipeline():
    parser = argparse.ArgumentParser()
    command_line.add_pipeline_arguments(parser)

    def flags(*given: str) -> str:
        return command_line.pipeline_flags(parser.parse_args(given))

    assert flags() == ""
    assert flags("--pipeline", "churn") == " --pipeline churn"
    assert flags("--config", "my configs/a.py") == " --config 'my configs/a.py'"
    assert flags("--pipeline", "churn", "--output", "runs of mine") == " --pipeline churn --output 'runs of mine'"


def test_a_config_without_pipelines_beside_it_is_no_reason_to_fail_otherwise(tmp_path):
    with pytest.raises(UserError, match="there is none. To make one of your data: python -m pipeline new NAME"):
        command_line.config_file(tmp_path, "../x")


def test_the_server_needs_no_repository_where_vertex_ai_names_the_model(tmp_path):
    """As in the image: the package is installed, and there is no clone."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "pipeline").symlink_to(ROOT / "pipeline")
    code = (
        "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' in p or not p.startswith("
        f"{str(ROOT)!r})]; sys.path.insert(0, {str(packages)!r}); "
        "from pipeline.__main__ import main; sys.exit(main(['serve', *sys.argv[1:]]))"
    )
    message = subprocess.run(
        [sys.executable, "-c", code, "--list"],
        cwd=tmp_path,
        env={"AIP_HTTP_PORT": "8080", "AIP_STORAGE_URI": str(tmp_path / "model"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert message.returncode == 1
    assert "no version in model: nothing pushed yet" in message.stderr, message.stderr
