"""Columns that go to a signature as one tensor of each dtype: it answers as if each were a tensor."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipeline.model.signatures import packed

SPECS = {
    "a": tf.TensorSpec([None], tf.float32, name="a"),
    "b": tf.TensorSpec([None], tf.string, name="b"),
    "c": tf.TensorSpec([None], tf.float32, name="c"),
    "d": tf.TensorSpec([None, None], tf.int64, name="d"),
    "e": tf.TensorSpec([None], tf.int64, name="e"),
    "f": tf.TensorSpec([3], tf.float32, name="f"),
}


@pytest.fixture(scope="module")
def signature(tmp_path_factory: pytest.TempPathFactory):
    """Return a signature that answers its inputs as text and rejects negative numbers."""
    module = tf.Module()

    @tf.function(input_signature=[SPECS])
    def told(given):
        with tf.control_dependencies([tf.debugging.assert_greater_equal(given["e"], tf.constant(0, tf.int64))]):
            words = [given["b"], *(tf.strings.as_string(given[name]) for name in "ace")]
        lists = tf.strings.reduce_join(tf.strings.as_string(given["d"]), axis=1, separator=" ")
        return {"told": tf.strings.join([*words, lists], ","), "sum": tf.reduce_sum(given["f"])}

    folder: Path = tmp_path_factory.mktemp("model") / "1"
    tf.saved_model.save(module, str(folder), signatures={"serving_default": told})
    module.loaded = tf.saved_model.load(str(folder))
    return module.loaded.signatures["serving_default"], module.loaded


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_it_answers_as_the_signature_does(signature, rows):
    function, _ = signature
    columns = {
        "a": np.linspace(0, 1, rows, dtype=np.float32),
        "b": np.array([b"", b"a\0b", "é".encode()], object)[:rows],
        "c": np.array([np.nan, -0.0, np.inf], np.float32)[:rows],
        "d": np.arange(2 * rows).reshape(rows, 2),
        "e": np.array([2**62, 0, 1])[:rows],
        "f": np.ones(3, np.float32),
    }
    direct = function(**{name: tf.constant(values, SPECS[name].dtype) for name, values in columns.items()})
    answers = packed(function)(columns)
    assert answers.keys() == direct.keys()
    for name, values in answers.items():
        np.testing.assert_array_equal(values, direct[name].numpy())


def test_what_it_refuses_is_refused(signature):
    function, _ = signature
    columns = {name: np.zeros(1, SPECS[name].dtype.as_numpy_dtype) for name in "ace"}
    columns |= {"b": np.array([b""], object), "d": np.zeros((1, 1), int), "f": np.zeros(3, np.float32)}
    with pytest.raises(tf.errors.InvalidArgumentError):
        packed(function)({**columns, "e": np.array([-1])})
