"""Models that do more than compute answers, written by TensorFlow itself."""

import re
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2
from tensorflow.python.client import pywrap_tf_session

from pipeline.errors import UserError
from pipeline.model.outside_operations import (
    DESCRIPTORS,
    FILES,
    MACHINES,
    ONLY_WITH,
    PYTHON,
    TENSORRT_CODE,
    TENSORRT_FILES,
    _plain,
    check_inward,
    outside_operations,
)
from pipeline.model.signatures import load

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


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "words"), REFUSED.values(), ids=list(REFUSED))
def test_what_reaches_out_is_named(tmp_path, answer, words):
    (problem,), _ = outside_operations(saved(tmp_path, answer))
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
    inputs = keras.Input([3])
    network = keras.Model(inputs, keras.layers.LSTM(4)(keras.layers.Embedding(9, 2)(inputs)))
    network.export(str(tmp_path / "keras"), verbose=False)
    assert outside_operations(str(tmp_path / "keras")) == ([], [])


def test_what_saves_the_variables_is_named_when_an_answer_comes_from_it(tmp_path):
    model = saved(tmp_path, tf.identity)
    file = tmp_path / "saved_model.pb"
    graph = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    (meta_graph,) = graph.meta_graphs
    saver = meta_graph.saver_def.save_tensor_name
    assert outside_operations(model) == ([], [])
    meta_graph.signature_def["serving_default"].outputs["probability"].name = saver
    file.write_bytes(graph.SerializeToString())
    (problem,), _ = outside_operations(model)
    assert "SaveV2" in problem


def changed(model: str, change: Callable[[meta_graph_pb2.MetaGraphDef], None]) -> str:
    """Change the graph of a SavedModel."""
    file = Path(model, "saved_model.pb")
    graph = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    change(graph.meta_graphs[0])
    file.write_bytes(graph.SerializeToString())
    return model


def saved_as_before_functions(folder: Path) -> str:
    """A SavedModel of TensorFlow 1: its variables are restored by operations in its graph, when it is loaded."""
    before = tf.compat.v1
    with tf.Graph().as_default(), before.Session() as session:
        number = before.placeholder(tf.float32, [None])
        weight = before.get_variable("weight", [], initializer=before.zeros_initializer())
        builder, saver = before.saved_model.Builder(str(folder)), before.train.Saver()
        tensors = [
            {name: before.saved_model.build_tensor_info(tensor)}
            for name, tensor in (("number", number), ("probability", number * weight))
        ]
        signature = before.saved_model.build_signature_def(*tensors, "tensorflow/serving/predict")
        session.run(weight.initializer)
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature}, saver=saver)
        builder.save()
    return str(folder)


def before_restoring(act: Callable[[], object]) -> Callable[[meta_graph_pb2.MetaGraphDef], None]:
    """Hide operations where the saver restores the variables."""
    with tf.Graph().as_default() as hidden:
        act()

    def change(graph: meta_graph_pb2.MetaGraphDef) -> None:
        graph.graph_def.node.extend(hidden.as_graph_def().node)
        (restoring,) = (node for node in graph.graph_def.node if node.name == graph.saver_def.restore_op_name)
        restoring.input.append(f"^{hidden.get_operations()[-1].name}")

    return change


HIDDEN = {
    "writes": (lambda path: tf.io.write_file(path, "x"), "files (WriteFile)"),
    "reads": (tf.io.read_file, "files (ReadFile)"),
    "saves": (
        lambda path: tf.raw_ops.SaveV2(prefix=path, tensor_names=["a"], shape_and_slices=[""], tensors=[1.0]),
        "files (SaveV2)",
    ),
    "runs Python": (lambda path: tf.numpy_function(lambda: 1.0, [], tf.float32), "runs Python (PyFunc)"),
}


@pytest.mark.parametrize(("act", "words"), HIDDEN.values(), ids=list(HIDDEN))
def test_what_hides_where_the_variables_are_restored_is_named_and_not_run(tmp_path, act, words):
    model = saved_as_before_functions(tmp_path / "model")
    assert outside_operations(model) == ([], [])
    changed(model, before_restoring(lambda: act(str(tmp_path / "made"))))
    ((problem,), _) = outside_operations(model)
    assert words in problem
    with pytest.raises(UserError, match="the model in .* is not loaded: it "):
        load(model)
    assert not list(tmp_path.glob("made*"))


def test_what_hides_in_a_function_that_restores_or_saves_is_named(tmp_path):
    model = saved(tmp_path / "model", tf.identity)
    assert outside_operations(model) == ([], [])

    def hide(graph: meta_graph_pb2.MetaGraphDef) -> None:
        for function in graph.graph_def.library.function:
            if "traced" in function.signature.name:
                function.node_def.add(name="hidden", op="ReadFile" if "save" in function.signature.name else "PyFunc")

    assert [problem.rpartition(" (")[2] for problem in outside_operations(changed(model, hide))[0]] == [
        "ReadFile)",
        "PyFunc)",
    ]


def lists_as_a_method(graph: meta_graph_pb2.MetaGraphDef) -> None:
    (name,) = (one.signature.name for one in graph.graph_def.library.function if "traced_save" in one.signature.name)
    graph.object_graph_def.concrete_functions[name].bound_inputs.append(0)


def initializes(graph: meta_graph_pb2.MetaGraphDef) -> None:
    saver = graph.saver_def.save_tensor_name.partition(":")[0]
    graph.collection_def["saved_model_main_op"].node_list.value.append(saver)


def restores(graph: meta_graph_pb2.MetaGraphDef) -> None:
    graph.saver_def.restore_op_name = graph.saver_def.save_tensor_name.partition(":")[0]


@pytest.mark.parametrize("change", [lists_as_a_method, initializes, restores])
def test_what_saves_the_variables_is_named_when_loading_calls_it(tmp_path, change):
    ((problem,), _) = outside_operations(changed(saved(tmp_path, tf.identity), change))
    assert "SaveV2" in problem


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "refused"),
    [("local://", False), ("bytes://\n", False), ("", False), ("/etc/passwd", True), (None, True)],
)
@pytest.mark.parametrize("operation", list(DESCRIPTORS))
def test_a_protocol_buffer_s_description_comes_from_the_model_or_from_tensorflow(tmp_path, operation, source, refused):
    def describe(graph: meta_graph_pb2.MetaGraphDef) -> None:
        node = graph.graph_def.node.add(name="described", op=operation)
        attribute = node.attr[DESCRIPTORS[operation]]
        if source is None:
            attribute.placeholder = "said by the caller"
        else:
            attribute.s = source.encode()

    problems, _ = outside_operations(changed(saved(tmp_path, tf.identity), describe))
    assert problems == ([f"reads or writes files ({operation})"] if refused else [])


@pytest.mark.parametrize("operation", sorted(TENSORRT_FILES | TENSORRT_CODE))
def test_operations_that_this_tensorflow_lacks_are_named(tmp_path, operation):
    def add(graph: meta_graph_pb2.MetaGraphDef) -> None:
        graph.graph_def.node.add(name="added", op=operation)

    ((problem,), _) = outside_operations(changed(saved(tmp_path, tf.identity), add))
    assert operation in problem


@pytest.mark.parametrize("name", ["/etc/passwd", "../../secret", "gs://bucket/words"])
def test_a_vocabulary_outside_of_the_model_is_named(tmp_path, name):
    def lead_out(graph: meta_graph_pb2.MetaGraphDef) -> None:
        graph.asset_file_def.add().filename = name

    ((problem,), _) = outside_operations(changed(saved(tmp_path, tf.identity), lead_out))
    assert problem == f"reads or writes files (the vocabulary {name!r})"


def test_a_second_graph_which_other_servers_read_is_named(tmp_path):
    model = saved(tmp_path, tf.identity)
    (tmp_path / "saved_model.cpb").write_bytes(b"")
    with pytest.raises(UserError, match=r"is not loaded: it has a second graph \(saved_model.cpb\)"):
        check_inward(model)


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
    "TensorArrayGrad": "the name of a gradient",
    "TensorArrayGradV2": "the name of a gradient",
    "TensorArrayGradV3": "the name of a gradient",
    "TensorArrayGradWithShape": "the name of a gradient",
    "TPUReplicateMetadata": "parts of the computation",
    "XlaCustomCall": "a function compiled into TensorFlow",
    "XlaCustomCallV2": "a function compiled into TensorFlow",
}


def test_every_operation_of_this_tensorflow_that_takes_a_file_or_an_address_is_known():
    operations = op_def_pb2.OpList.FromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    words = re.compile(
        r"file|path|(^|_)dir($|_)|address|url|uri|prefix|target|dump|descriptor|source|host|port|server|service|socket|"
        "library|protocol|shared_(?!names?$)|command|code",
        re.IGNORECASE,
    )
    taking = {
        operation.name
        for operation in operations.op
        if not operation.name.startswith("_")
        for argument in (*operation.input_arg, *operation.attr)
        if words.search(argument.name) and argument.type in ("string", "list(string)", tf.string.as_datatype_enum)
    }
    assert len(taking) > 40
    listed = FILES | PYTHON | MACHINES | ONLY_WITH.keys() | DESCRIPTORS.keys()
    assert not {name for name in taking - HARMLESS.keys() if _plain(name) not in listed}
    # What is listed is spelt as TensorFlow spells it.
    assert listed - {_plain(operation.name) for operation in operations.op} == TENSORRT_FILES
