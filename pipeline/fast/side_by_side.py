"""Run two steps at the same time, each in a separate process, with TFX's launcher.

Replaces ``tfx.orchestration.portable.{python,beam}_executor_operator`` and the sequential loop of TFX's LocalDagRunner.

Gain: see docs/decisions/0035-the-fast-engine.md. Equality: tests/fast/test_side_by_side.py.
"""

import os
import queue
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.message import Message
from tfx.orchestration.portable import data_types
from tfx.orchestration.portable.beam_executor_operator import BeamExecutorOperator
from tfx.orchestration.portable.python_executor_operator import PythonExecutorOperator
from tfx.proto.orchestration import executable_spec_pb2, execution_invocation_pb2, execution_result_pb2, pipeline_pb2

from pipeline.fast.beam_options import runs_here
from pipeline.processes import Processes
from pipeline.runs.run_graph import Launching, OnEnd, OnStart, Schedule
from pipeline.runs.step import Step, StepFailed

# Most steps at the same time. More need more memory, and no graph here has more long independent steps.
MAX_STEPS = 2
# Steps that may begin before the data gate decides: they publish nothing, and the steps after them wait for the gate.
MAY_RUN_BEFORE_GATE = ("Baselines", "Transform")
OPERATORS = {
    executable_spec_pb2.PythonClassExecutableSpec: PythonExecutorOperator,
    executable_spec_pb2.BeamExecutableSpec: BeamExecutorOperator,
}


def side_by_side(processes: Processes) -> Schedule:
    """Return a schedule for ``run_graph`` that runs two steps at the same time in processes."""
    return lambda launching, on_start, on_end, last: _Run(launching, on_start, on_end, processes).until(last)


class _Run:
    """A run whose steps each have a process, and here a thread that waits for it.

    A step begins when those before it have ended; of several, the one with the longest chain of steps behind it (Hu
    1961, "Parallel Sequencing and Assembly Line Problems"). When one fails, those before it in the graph still run to
    their ends, for one of them may be why, and those behind it are ended.
    """

    def __init__(
        self,
        launching: Launching,
        on_start: OnStart,
        on_end: OnEnd,
        processes: Processes,
    ):
        self._launching = launching
        # A remote engine must not start paid work that a gate may end.
        self._before_gate = MAY_RUN_BEFORE_GATE if runs_here(launching.beam_args) else ()
        self._on_start, self._on_end, self._processes = on_start, on_end, processes
        # Held for everything except the work of a step, such as writing to the metadata store.
        self._lock = threading.Lock()
        launching.operators, launching.cpu_seconds = in_processes(processes, self._lock), processes.cpu_seconds
        self._places = {node.node_info.id: place for place, node in enumerate(self._launching.nodes)}
        self._before = _all_before(self._launching.nodes)
        self._behind = _chains_behind(self._launching.nodes)
        self._ended: queue.Queue[tuple[str, Step | Exception, float]] = queue.Queue()
        self._running: dict[str, threading.Thread] = {}

    def until(self, last: str | None) -> dict[str, Step]:
        """Run all steps, or those up to one; return them by name."""
        most = len(self._places) if last is None else self._places[last] + 1  # places from there on do not run
        failures: dict[int, StepFailed] = {}  # by place
        ended: set[str] = set()  # by this run
        waiting = dict(zip(self._places, self._launching.nodes, strict=True))
        try:
            while True:
                ready = [name for name, node in waiting.items() if self._places[name] < most and self._may(node)]
                for name in sorted(ready, key=lambda name: -self._behind[name])[: MAX_STEPS - len(self._running)]:
                    self._start(waiting.pop(name))
                if not self._running:
                    break
                name, outcome, seconds = self._ended.get()
                self._running.pop(name).join()
                if isinstance(outcome, Step):
                    self._launching.steps[name] = outcome
                    self._on_end(outcome)
                elif name not in ended:
                    failure = failures[self._places[name]] = StepFailed(name, seconds)
                    failure.__cause__ = outcome
                    most = min(failures)
                    ended |= {one for one in self._running if self._places[one] > most}
                    self._processes.kill_all(ended & self._running.keys())
        finally:
            self._processes.kill_all(self._running)
            for thread in self._running.values():
                thread.join()
        if failures:
            first, *others = [failures[place] for place in sorted(failures)]
            first.others = others
            raise first
        return self._launching.steps

    def _may(self, node: pipeline_pb2.PipelineNode) -> bool:
        """Return whether all has ended that a step must wait for."""
        name = node.node_info.id
        needed = _givers(node) if name in self._before_gate else self._before[name]
        return needed <= self._launching.steps.keys()

    def _start(self, node: pipeline_pb2.PipelineNode) -> None:
        name, started = node.node_info.id, time.monotonic()

        def run() -> None:
            outcome: Step | Exception
            try:
                with self._lock:
                    outcome = self._launching.run(node)
            except Exception as error:
                outcome = error
            self._ended.put((name, outcome, time.monotonic() - started))

        self._on_start(name)
        self._running[name] = threading.Thread(target=run, name=name)
        self._running[name].start()


def _givers(node: pipeline_pb2.PipelineNode) -> set[str]:
    """Return the steps that give a step its inputs."""
    return {channel.producer_node_query.id for given in node.inputs.inputs.values() for channel in given.channels}


def _all_before(nodes: Iterable[pipeline_pb2.PipelineNode]) -> dict[str, set[str]]:
    """Return all steps that come before each, also those before these."""
    before: dict[str, set[str]] = {}
    for node in nodes:
        mine = set(node.upstream_nodes)
        before[node.node_info.id] = mine.union(*(before[name] for name in mine))
    return before


def _chains_behind(nodes: Sequence[pipeline_pb2.PipelineNode]) -> dict[str, int]:
    """Return the length of the longest chain of steps behind each."""
    behind: dict[str, int] = {}
    for node in reversed(nodes):
        behind[node.node_info.id] = max((1 + behind[name] for name in node.downstream_nodes), default=0)
    return behind


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
                        name=name,
                    )
                finally:
                    lock.acquire()

        return Elsewhere

    return {kind: elsewhere(operator) for kind, operator in OPERATORS.items()}


def _execute(kind: type[Message], specification: bytes, given: bytes) -> execution_result_pb2.ExecutorOutput:
    # By default TensorFlow takes all memory of a GPU, and leaves none for the other step. Not tested on a GPU.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    spec = kind()
    spec.ParseFromString(specification)
    invocation = execution_invocation_pb2.ExecutionInvocation.FromString(given)
    return OPERATORS[kind](spec).run_executor(data_types.ExecutionInfo.from_proto(invocation))
