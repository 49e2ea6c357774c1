"""Long-running operations: they pend, fail and conflict, as google.aip.dev/151 has it."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.longrunning import operations_pb2
from google.protobuf import any_pb2
from google.rpc import code_pb2

from tests.fakes.checks import InvalidArgument
from tests.fakes.script import Script

# What an operation may end with.
CODES = {
    KeyError: code_pb2.NOT_FOUND,
    FileExistsError: code_pb2.ALREADY_EXISTS,
    InvalidArgument: code_pb2.INVALID_ARGUMENT,
}


class Busy(Exception):
    """Another operation on the resource has not ended: ABORTED."""


@dataclass
class _Pending:
    resource: str
    act: Callable[[], Any]
    error: str | None
    looks: int


class FakeOperations:
    """The operations that were started, by name."""

    def __init__(self, script: Script, numbers: "itertools.count[int]"):
        self._script, self._numbers = script, numbers
        self._pending: dict[str, _Pending] = {}
        self._operations: dict[str, operations_pb2.Operation] = {}

    def start(self, method: str, resource: str, act: Callable[[], Any]) -> operations_pb2.Operation:
        """Starts an operation of a method; ``act`` does it when it ends, and returns the response.

        Raises:
            Busy: there is another one on the resource.
        """
        if any(pending.resource == resource for pending in self._pending.values()):
            raise Busy(f"{resource} is being changed by another operation")
        name = f"{'/'.join(resource.split('/')[:4])}/operations/{next(self._numbers)}"
        error = self._script.failing_operations.get(method)
        self._operations[name] = operations_pb2.Operation(name=name)
        self._pending[name] = _Pending(resource, act, error, self._script.operations_pend)
        return self._operations[name]

    def get(self, ask: operations_pb2.GetOperationRequest) -> operations_pb2.Operation:
        """The operation, which goes a step on when it is asked for."""
        operation = self._operations[ask.name]
        if not operation.done:
            self._step(ask.name)
        return operation

    def pass_time(self) -> None:
        """Every operation goes a step on, though nobody asks for it."""
        for name in list(self._pending):
            self._step(name)

    def _step(self, name: str) -> None:
        operation, pending = self._operations[name], self._pending[name]
        pending.looks -= 1
        if pending.looks > 0:
            return
        del self._pending[name]
        operation.done = True
        if pending.error:
            operation.error.code, operation.error.message = code_pb2.FAILED_PRECONDITION, pending.error
            return
        try:
            result = pending.act()
        except tuple(CODES) as error:
            operation.error.code, operation.error.message = CODES[type(error)], str(error.args[0])
            return
        response = any_pb2.Any()
        response.Pack(result)
        operation.response.CopyFrom(response)
