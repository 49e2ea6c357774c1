"""The folder of versions: whole ones only, the newest few, and a way back."""

import contextlib
import hashlib
import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.model.versions import (
    MANIFEST_KEY,
    Versions,
    changed_since_push,
    model_at,
    not_signed,
    was_withdrawn,
)


def push(versions: Versions, number: int, keep: int = 5) -> Path:
    with versions.staging() as staging:
        model = staging / str(number)
        (model / "variables").mkdir(parents=True)
        (model / "saved_model.pb").write_text("graph")
        (model / "variables/variables.index").write_text("weights")
        return versions.publish(model, number, {"run": f"of {number}"}, keep)


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    return Versions(tmp_path / "flights")


def test_only_the_newest_versions_stay(versions):
    for number in (10, 11, 12, 13):
        push(versions, number, keep=2)
    assert versions.numbers() == [12, 13]
    assert (versions.resolve("previous"), versions.resolve("latest"), versions.resolve("12")) == (12, 13, 12)
    assert sorted(path.name for path in versions.folder.iterdir()) == [".lock", "12", "13"]


@pytest.mark.slow
def test_who_looks_on_sees_a_version_whole_or_not_at_all(versions):
    def large(number: int) -> None:
        with versions.staging() as staging:
            model = staging / str(number)
            model.mkdir()
            for name in range(800):
                (model / f"{name}").touch()
            (model / "saved_model.pb").touch()
            versions.publish(model, number, {}, keep=1)

    seen: set[int] = set()

    def look_on() -> None:
        while not ended.is_set():
            for version in versions.folder.glob("[0-9]*"):
                with contextlib.suppress(FileNotFoundError):
                    folder = os.open(version, os.O_RDONLY)
                    files = len(os.listdir(folder))
                    if os.path.exists(version):  # else it was taken away meanwhile, whole
                        seen.add(files)
                    os.close(folder)

    ended = threading.Event()
    looking = threading.Thread(target=look_on)
    looking.start()
    for number in (10, 11):
        large(number)
    while not seen and looking.is_alive():
        time.sleep(0.01)
    ended.set()
    looking.join()
    assert seen == {802}


def test_the_manifest_says_what_a_version_is(versions):
    version = push(versions, 10)
    manifest = json.loads((version / "manifest.json").read_text())
    files = manifest.pop("files")
    assert manifest == {"version": 10, "run": "of 10", "signature": None}
    assert files == {
        "saved_model.pb": hashlib.sha256(b"graph").hexdigest(),
        "variables/variables.index": hashlib.sha256(b"weights").hexdigest(),
    }
    assert versions.manifest(10)["run"] == "of 10"


def test_files_that_changed_since_the_push_are_named(versions):
    version = push(versions, 10)
    (version / "assets.extra").mkdir()
    (version / "assets.extra/tf_serving_warmup_requests").write_text("added by hand, as TensorFlow Serving asks for")
    assert changed_since_push(version) == ""
    (version / "saved_model.pb").write_text("gnarl")
    (version / "variables/variables.index").unlink()
    assert changed_since_push(version) == "saved_model.pb is another, variables/variables.index is gone"
    (version / "manifest.json").write_text("{")
    assert changed_since_push(version).startswith("its manifest.json cannot be read: Expecting property name")
    (version / "manifest.json").unlink()
    assert changed_since_push(version) == ""


def test_file_names_in_a_manifest_make_one_short_line_whatever_they_are(versions):
    version = push(versions, 10)
    names = ["two\nlines", "x" * 5_000, *map(str, range(100))]
    (version / "manifest.json").write_text(json.dumps({"version": 10, "files": dict.fromkeys(names, "0")}))
    expected = f"'two\\nlines' is gone, {'x' * 100}... is gone, 0 is gone, 1 is gone, 2 is gone, and 97 more"
    assert changed_since_push(version) == expected


def test_two_pushes_of_the_same_second_are_two_versions(versions):
    assert [push(versions, 10).name, push(versions, 10).name] == ["10", "11"]


def test_a_second_push_at_the_same_time_is_refused_and_leaves_the_first_alone(versions):
    with versions.staging() as staging:
        (staging / "mine").mkdir()
        with pytest.raises(UserError, match="another process is pushing"):
            push(versions, 10)
        assert (staging / "mine").is_dir()
    assert versions.numbers() == []


def test_a_folder_without_a_model_is_no_version(versions):
    push(versions, 10)
    (versions.folder / "11/variables").mkdir(parents=True)
    assert versions.numbers() == [10]
    assert versions.resolve() == 10


def test_a_rollback_serves_the_previous_version_and_a_new_push_comes_after_both(versions):
    push(versions, 10)
    push(versions, 11)
    assert versions.roll_back() == (11, 10)
    assert versions.numbers() == [10]
    assert (versions.withdrawn.path(11) / "saved_model.pb").is_file()
    assert was_withdrawn(versions.path(11))
    assert push(versions, 11).name == "12"


def test_a_dry_run_of_a_rollback_changes_nothing(versions):
    push(versions, 10)
    push(versions, 11)
    assert versions.roll_back(dry_run=True) == (11, 10)
    assert versions.numbers() == [10, 11]


def test_only_the_newest_withdrawn_versions_stay(versions):
    for number in (10, 11, 12, 13):
        push(versions, number)
    for _ in range(3):
        versions.roll_back()
    assert versions.withdrawn.numbers() == [11, 12, 13]
    push(versions, 14, keep=2)
    assert versions.withdrawn.numbers() == [12, 13]


def test_a_withdrawn_version_can_be_served_again(versions):
    push(versions, 10)
    push(versions, 11)
    versions.roll_back()
    assert versions.restore() == 11
    assert versions.numbers() == [10, 11]
    with pytest.raises(UserError, match="nothing to restore"):
        versions.restore()


def test_without_a_previous_version_there_is_no_way_back(versions):
    with pytest.raises(UserError, match=r"nothing pushed yet; run python local_runner\.py"):
        versions.roll_back()
    assert not versions.folder.exists()
    push(versions, 10)
    with pytest.raises(UserError, match="no previous version .* there is 10 only"):
        versions.roll_back()
    assert versions.numbers() == [10]


def test_an_unknown_version_is_refused_with_those_there_are(versions):
    push(versions, 10)
    with pytest.raises(UserError, match="no version 7 .* there is 10; expected one of them, latest or previous"):
        versions.resolve("7")


KEY = "0123456789abcdef"


@pytest.fixture
def signed(versions, monkeypatch) -> Path:
    monkeypatch.setenv(MANIFEST_KEY, KEY)
    return push(versions, 10)


def test_what_was_signed_with_our_key_is_signed(signed):
    assert not_signed(signed) == ""
    assert not changed_since_push(signed)


@pytest.mark.parametrize("name", ["saved_model.pb", "variables/variables.index"])
def test_a_changed_file_cannot_be_signed_by_who_has_no_key(signed, name):
    (signed / name).write_text("another")
    assert changed_since_push(signed) == f"{name} is another"
    manifest = json.loads((signed / "manifest.json").read_text())
    manifest["files"][name] = hashlib.sha256(b"another").hexdigest()
    (signed / "manifest.json").write_text(json.dumps(manifest))
    assert changed_since_push(signed) == ""
    assert (
        not_signed(signed) == "its manifest.json was changed, or signed with another key than that in $" + MANIFEST_KEY
    )


def test_the_order_of_the_fields_is_not_signed(signed):
    file = signed / "manifest.json"
    file.write_text(json.dumps(dict(reversed(json.loads(file.read_text()).items()))))
    assert not_signed(signed) == ""


@pytest.mark.parametrize("field", ["run", "version", "files"])
def test_every_field_is_signed(signed, field):
    manifest = json.loads((signed / "manifest.json").read_text())
    del manifest[field]
    (signed / "manifest.json").write_text(json.dumps(manifest))
    assert "was changed" in not_signed(signed)


@pytest.mark.parametrize("signature", [None, "", 7, "é", [], "0" * 64])
def test_no_other_signature_will_do(signed, signature):
    manifest = json.loads((signed / "manifest.json").read_text())
    (signed / "manifest.json").write_text(json.dumps({**manifest, "signature": signature}))
    assert not_signed(signed)


def test_with_a_key_nothing_else_is_taken(versions, signed, monkeypatch):
    (signed / "assets.extra").mkdir()
    (signed / "assets.extra/added").write_text("new")
    assert not_signed(signed) == "assets.extra/added is not signed"
    (signed / "manifest.json").unlink()
    assert "no signature" in not_signed(signed)
    assert "no signature" in not_signed("gs://bucket/model")
    monkeypatch.setenv(MANIFEST_KEY, KEY[::-1])
    version = push(versions, 12)
    monkeypatch.setenv(MANIFEST_KEY, KEY)
    assert "another key" in not_signed(version)
    monkeypatch.delenv(MANIFEST_KEY)
    assert "no signature" not in not_signed(push(versions, 13))


def test_a_key_that_can_be_guessed_is_refused_and_nothing_is_pushed(versions, monkeypatch):
    monkeypatch.setenv(MANIFEST_KEY, "secret")
    with pytest.raises(UserError, match=r"has 6 bytes, expected 16 or more"):
        push(versions, 10)
    assert versions.numbers() == []


def test_links_are_no_versions(versions, tmp_path):
    version = push(versions, 10)
    version.rename(tmp_path / "elsewhere")
    version.symlink_to(tmp_path / "elsewhere")
    assert versions.numbers() == []
    with pytest.raises(UserError, match=r"10 is a link, and none is followed"):
        versions.resolve()
    assert push(versions, 11, keep=1).exists()
    assert (tmp_path / "elsewhere/saved_model.pb").exists()


def test_a_model_is_a_folder_of_versions_a_saved_model_or_in_a_bucket(versions):
    version = push(versions, 10)
    assert model_at(str(versions.folder)) == versions
    assert model_at(str(version)) == str(version)
    assert model_at("gs://bucket/serving") == "gs://bucket/serving"


@pytest.mark.parametrize("name", [".withdrawn", ".being-pushed", ".lock"])
def test_no_push_or_rollback_follows_a_link_out_of_the_folder(versions, tmp_path, name):
    push(versions, 10)
    push(versions, 11)
    other = Versions(tmp_path / "another")
    for number in range(1, 9):
        push(other, number, keep=9)
    shutil.rmtree(versions.folder / name, ignore_errors=True)
    (versions.folder / name).unlink(missing_ok=True)
    (versions.folder / name).symlink_to(other.folder)
    for action in (lambda: push(versions, 12, keep=2), versions.roll_back):
        with pytest.raises(UserError, match=f"{name} is a link to .*; remove the link"):
            action()
    assert other.numbers() == list(range(1, 9))
    assert versions.numbers() == [10, 11]


def test_a_signed_version_is_not_taken_under_another_number(signed):
    copy = signed.with_name("999")
    shutil.copytree(signed, copy)
    assert "signed as version" in not_signed(copy)
    elsewhere = signed.with_name("copied by hand")
    shutil.copytree(signed, elsewhere)
    assert not_signed(elsewhere) == ""
