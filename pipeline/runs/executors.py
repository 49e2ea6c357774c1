"""Let TFX's launcher run executors in other processes."""

import os
import threading
from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message
from tfx.orchestration.portable import data_types
from tfx.orchestration.portable.beam_executor_operator import BeamExecutorOperator
from tfx.orchestration.portable.python_executor_operator import PythonExecutorOperator
from tfx.proto.orchestration import executable_spec_pb2, execution_invocation_pb2, execution_result_pb2

from pipeline.data.decoded_blocks import share_decoded, where_decoded
from pipeline.processes import Processes

OPERATORS = {
    executable_spec_pb2.PythonClassExecutableSpec: PythonExecutorOperator,
    executable_spec_pb2.BeamExecutableSpec: BeamExecutorOperator,
}


def in_processes(processes: Processes, lock: threading.Lock) -> Mapping[type[Message], Any]:
    """Return operators for ``Launcher``, by the kind of executor.

    Args:
        processes: To run them in.
        lock: Held by who launches; given free while an executor runs.
    """

    def elsewhere(operator: type) -> type:
        class Elsewhere(operator):
            def run_executor(self, execution_info: data_types.ExecutionInfo) -> execution_result_pb2.ExecutorOutput:
                given, name = execution_info.to_proto(), execution_info.pipeline_node.node_info.id
                lock.release()
                try:
                    return processes.run(
                        _execute,
                        type(self._executor_spec),
                        self._executor_spec.SerializeToString(),
                        given.SerializeToString(),
                        where_decoded(),
                        name=name,
                    )
                finally:
                    lock.acquire()

        return Elsewhere

    return {kind: elsewhere(operator) for kind, operator in OPERATORS.items()}


def _execute(
    kind: type[Message], specification: bytes, given: bytes, decoded: tuple[str, bool] | None
) -> execution_result_pb2.ExecutorOutput:
    # By default TensorFlow takes all memory of a GPU, and leaves none for the step beside. Not seen on a GPU.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    share_decoded(decoded)
    spec = kind()
    spec.ParseFromString(specification)
    invocation = execution_invocation_pb2.ExecutionInvocation.FromString(given)
    return OPERATORS[kind](spec).run_executor(data_types.ExecutionInfo.from_proto(invocation))
