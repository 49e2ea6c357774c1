"""Run a TFX pipeline on this machine, and report how each step ended.

The same launcher and metadata as TFX's LocalDagRunner, which reports in log lines only and goes on after a step whose
inputs cannot be resolved. Here a step that fails ends the run.

Steps run one after the other in this process or, given ``Processes``, side by side in processes of their own.
"""

import datetime
import gc
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import psutil
from ml_metadata.proto import metadata_store_pb2
from tfx.dsl.compiler import constants
from tfx.dsl.compiler.compiler import Compiler
from tfx.orchestration import metadata
from tfx.orchestration import pipeline as tfx_pipeline
from tfx.orchestration.local import runner_utils
from tfx.orchestration.portable import launcher, runtime_parameter_utils
from tfx.orchestration.portable.mlmd import execution_lib
from tfx.proto.orchestration import pipeline_pb2

from pipeline.components.beam_pipeline import runs_here
from pipeline.components.written_files import list_files
from pipeline.data.decoded_blocks import keep_decoded
from pipeline.errors import UserError
from pipeline.processes import Processes, collect_rarely, cpu_seconds
from pipeline.runs import reuse
from pipeline.runs.executors import in_processes
from pipeline.runs.step import Step, StepFailed

# Reasons why a step that looks something up has failed.
NOT_FOUND = {
    "LastSearch": "tuning mode 'reuse' found no earlier search in this output folder; run once with --tuning search"
}
# Nodes that find a model of an earlier run: whether it is still of use is the Evaluator's to say.
FIND_BASELINE = ("LatestBlessedModel", "BaselineModel")
# Steps at the same time: more would need more memory, and in no graph here are more of them long.
AT_ONCE = 2
# Steps that may begin when their inputs are there, though a gate before them has not spoken yet: they publish nothing,
# and what goes on from them waits for the gate.
BESIDE_GATE = ("Baselines", "Transform")
# Bytes by which a step has grown this process, after which it looks at once: what a search has loaded lies in cycles.
GROWN = 128 << 20
RESOLVER = "tfx.dsl.components.common.resolver.Resolver"
IMPORTER = "tfx.dsl.components.common.importer.Importer"


def upstream_of(pipeline: tfx_pipeline.Pipeline) -> dict[str, list[str]]:
    """Return the steps of a graph in their order, each with the steps it depends on."""
    return {node.id: [other.id for other in node.upstream_nodes] for node in pipeline.components}


def run_graph(
    pipeline: tfx_pipeline.Pipeline,
    run_id: str,
    on_start: Callable[[str], None],
    on_end: Callable[[Step], None],
    last: str | None = None,
    processes: Processes | None = None,
) -> dict[str, Step]:
    """Run every step of the graph.

    Args:
        pipeline: With a metadata store on this machine.
        run_id: Name of the run in the metadata store.
        on_start: Called with the name of a step before it starts.
        on_end: Called with the step when it has ended well.
        last: Step after which the run ends; None: it runs to its end.
        processes: For steps, two of which may run at the same time; None: they run here, in the order of the graph.

    Returns:
        The steps by name.

    Raises:
        StepFailed: a step failed. Of several the first in the order of the graph; nothing goes on from it.
    """
    graph = Compiler().compile(pipeline)
    runtime_parameter_utils.substitute_runtime_parameter(graph, {constants.PIPELINE_RUN_ID_PARAMETER_NAME: run_id})
    collect_rarely()
    with metadata.Metadata(pipeline.metadata_connection_config) as handle:
        reuse.number_after_folders(Path(pipeline.pipeline_info.pipeline_root), handle.store)
    with keep_decoded(_kept_by(pipeline)), reuse.only_unchanged():
        if processes:
            # An engine elsewhere is not given, and paid for, what a gate may end.
            beside_gate = BESIDE_GATE if runs_here(pipeline.beam_pipeline_args) else ()
            launching = _Launching(graph, pipeline.metadata_connection_config)
            return _SideBySide(launching, on_start, on_end, processes, beside_gate).until(last)
        return _one_after_the_other(_Launching(graph, pipeline.metadata_connection_config), on_start, on_end, last)


def _one_after_the_other(
    launching: "_Launching", on_start: Callable[[str], None], on_end: Callable[[Step], None], last: str | None
) -> dict[str, Step]:
    process = psutil.Process()
    for node in launching.nodes:
        name = node.node_info.id
        on_start(name)
        resident, started = process.memory_info().rss, time.monotonic()
        try:
            step = launching.run(node)
        except Exception as error:
            raise StepFailed(name, time.monotonic() - started) from error
        if process.memory_info().rss - resident > GROWN:
            gc.collect()
        launching.steps[name] = step
        on_end(step)
        if name == last:
            break
    return launching.steps


class _SideBySide:
    """A run whose steps each have a process, and here a thread that waits for it.

    A step begins when those before it have ended; of several, the one with the longest chain of steps behind it (Hu
    1961, "Parallel Sequencing and Assembly Line Problems"). When one fails, those before it in the graph still run to
    their ends, for one of them may be why, and those behind it are ended.
    """

    def __init__(
        self,
        launching: "_Launching",
        on_start: Callable[[str], None],
        on_end: Callable[[Step], None],
        processes: Processes,
        beside_gate: Collection[str],
    ):
        self._launching, self._beside_gate = launching, beside_gate
        self._on_start, self._on_end, self._processes = on_start, on_end, processes
        # All that is not the work of a step, such as writing to the metadata store, one thread does at a time.
        self._lock = threading.Lock()
        launching.use(processes, self._lock)
        self._places = {node.node_info.id: place for place, node in enumerate(self._launching.nodes)}
        self._before = _all_before(self._launching.nodes)
        self._behind = _chains_behind(self._launching.nodes)
        self._ended: queue.Queue[tuple[str, Step | Exception, float]] = queue.Queue()
        self._running: dict[str, threading.Thread] = {}

    def until(self, last: str | None) -> dict[str, Step]:
        """Run all steps, or those up to one; return them by name."""
        most = len(self._places) if last is None else self._places[last] + 1  # places from there on do not run
        failure: StepFailed | None = None
        waiting = dict(zip(self._places, self._launching.nodes, strict=True))
        try:
            while True:
                ready = [name for name, node in waiting.items() if self._places[name] < most and self._may(node)]
                for name in sorted(ready, key=lambda name: -self._behind[name])[: AT_ONCE - len(self._running)]:
                    self._start(waiting.pop(name))
                if not self._running:
                    break
                name, outcome, seconds = self._ended.get()
                self._running.pop(name).join()
                if isinstance(outcome, Step):
                    self._launching.steps[name] = outcome
                    self._on_end(outcome)
                elif self._places[name] < most:
                    most, failure = self._places[name], StepFailed(name, seconds)
                    failure.__cause__ = outcome
                    self._processes.kill_all(one for one in self._running if self._places[one] > most)
        finally:
            self._processes.kill_all(self._running)
            for thread in self._running.values():
                thread.join()
        if failure:
            raise failure
        return self._launching.steps

    def _may(self, node: pipeline_pb2.PipelineNode) -> bool:
        """Return whether all has ended that a step must wait for."""
        name = node.node_info.id
        needed = _givers(node) if name in self._beside_gate else self._before[name]
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


def _kept_by(pipeline: tfx_pipeline.Pipeline) -> str:
    """Return the folder in which steps keep what the next run takes; "" where they do not."""
    return next((kept for node in pipeline.components if (kept := node.exec_properties.get("kept"))), "")


class _Launching:
    """Launches nodes of a graph.

    Attributes:
        nodes: In the order of the graph.
        steps: Those that have ended well, by name.
    """

    def __init__(self, graph: pipeline_pb2.Pipeline, connection: metadata_store_pb2.ConnectionConfig):
        self._graph, self._connection = graph, connection
        self._operators: Mapping[Any, Any] = {}
        self._processes: Processes | None = None
        self._deployment = runner_utils.extract_local_deployment_config(graph)
        self.nodes = [node.pipeline_node for node in graph.nodes]
        self.steps: dict[str, Step] = {}

    def use(self, processes: Processes, lock: threading.Lock) -> None:
        """Run executors in processes; see ``in_processes``."""
        self._processes, self._operators = processes, in_processes(processes, lock)

    def run(self, node: pipeline_pb2.PipelineNode) -> Step:
        """Run a node."""
        started, cpu, name, kind = time.monotonic(), cpu_seconds(), node.node_info.id, node.node_info.type.name
        node_launcher = launcher.Launcher(
            pipeline_node=node,
            mlmd_connection=metadata.Metadata(self._connection),
            pipeline_info=self._graph.pipeline_info,
            pipeline_runtime_spec=self._graph.runtime_spec,
            executor_spec=runner_utils.extract_executor_spec(self._deployment, name),
            custom_driver_spec=runner_utils.extract_custom_driver_spec(self._deployment, name),
            custom_executor_operators=self._operators,
        )
        found = [before for before in node.upstream_nodes if before in self.steps and before not in FIND_BASELINE]
        inputs = {before: [one for made in self.steps[before].outputs.values() for one in made] for before in found}
        with metadata.Metadata(self._connection) as store:
            reuse.refuse_changed(inputs, store.store)
        passed_over = reuse.start_step()
        try:
            execution_info = node_launcher.launch()
        except Exception:
            # A bad disk changes a file without its time, and then the error may tell of anything.
            with metadata.Metadata(self._connection) as store:
                reuse.refuse_changed(inputs, store.store, thorough=True)
            raise
        if execution_info is None or execution_info.execution_id is None:
            raise UserError("its inputs are missing")

        with metadata.Metadata(self._connection) as store:
            (execution,) = store.store.get_executions_by_id([execution_info.execution_id])
            outputs = execution_lib.get_output_artifacts(store, execution.id)
            if execution.last_known_state == metadata_store_pb2.Execution.COMPLETE and kind not in (RESOLVER, IMPORTER):
                list_files([artifact for several in outputs.values() for artifact in several], store.store)
        if not execution_lib.is_execution_successful(execution):
            raise UserError(NOT_FOUND.get(name, "its inputs could not be resolved"))

        made = [artifact.mlmd_artifact.create_time_since_epoch for several in outputs.values() for artifact in several]
        state: Literal["ran", "cached", "looked up"] = "ran"
        if kind in (RESOLVER, IMPORTER):
            state = "looked up"
        elif execution.last_known_state == metadata_store_pb2.Execution.CACHED:
            state = "cached"
        return Step(
            name=name,
            state=state,
            seconds=time.monotonic() - started,
            outputs={key: list(several) for key, several in outputs.items()},
            made=datetime.datetime.fromtimestamp(max(made) / 1000) if made else None,
            passed_over="; ".join(passed_over),
            cpu_seconds=self._processes.cpu_seconds.get(name) if self._processes else cpu_seconds() - cpu,
        )
