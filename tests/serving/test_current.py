"""The version that is served when the newest one is bad: the one before, with the reason."""

import gc
import weakref
from pathlib import Path

import pytest
import tensorflow as tf

from pipeline import filesystem
from pipeline.errors import UserError
from pipeline.model.versions import Versions
from pipeline.serving.current import Current
from pipeline.serving.metrics import Metrics
from tests.serving.conftest import push


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    versions = Versions(tmp_path / "my flights")
    push(versions, 10, bias=0)
    return versions


def save_a_model_that_refuses_zero(folder: Path) -> Path:
    """Write a model that refuses the row of zeros with which it is warmed up."""
    model = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="number")])
    def positive(number):
        with tf.control_dependencies([tf.debugging.assert_positive(number)]):
            return {"probability": number + 0}

    tf.saved_model.save(model, str(folder), signatures=positive)
    return folder


def started(versions: Versions) -> tuple[int, list[str]]:
    """Which version is served, and the problems of the others."""
    current = Current(versions, "flights", Metrics(), 100)
    try:
        return current.start().model.number, current.problems
    finally:
        current.close()


def test_of_a_model_that_refuses_its_own_example_the_one_before_is_served(versions):
    save_a_model_that_refuses_zero(versions.path(11))
    number, (problem,) = started(versions)
    assert number == 10
    assert problem.startswith(f"the model in {versions.path(11)} is not served: ")
    assert len(problem.splitlines()) == 1


def test_of_a_disk_that_does_not_read_the_one_before_is_served(versions, monkeypatch):
    bad = push(versions, 11, bias=1)
    digest = filesystem.digest

    def failing(path: str | Path) -> str:
        if bad in Path(path).parents:
            raise OSError(5, "Input/output error", str(path))
        return digest(path)

    monkeypatch.setattr(filesystem, "digest", failing)  # a disk cannot be broken in a test
    number, (problem,) = started(versions)
    assert number == 10
    assert "Input/output error" in problem


@pytest.mark.parametrize("target", ["nowhere", "variables.index"])
def test_of_a_version_whose_file_is_a_link_to_nowhere_or_itself_the_one_before_is_served(versions, target):
    linked = push(versions, 11, bias=1) / "variables/variables.index"
    linked.unlink()
    linked.symlink_to(target)
    number, (problem,) = started(versions)
    assert number == 10
    assert "variables/variables.index is gone" in problem


@pytest.mark.parametrize("target", ["nowhere", "loop"])
def test_a_link_beside_the_files_of_a_model_does_not_keep_it_from_being_served(versions, target):
    (push(versions, 11, bias=1) / "loop").symlink_to(target)
    assert started(versions) == (11, [])


def test_where_no_version_or_the_only_model_cannot_be_served_the_reason_is_one_sentence(tmp_path):
    only = save_a_model_that_refuses_zero(tmp_path / "bad" / "1")
    for model in (Versions(tmp_path / "bad"), str(only)):
        with pytest.raises(UserError, match="is not served") as found:
            Current(model, "flights", Metrics(), 100).start()
        assert len(str(found.value).splitlines()) == 1


def test_a_bad_version_is_tried_again_when_one_of_its_files_changes(versions):
    current = Current(versions, "flights", Metrics(), 100)
    bad = save_a_model_that_refuses_zero(versions.path(11))
    assert current.start().model.number == 10
    current._update(versions)
    assert len(current.problems) == 1
    (bad / "added").touch()
    current._update(versions)
    assert len(current.problems) == 2
    current.close()


@pytest.mark.slow
def test_what_is_loaded_is_not_searched_for_garbage_and_a_version_that_was_replaced_is_gone(versions):
    """A search through all of TensorFlow takes a third of a second, in which nobody is answered."""
    current = Current(versions, "flights", Metrics(), 100)
    gc.unfreeze()
    everything = len(gc.get_objects())
    before = weakref.ref(current.start().model.loaded)
    assert len(gc.get_objects()) < everything / 10
    assert before()
    push(versions, 11, bias=1)
    current._update(versions)
    assert before() is None
    assert len(gc.get_objects()) < everything / 10
    current.close()
