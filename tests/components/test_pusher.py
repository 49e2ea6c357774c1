"""A version is there whole, or not at all."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tfx.proto import pusher_pb2
from tfx.types import standard_artifacts
from tfx.utils import proto_utils

from pipeline.components.pusher import AtomicPusherExecutor, await_free_version, check_pushed
from pipeline.errors import UserError
from pipeline.filesystem import digests, write
from pipeline.model.versions import STAGING, Versions

ROOT = Path(__file__).resolve().parents[2]


def push(folder: Path, blessed: int, checked: dict[str, str] | None = None) -> standard_artifacts.PushedModel:
    """Pushes folder/model to folder/versions with the real executor; ``checked`` is what ModelCheck has found there."""
    model = standard_artifacts.Model()
    model.uri = str(folder / "model")
    blessing = standard_artifacts.ModelBlessing()
    blessing.uri = str(folder / "blessing")
    blessing.set_int_custom_property("blessed", blessed)
    check = standard_artifacts.InfraBlessing()
    check.uri = str(folder / "check")
    check.set_int_custom_property("blessed", 1)
    files = digests(folder / "model/Format-Serving") if checked is None else checked
    write(f"{check.uri}/model_check.json", json.dumps({"files": files}))
    pushed = standard_artifacts.PushedModel()
    pushed.uri = str(folder / "pushed")
    destination = pusher_pb2.PushDestination()
    destination.filesystem.base_directory = str(folder / "versions")
    AtomicPusherExecutor().Do(
        {"model": [model], "model_blessing": [blessing], "infra_blessing": [check]},
        {"pushed_model": [pushed]},
        {
            "push_destination": proto_utils.proto_to_json(destination),
            "custom_config": json.dumps({"keep": 2, "fingerprints": {"run_fn": "0123456789abcdef"}}),
        },
    )
    return pushed


def versions_in(folder: Path) -> list[Path]:
    return [path for path in (folder / "versions").iterdir() if path.name.isdigit()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    serving = tmp_path / "model/Format-Serving"
    (serving / "variables").mkdir(parents=True)
    (serving / "saved_model.pb").write_text("graph")
    (serving / "variables/variables.index").write_text("weights")
    return tmp_path


def test_a_blessed_model_appears_as_a_version_with_every_file(folder):
    pushed = push(folder, blessed=1)
    (version,) = versions_in(folder)
    assert pushed.get_string_custom_property("pushed_version") == version.name
    assert pushed.get_string_custom_property("pushed_destination") == str(version)
    assert (version / "saved_model.pb").read_text() == "graph"
    assert (version / "variables/variables.index").read_text() == "weights"


@pytest.mark.parametrize("change", ["another", "gone", "added"])
def test_a_model_that_changed_since_it_was_checked_is_not_pushed(folder, change):
    checked = digests(folder / "model/Format-Serving")
    weights = folder / "model/Format-Serving/variables/variables.index"
    if change == "another":
        weights.write_text("weighty")  # as many bytes
    elif change == "gone":
        weights.unlink()
    else:
        (weights.parent / "more").write_text("")
    with pytest.raises(UserError, match="variables/.* of the copy to push is not what ModelCheck has checked in"):
        push(folder, 1, checked)
    assert versions_in(folder) == []
    assert not (folder / "versions" / STAGING).exists()


def test_of_many_files_that_changed_the_first_five_are_named(folder):
    checked = digests(folder / "model/Format-Serving")
    for number in range(7):
        (folder / f"model/Format-Serving/more{number}").write_text("")
    with pytest.raises(UserError, match="^more0, more1, more2, more3, more4, and 2 more of the copy to push is not"):
        push(folder, 1, checked)


def test_a_copy_in_a_bucket_that_is_not_what_was_checked_is_deleted_again(folder):
    # The same functions on a folder: a bucket's copy lies where it is served from.
    pushed = push(folder, blessed=1)
    (version,) = versions_in(folder)
    model, check = standard_artifacts.Model(), standard_artifacts.InfraBlessing()
    model.uri, check.uri = str(folder / "model"), str(folder / "check")
    inputs = {"model": [model], "infra_blessing": [check]}
    (version / "manifest.json").unlink()  # which a bucket's has not
    check_pushed(pushed, inputs)
    assert version.is_dir()
    (version / "variables/variables.index").write_text("weighty")
    with pytest.raises(UserError, match="variables/variables.index of the copy to push is not what ModelCheck"):
        check_pushed(pushed, inputs)
    assert not version.exists()


@pytest.mark.slow
def test_a_push_waits_for_a_second_whose_version_is_free(tmp_path):
    now = int(time.time())
    for second in (now, now + 1):
        (tmp_path / str(second)).mkdir()
    await_free_version(str(tmp_path))
    assert time.time() >= now + 2


def test_a_model_that_is_not_blessed_is_not_pushed(folder):
    pushed = push(folder, blessed=0)
    assert pushed.get_int_custom_property("pushed") == 0
    assert not (folder / "versions").exists()


def test_the_manifest_names_the_run_metrics_data_schema_code_and_packages(folder):
    (folder / "blessing").mkdir()
    measured = {"metrics": {"auc": 0.71}, "data_span": 3, "schema_sha256": "ab"}
    (folder / "blessing/measured.json").write_text(json.dumps(measured))
    version = Path(push(folder, blessed=1).get_string_custom_property("pushed_destination"))
    manifest = Versions(version.parent).manifest(int(version.name))
    assert {name: manifest[name] for name in measured} == measured
    assert manifest["version"] == int(version.name)
    assert manifest["code"] == {"run_fn": "0123456789abcdef"}
    assert manifest["files"] == digests(folder / "model/Format-Serving")
    assert manifest["packages"]["tensorflow"].startswith("2.")


def test_a_third_push_removes_the_first(folder):
    pushed = [push(folder, blessed=1).get_string_custom_property("pushed_version") for _ in range(3)]
    assert sorted(path.name for path in versions_in(folder)) == pushed[1:]


@pytest.mark.slow
def test_a_push_killed_midway_shows_no_version_and_the_next_one_cleans_up(folder):
    # Reading a pipe that nobody writes to holds the copy up for as long as it takes to kill it.
    held_up = folder / "model/Format-Serving/variables/variables.data"
    os.mkfifo(held_up)
    code = f"from pathlib import Path; from tests.components.test_pusher import push; push(Path({str(folder)!r}), 1)"
    pushing = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL)
    while not list((folder / "versions").glob(f"{STAGING}/*/variables")):
        assert pushing.poll() is None
        time.sleep(0.1)
    pushing.kill()
    pushing.wait()
    assert versions_in(folder) == []

    held_up.unlink()
    push(folder, blessed=1)
    assert len(versions_in(folder)) == 1
    assert not (folder / "versions" / STAGING).exists()
