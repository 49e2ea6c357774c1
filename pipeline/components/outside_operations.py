"""Operations of a SavedModel that reach out of it: to files, to Python, to other machines.

A SavedModel is a program, and a model server runs it with its own rights
(https://github.com/tensorflow/tensorflow/blob/master/SECURITY.md). A model computes answers from rows and its own
variables and vocabularies; what reads or writes other files is a mistake, or worse.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

from pipeline import filesystem
from pipeline.settings.names import shortened

# What TensorFlow writes into every SavedModel to save and restore its variables; servers do not call it.
CHECKPOINTS = {"MergeV2Checkpoints", "RestoreV2", "SaveV2"}
FILES = CHECKPOINTS | {
    "CSVDataset",
    "CSVDatasetV2",
    "CacheDataset",
    "CacheDatasetV2",
    "CalibrationStatisticsSaver",
    "CreateSummaryDbWriter",
    "CreateSummaryFileWriter",
    "DTensorRestoreV2",
    "DatasetToTFRecord",
    "DumpTensor",
    "ExperimentalCSVDataset",
    "ExperimentalDatasetToTFRecord",
    "ExperimentalLMDBDataset",
    "ExperimentalMatchingFilesDataset",
    "FileSystemSetConfiguration",
    "FixedLengthRecordDataset",
    "FixedLengthRecordDatasetV2",
    "FixedLengthRecordReader",
    "FixedLengthRecordReaderV2",
    "GenerateVocabRemapping",
    "LMDBDataset",
    "LMDBReader",
    "ListSnapshotChunksDataset",
    "LoadAndRemapMatrix",
    "LoadDataset",
    "MatchingFiles",
    "MatchingFilesDataset",
    "ReadFile",
    "RecordInput",
    "Restore",
    "RestoreSlice",
    "Save",
    "SaveDataset",
    "SaveDatasetV2",
    "SaveSlices",
    "SnapshotChunkDataset",
    "SnapshotDataset",
    "SnapshotDatasetReader",
    "SnapshotDatasetV2",
    "SnapshotNestedDatasetReader",
    "SqlDataset",
    "ExperimentalSqlDataset",
    "SummaryWriter",
    "TFRecordDataset",
    "TFRecordDatasetV2",
    "TFRecordReader",
    "TFRecordReaderV2",
    "TextLineDataset",
    "TextLineReader",
    "TextLineReaderV2",
    "WholeFileReader",
    "WholeFileReaderV2",
    "WriteFile",
}
PYTHON = {"EagerPyFunc", "PyFunc", "PyFuncStateless"}
MACHINES = {
    "DataServiceDataset",
    "DataServiceDatasetV2",
    "DataServiceDatasetV3",
    "DataServiceDatasetV4",
    "DistributedSave",
    "RegisterDataset",
    "RegisterDatasetV2",
    "RemoteCall",
    "RpcCall",
    "RpcClient",
    "RpcServer",
}
# Harmless unless this attribute names a file or an address.
ONLY_WITH = {
    "DebugIdentity": "debug_urls",
    "DebugIdentityV2": "debug_urls",
    "DebugIdentityV3": "debug_urls",
    "DebugNanCount": "debug_urls",
    "DebugNumericSummary": "debug_urls",
    "FixedUnigramCandidateSampler": "vocab_file",
    "Skipgram": "filename",
}
PRINTING = {"Print", "PrintV2"}


def outside_operations(model: str) -> tuple[list[str], list[str]]:
    """Return what a SavedModel does beyond computing answers, without loading it: problems, and notes.

    One that cannot be read gives none: it does not load either.
    """
    try:
        graphs = _read(model).meta_graphs
    except (OSError, ValueError, text_format.ParseError, DecodeError):
        return [], []
    problems: dict[str, set[str]] = {}
    prints = False
    for graph in graphs:
        for node in _called(graph):
            if what := _reaches(node):
                problems.setdefault(what, set()).add(node.op)
            prints |= node.op in PRINTING
    sentences = [
        f"the exported model {what} ({shortened(sorted(names), 5)}), and would do so in every server; a model computes "
        "from its rows, variables and vocabularies only: take the call out of the module file"
        for what, names in sorted(problems.items())
    ]
    notes = ["the model prints (tf.print), and what it prints of rows is in the server's log"] if prints else []
    return sentences, notes


def _read(model: str) -> Any:
    saved = saved_model_pb2.SavedModel()
    if filesystem.exists(f"{model}/saved_model.pb"):
        saved.ParseFromString(filesystem.read_bytes(f"{model}/saved_model.pb"))
        return saved
    return text_format.Parse(filesystem.read_text(f"{model}/saved_model.pbtxt"), saved)


def _reaches(node: Any) -> str:
    """Return what a node does outside of its model, as a verb and its object; or nothing."""
    if node.op in FILES or (node.op == "PrintV2" and node.attr["output_stream"].s.startswith(b"file://")):
        return "reads or writes files"
    if node.op in PYTHON:
        return "runs Python"
    if node.op in MACHINES:
        return "speaks to other machines"
    if node.op in ONLY_WITH:
        value = node.attr[ONLY_WITH[node.op]]
        return "reads or writes files" if value.s or value.list.s else ""
    return ""


def _called(meta_graph: Any) -> Iterable[Any]:
    """Return the nodes of a graph and of its functions, but those by which its checkpoints are saved and restored."""
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    functions = {function.signature.name: function for function in meta_graph.graph_def.library.function}
    saver = meta_graph.saver_def
    of_saver = _before(nodes, [_node_of(name) for name in (saver.save_tensor_name, saver.restore_op_name)])
    signatures = meta_graph.signature_def.values()
    answers = [_node_of(tensor.name) for signature in signatures for tensor in signature.outputs.values()]
    of_answers = _before(nodes, answers)
    checked = [node for name, node in nodes.items() if name in of_answers or name not in of_saver]
    saving = [node for name, node in nodes.items() if name in of_saver and name not in of_answers]
    # Functions that nothing in the graph calls are methods and initializers, which loading it calls.
    only_saving = _functions_of(saving, functions) - _functions_of(checked, functions)
    others = [node for name, function in functions.items() if name not in only_saving for node in function.node_def]
    saved_too = _functions_of(others, functions) & only_saving
    return [*checked, *others, *(node for name in saved_too for node in functions[name].node_def)]


def _before(nodes: Mapping[str, Any], names: Iterable[str]) -> set[str]:
    """Return the names of nodes and of all that they are computed from."""
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
        called = (_names_in(node.attr.values()) | {node.op}) & functions.keys() - found
        found |= called
        pending += [inner for name in called for inner in functions[name].node_def]
    return found


def _names_in(attributes: Iterable[Any]) -> set[str]:
    values = list(attributes)
    return {one.func.name for one in values} | {function.name for one in values for function in one.list.func}


def _node_of(tensor: str) -> str:
    """Return the name of the node of "^node" or "node:0"."""
    return tensor.lstrip("^").partition(":")[0]
