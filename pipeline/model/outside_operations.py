"""Find operations of a SavedModel that access files, Python or other machines.

A SavedModel is a program, and a model server runs it with its own rights
(https://github.com/tensorflow/tensorflow/blob/master/SECURITY.md). A model computes answers from rows and its own
variables and vocabularies; reading or writing other files is a mistake, or an attack.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

from pipeline import filesystem
from pipeline.errors import UserError
from pipeline.settings.names import shortened

# What TensorFlow writes into every SavedModel to save and restore its variables. Loading one calls what restores.
RESTORING = {"RestoreV2"}
CHECKPOINTS = RESTORING | {"MergeV2Checkpoints", "SaveV2"}
# Only where TensorFlow is built with TensorRT: engines read from files and written to them
# (tensorflow/compiler/tf2tensorrt/ops/trt_engine_resource_ops.cc); an engine itself is code for the GPU.
TENSORRT_FILES = {"InitializeTRTResource", "SerializeTRTResource"}
TENSORRT_CODE = {"TRTEngineOp"}
# Without the prefix and the versions that ``_plain`` removes.
FILES = {
    *TENSORRT_FILES,
    "CSVDataset",
    "CacheDataset",
    "CalibrationStatisticsSaver",
    "CreateSummaryDbWriter",
    "CreateSummaryFileWriter",
    "DTensorRestore",
    "DatasetToTFRecord",
    "DumpTensor",
    "FileSystemSetConfiguration",
    "FixedLengthRecordDataset",
    "FixedLengthRecordReader",
    "GenerateVocabRemapping",
    "LMDBDataset",
    "LMDBReader",
    "ListSnapshotChunksDataset",
    "LoadAndRemapMatrix",
    "LoadDataset",
    "MatchingFiles",
    "MatchingFilesDataset",
    "MergeV2Checkpoints",
    "ReadFile",
    "RecordInput",
    "Restore",
    "RestoreSlice",
    "Save",
    "SaveDataset",
    "SaveSlices",
    "SnapshotChunkDataset",
    "SnapshotDataset",
    "SnapshotDatasetReader",
    "SnapshotNestedDatasetReader",
    "SqlDataset",
    "SummaryWriter",
    "TFRecordDataset",
    "TFRecordReader",
    "TextLineDataset",
    "TextLineReader",
    "WholeFileReader",
    "WriteFile",
}
PYTHON = {"EagerPyFunc", "PyFunc", "PyFuncStateless"}
MACHINES = {
    "DataServiceDataset",
    "DistributedSave",
    "RegisterDataset",
    "RemoteCall",
    "RpcCall",
    "RpcClient",
    "RpcServer",
}
# Harmless unless this attribute names a file or an address.
ONLY_WITH = {
    "DebugIdentity": "debug_urls",
    "DebugNanCount": "debug_urls",
    "DebugNumericSummary": "debug_urls",
    "FixedUnigramCandidateSampler": "vocab_file",
    "Skipgram": "filename",
}
# Of these two, a value without such a beginning is the name of a file
# (https://www.tensorflow.org/api_docs/python/tf/io/decode_proto).
DESCRIPTORS = {"DecodeProto": "descriptor_source", "EncodeProto": "descriptor_source"}
INNER_DESCRIPTORS = (b"local://", b"bytes://")
# TensorFlow's own loader in C++ takes it for the graph; our export never writes one.
CHUNKED = "saved_model.cpb"


def outside_operations(model: str) -> tuple[list[str], list[str]]:
    """Return forbidden operations of a SavedModel, each as a verb and its object, and notes; without loading it."""
    try:
        graphs = _read(model).meta_graphs
    except (OSError, ValueError, text_format.ParseError, DecodeError):
        return [], []
    found: dict[str, set[str]] = {}
    prints = False
    for graph in graphs:
        for node in _called(graph):
            if reached := _reaches(node):
                found.setdefault(reached, set()).add(node.op)
            prints |= _plain(node.op) == "Print"
        for name in (asset.filename for asset in graph.asset_file_def):
            if name.startswith("/") or "://" in name or ".." in name.split("/"):
                found.setdefault("reads or writes files", set()).add(f"the vocabulary {name[:100]!r}")
    problems = [f"{reached} ({shortened(sorted(names), 5)})" for reached, names in sorted(found.items())]
    if filesystem.exists(f"{model}/{CHUNKED}"):
        problems.append(f"has a second graph ({CHUNKED}), which is not looked into")
    notes = ["the model prints (tf.print), and what it prints of rows is in the server's log"] if prints else []
    return problems, notes


def check_inward(model: str) -> None:
    """Raise a UserError if a SavedModel does more than compute answers, before it is loaded."""
    if reached := outside_operations(model)[0]:
        raise UserError(
            f"the model in {model} is not loaded: it {' and '.join(reached)}; expected one that computes from its "
            "rows, variables and vocabularies only, as ModelCheck lets pass. Take the call out and export it again"
        )


def _read(model: str) -> Any:
    saved = saved_model_pb2.SavedModel()
    if filesystem.exists(f"{model}/saved_model.pb"):
        saved.ParseFromString(filesystem.read_bytes(f"{model}/saved_model.pb"))
        return saved
    return text_format.Parse(filesystem.read_text(f"{model}/saved_model.pbtxt"), saved)


def _plain(operation: str) -> str:
    """Return the name of an operation without its version, or that it is experimental."""
    return re.sub(r"^Experimental|V\d+$", "", operation)


def _reaches(node: Any) -> str:
    """Return what a node does outside of its model, as a verb and its object, or ""."""
    name = _plain(node.op)
    if name in FILES or _names_a_file(node, name):
        return "reads or writes files"
    if name in PYTHON:
        return "runs Python"
    if name in TENSORRT_CODE:
        return "runs code that TensorFlow has not compiled"
    return "speaks to other machines" if name in MACHINES else ""


def _names_a_file(node: Any, name: str) -> bool:
    """Return whether an attribute of a node names, or may name, a file or an address."""
    attributes = {**ONLY_WITH, **DESCRIPTORS, "Print": "output_stream"}
    if name not in attributes:
        return False
    value = node.attr[attributes[name]]
    if value.placeholder:
        return True  # the caller of the function decides
    if name in DESCRIPTORS:
        return bool(value.s) and not value.s.startswith(INNER_DESCRIPTORS)
    return bool(value.s.startswith(b"file://") if name == "Print" else value.s or value.list.s)


def _called(meta_graph: Any) -> Iterable[Any]:
    """Return the nodes of a graph and its functions, without the operations that handle its checkpoints.

    These are left out only if nothing but the saver leads to them; what else the saver leads to is included, because
    loading a model runs what restores it.
    """
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    functions = {function.signature.name: function for function in meta_graph.graph_def.library.function}
    restoring = _before(nodes, [_node_of(meta_graph.saver_def.restore_op_name)])
    saving = _before(nodes, [_node_of(meta_graph.saver_def.save_tensor_name)]) - restoring
    answers = [tensor.name for signature in meta_graph.signature_def.values() for tensor in signature.outputs.values()]
    # Among them what initializes the model when it is loaded.
    listed = [name for collection in meta_graph.collection_def.values() for name in collection.node_list.value]
    asked = _before(nodes, map(_node_of, [*answers, *listed]))
    of_saver = dict.fromkeys(restoring - asked, RESTORING) | dict.fromkeys(saving - asked, CHECKPOINTS)

    restoring_functions = _functions_of([nodes[name] for name in restoring], functions)
    saving_functions = _functions_of([nodes[name] for name in saving], functions)
    # Functions that nothing in the graph calls are methods and initializers, which loading it calls.
    others = functions.keys() - restoring_functions - saving_functions
    others |= set(meta_graph.object_graph_def.concrete_functions) & functions.keys()
    callers = [node for name, node in nodes.items() if name not in of_saver]
    callers += [node for name in others for node in functions[name].node_def]
    others |= _functions_of(callers, functions)

    for name, node in nodes.items():
        if node.op not in of_saver.get(name, ()):
            yield node
    for name, function in functions.items():
        left_out: set[str] = set()
        if name not in others:
            left_out = RESTORING if name in restoring_functions else CHECKPOINTS
        yield from (node for node in function.node_def if node.op not in left_out)


def _before(nodes: Mapping[str, Any], names: Iterable[str]) -> set[str]:
    """Return the names of nodes and of everything that they are computed from."""
    found: set[str] = set()
    pending = [name for name in names if name in nodes]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += [given for given in map(_node_of, nodes[name].input) if given in nodes]
    return found


def _functions_of(nodes: Iterable[Any], functions: Mapping[str, Any]) -> set[str]:
    """Return the names of the functions that nodes call, and these again."""
    found: set[str] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        # By an attribute, as PartitionedCall has it; or as an operation of that name.
        attributes = node.attr.values()
        names = {one.func.name for one in attributes} | {one.name for many in attributes for one in many.list.func}
        called = (names | {node.op}) & functions.keys() - found
        found |= called
        pending += [inner for name in called for inner in functions[name].node_def]
    return found


def _node_of(tensor: str) -> str:
    """Return the name of the node of "^node" or "node:0"."""
    return tensor.lstrip("^").partition(":")[0]
