"""Models that do more than compute answers, written by TensorFlow itself."""

import re
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session

from pipeline.components.outside_operations import (
    FILES,
    MACHINES,
    ONLY_WITH,
    PYTHON,
    outside_operations,
)

ROWS = tf.TensorSpec([None], tf.float32, name="number")


def saved(folder, answer: Callable, **attributes: object) -> str:
    model = tf.Module()
    model.weight = tf.Variable(2.0)
    for name, value in attributes.items():
        setattr(model, name, value)

    @tf.function(input_signature=[ROWS])
    def signature(number):
        return {"probability": answer(number) * model.weight}

    tf.saved_model.save(model, str(folder), signatures={"serving_default": signature})
    return str(folder)


def with_side_effect(act: Callable) -> Callable:
    def answer(number):
        with tf.control_dependencies([act(number)]):
            return tf.identity(number)

    return answer


def in_a_loop(number):
    return tf.map_fn(lambda one: one + tf.cast(tf.strings.length(tf.io.read_file("/etc/passwd")), tf.float32), number)


def saves(number):
    return tf.raw_ops.SaveV2(prefix="/tmp/x", tensor_names=["a"], shape_and_slices=[""], tensors=[number])


def counts_records(number):
    count = tf.data.TFRecordDataset("/tmp/x").reduce(np.int64(0), lambda seen, _: seen + 1)
    return number + tf.cast(count, tf.float32)


def writes(number):
    return tf.io.write_file("/tmp/x", tf.strings.as_string(number[0]))


REFUSED = {
    "reads": (lambda number: number + tf.strings.to_number(tf.io.read_file("/etc/hostname")), "files (ReadFile)"),
    "reads in a loop": (in_a_loop, "files (ReadFile)"),
    "writes": (with_side_effect(writes), "WriteFile"),
    "lists": (lambda number: number + tf.cast(tf.size(tf.io.matching_files("/*")), tf.float32), "MatchingFiles"),
    "prints to a file": (with_side_effect(lambda number: tf.print(number, output_stream="file:///tmp/x")), "PrintV2"),
    "saves": (with_side_effect(saves), "SaveV2"),
    "reads records": (counts_records, "TFRecordDataset"),
    "runs Python": (lambda number: tf.py_function(lambda one: one, [number], tf.float32), "runs Python (EagerPyFunc)"),
}


@pytest.mark.parametrize(("answer", "words"), REFUSED.values(), ids=list(REFUSED))
def test_what_reaches_out_is_named(tmp_path, answer, words):
    (problem,), _ = outside_operations(saved(tmp_path, answer))
    assert problem.startswith("the exported model ")
    assert words in problem


def test_a_method_that_no_signature_calls_is_looked_at_too(tmp_path):
    reading = tf.function(lambda: tf.io.read_file("/etc/passwd"), input_signature=[])
    (problem,), _ = outside_operations(saved(tmp_path, tf.identity, method=reading))
    assert "ReadFile" in problem


def test_what_prints_is_a_note(tmp_path):
    problems, (note,) = outside_operations(saved(tmp_path, with_side_effect(lambda number: tf.print(number))))
    assert not problems
    assert "tf.print" in note


def test_variables_vocabularies_and_keras_are_no_finding(tmp_path):
    (tmp_path / "words.txt").write_text("a\nb\n")
    index = tf.lookup.TextFileIndex
    words = (tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER)
    initializer = tf.lookup.TextFileInitializer(str(tmp_path / "words.txt"), *words)
    table = tf.lookup.StaticHashTable(initializer, -1)

    def answer(number):
        return number + tf.cast(table.lookup(tf.strings.as_string(number)), tf.float32)

    assert outside_operations(saved(tmp_path / "model", answer, table=table)) == ([], [])
    inputs = tf.keras.Input([3])
    network = tf.keras.Model(inputs, tf.keras.layers.LSTM(4)(tf.keras.layers.Embedding(9, 2)(inputs)))
    network.export(str(tmp_path / "keras"), verbose=False)
    assert outside_operations(str(tmp_path / "keras")) == ([], [])


def test_what_saves_the_variables_is_named_when_an_answer_comes_from_it(tmp_path):
    model = saved(tmp_path, tf.identity)
    file = tmp_path / "saved_model.pb"
    from tensorflow.core.protobuf import saved_model_pb2

    graph = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    (meta_graph,) = graph.meta_graphs
    saver = meta_graph.saver_def.save_tensor_name
    assert outside_operations(model) == ([], [])
    meta_graph.signature_def["serving_default"].outputs["probability"].name = saver
    file.write_bytes(graph.SerializeToString())
    (problem,), _ = outside_operations(model)
    assert "SaveV2" in problem


@pytest.mark.parametrize("content", [b"", b"no graph", None])
def test_what_is_no_model_is_left_to_who_loads_it(tmp_path, content):
    if content is not None:
        (tmp_path / "saved_model.pb").write_bytes(content)
    assert outside_operations(str(tmp_path)) == ([], [])


# Names in the arguments of TensorFlow's operations that mean something else.
HARMLESS = {
    "ExperimentalSetStatsAggregatorDataset": "the prefix of a counter",
    "InTopK": "classes",
    "InTopKV2": "classes",
    "InitializeTableFromTextFile": "a vocabulary",
    "InitializeTableFromTextFileV2": "a vocabulary",
    "SetStatsAggregatorDataset": "the prefix of a counter",
    "TPUReplicateMetadata": "parts of the computation",
    "XlaCustomCall": "a function compiled into TensorFlow",
    "XlaCustomCallV2": "a function compiled into TensorFlow",
}


def test_every_operation_of_this_tensorflow_that_takes_a_file_or_an_address_is_known():
    operations = op_def_pb2.OpList.FromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    words = re.compile(r"file|path|(^|_)dir($|_)|address|url|uri|prefix|target|dump", re.IGNORECASE)
    taking = {
        operation.name
        for operation in operations.op
        if not operation.name.startswith("_")
        for argument in (*operation.input_arg, *operation.attr)
        if words.search(argument.name) and argument.type in ("string", "list(string)", tf.string.as_datatype_enum)
    }
    assert "ReadFile" not in taking - FILES
    assert len(taking) > 40
    left = taking - FILES - PYTHON - MACHINES - ONLY_WITH.keys() - HARMLESS.keys()
    assert not left
    # What is listed is spelt as TensorFlow spells it.
    assert not (FILES | PYTHON | MACHINES | ONLY_WITH.keys()) - {operation.name for operation in operations.op}
