"""The command lines: one form of help, and an answer to a wrong command, from any folder."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.__main__ import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]


def call(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", [["local_runner.py"], ["vertex_runner.py", "check"], ["-m", "pipeline", "new"]])
def test_a_python_without_the_packages_says_how_to_get_them(command):
    found = call("-S", *command)  # without what is installed
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith(f"{sys.executable} lacks the packages")
    assert found.stderr.count("\n") == 1
    assert "make setup" in found.stderr
    assert "source .venv/bin/activate" in found.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has no limit on address space")
@pytest.mark.parametrize("command", [["local_runner.py"], ["vertex_runner.py", "rehearse"]])
def test_a_limit_on_memory_in_which_the_packages_have_no_place_is_named_before_they_are_imported(command):
    # Limited by a shell: with preexec_fn this process would fork beside the threads of gRPC, which writes of it.
    found = subprocess.run(
        ["bash", "-c", 'ulimit -v 2097152 && exec "$0" "$@"', sys.executable, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr == (
        f"{command[0]}: this shell limits a process to 2.0 GiB of memory (ulimit -v), of which TensorFlow and TFX take "
        "2.1 GiB by themselves; allow 4 GiB or more: ulimit -v 4194304\n"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_says_what_it_does_and_ends_with_its_exit_codes(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(r" [A-Z][a-z]+,? [^.]+\. (positional arguments|options): ", text), text
    assert re.search(r"Exit codes: 0 [^;]+; 1 failed.*; 2 wrong arguments; .*130 interrupted\.$", text), text


@pytest.mark.parametrize("command", ["predict", "serve", "monitor", "schema diff", "runs list"])
def test_the_flags_that_choose_a_pipeline_come_first(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([*command.split(), "--help"])
    flags = re.findall(r"^  (--\w+)", capsys.readouterr().out, re.MULTILINE)
    assert flags[:2] == ["--pipeline", "--config"]


def test_without_a_command_the_commands_are_listed(capsys):
    assert main([]) == 0
    text = capsys.readouterr().out
    assert [line.split()[0] for line in text.splitlines() if line.startswith("  ")] == list(COMMANDS)


def test_a_wrong_command_is_answered_with_the_nearest(capsys):
    assert main(["srve"]) == 2
    assert capsys.readouterr().err.startswith("pipeline: no command 'srve'; did you mean serve?\n\nusage: ")
    assert main(["\x1b[31m"]) == 2
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_command_and_the_runner_work_from_another_folder(tmp_path):
    assert call("-m", "pipeline", "serve", "--help", cwd=tmp_path).returncode == 0
    runner = call(str(ROOT / "local_runner.py"), "--pipeline", "flihts", cwd=tmp_path)
    assert runner.returncode == 1
    assert runner.stderr.startswith(f"local_runner.py: no pipeline 'flihts' in {ROOT}/configs: did you mean flights?")
    assert (
        "Exit codes: 0 pushed; 1 failed; 2 wrong arguments; 3 the model was not blessed; 130 interrupted."
        in " ".join(call(str(ROOT / "local_runner.py"), "--help", cwd=tmp_path).stdout.split())
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--beam-runner", "FlinkRuner"], "no Beam runner 'FlinkRuner': did you mean FlinkRunner? expected one of "),
        (["--beam-option", "parallelism=4"], "--beam-option parallelism=4 needs --beam-runner, whose option it is"),
        (
            ["--beam-runner", "FlinkRunner", "--beam-option", "flink_master=a:1", "--beam-option", "flink_master=b:1"],
            "--beam-option flink_master is there twice, 'a:1' and 'b:1'; leave one out",
        ),
    ],
)
def test_a_wrong_engine_of_beam_is_one_sentence_before_anything_runs(arguments, message, tmp_path):
    found = call("local_runner.py", "--output", str(tmp_path / "output"), *arguments)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith(f"local_runner.py: {message}")
    assert found.stderr.count("\n") == 1
    assert not (tmp_path / "output").exists()
