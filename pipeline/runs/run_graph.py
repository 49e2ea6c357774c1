"""Run a TFX pipeline on this machine, and report how each step ended.

The same launcher and metadata as TFX's LocalDagRunner, which reports in log lines only and goes on after a step whose
inputs cannot be resolved. Here a step that fails ends the run.

Steps run sequentially in this process, unless a schedule such as ``pipeline.fast.side_by_side`` is given.
"""

import datetime
import gc
import time
from collections.abc import Callable, Mapping
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

from pipeline.components.written_files import list_files
from pipeline.errors import UserError
from pipeline.processes import collect_rarely, cpu_seconds
from pipeline.runs import reuse
from pipeline.runs.step import Step, StepFailed

# Reasons why a step that looks something up has failed.
NOT_FOUND = {
    "LastSearch": "tuning mode 'reuse' found no earlier search in this output folder; run once with --tuning search"
}
# Nodes that find a model of an earlier run: whether it is still of use is the Evaluator's to say.
FIND_BASELINE = ("LatestBlessedModel", "BaselineModel")
# Growth of this process in one step after which garbage is collected: what a search has loaded is kept alive by cycles.
GC_THRESHOLD_BYTES = 128 << 20
RESOLVER = "tfx.dsl.components.common.resolver.Resolver"
IMPORTER = "tfx.dsl.components.common.importer.Importer"
OnStart = Callable[[str], None]
OnEnd = Callable[[Step], None]
Schedule = Callable[["Launching", OnStart, OnEnd, str | None], dict[str, Step]]


def upstream_of(pipeline: tfx_pipeline.Pipeline) -> dict[str, list[str]]:
    """Return the steps of a graph in their order, each with the steps it depends on."""
    return {node.id: [other.id for other in node.upstream_nodes] for node in pipeline.components}


def one_after_the_other(launching: "Launching", on_start: OnStart, on_end: OnEnd, last: str | None) -> dict[str, Step]:
    """Run all steps, or those up to ``last``, in the order of the graph, in this process."""
    process = psutil.Process()
    for node in launching.nodes:
        name = node.node_info.id
        on_start(name)
        resident, started = process.memory_info().rss, time.monotonic()
        try:
            step = launching.run(node)
        except Exception as error:
            raise StepFailed(name, time.monotonic() - started) from error
        if process.memory_info().rss - resident > GC_THRESHOLD_BYTES:
            gc.collect()
        launching.steps[name] = step
        on_end(step)
        if name == last:
            break
    return launching.steps


def run_graph(
    pipeline: tfx_pipeline.Pipeline,
    run_id: str,
    on_start: OnStart,
    on_end: OnEnd,
    last: str | None = None,
    schedule: Schedule = one_after_the_other,
) -> dict[str, Step]:
    """Run every step of the graph; return the steps by name.

    Args:
        pipeline: With a metadata store on this machine.
        run_id: Name of the run in the metadata store.
        on_start: Called with the name of a step before it starts.
        on_end: Called with the step when it has succeeded.
        last: Step after which the run ends; None: it runs to its end.
        schedule: Decides when and where the steps run.

    Raises:
        StepFailed: a step failed. Of several the first in the order of the graph.
    """
    graph = Compiler().compile(pipeline)
    runtime_parameter_utils.substitute_runtime_parameter(graph, {constants.PIPELINE_RUN_ID_PARAMETER_NAME: run_id})
    collect_rarely()
    with metadata.Metadata(pipeline.metadata_connection_config) as handle:
        reuse.number_after_folders(Path(pipeline.pipeline_info.pipeline_root), handle.store)
    launching = Launching(graph, pipeline.metadata_connection_config, pipeline.beam_pipeline_args or [])
    with reuse.only_unchanged():
        return schedule(launching, on_start, on_end, last)


class Launching:
    """Launches nodes of a graph with TFX's launcher.

    Attributes:
        nodes: In the order of the graph.
        steps: Those that have succeeded, by name.
        beam_args: Beam options of the pipeline.
        operators: For TFX's launcher: other classes that run the executors, by the type of their specification.
        cpu_seconds: CPU time by step, of steps that run in other processes.
    """

    def __init__(
        self, graph: pipeline_pb2.Pipeline, connection: metadata_store_pb2.ConnectionConfig, beam_args: list[str]
    ):
        self._graph, self._connection = graph, connection
        self._deployment = runner_utils.extract_local_deployment_config(graph)
        self.nodes = [node.pipeline_node for node in graph.nodes]
        self.steps: dict[str, Step] = {}
        self.beam_args = beam_args
        self.operators: Mapping[Any, Any] = {}
        self.cpu_seconds: Mapping[str, float] = {}

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
            custom_executor_operators=self.operators,
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
            cpu_seconds=self.cpu_seconds.get(name) if self.operators else cpu_seconds() - cpu,
        )
