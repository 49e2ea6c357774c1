"""Run a TFX pipeline on this machine, one step after the other, and report how each ended.

The same launcher and metadata as TFX's LocalDagRunner, which reports in log lines only and goes on after a step whose
inputs cannot be resolved. Here a step that fails ends the run.
"""

import datetime
import gc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
from ml_metadata.proto import metadata_store_pb2
from tfx import types
from tfx.dsl.compiler import constants
from tfx.dsl.compiler.compiler import Compiler
from tfx.orchestration import metadata
from tfx.orchestration import pipeline as tfx_pipeline
from tfx.orchestration.local import runner_utils
from tfx.orchestration.portable import launcher, runtime_parameter_utils
from tfx.orchestration.portable.mlmd import execution_lib
from tfx.proto.orchestration import pipeline_pb2

from pipeline.components.written_files import list_files
from pipeline.data.decoded_blocks import keep_decoded
from pipeline.errors import UserError
from pipeline.runs import reuse

# Reasons why a step that looks something up has failed.
NOT_FOUND = {
    "LastSearch": "tuning mode 'reuse' found no earlier search in this output folder; run once with --tuning search"
}
# Nodes that find a model of an earlier run: whether it is still of use is the Evaluator's to say.
FIND_BASELINE = ("LatestBlessedModel", "BaselineModel")
# Objects after which the garbage collector looks for cycles among them.
GARBAGE = 50_000
# Bytes by which a step has grown this process, after which it looks at once: what a search has loaded lies in cycles.
GROWN = 128 << 20
RESOLVER = "tfx.dsl.components.common.resolver.Resolver"
IMPORTER = "tfx.dsl.components.common.importer.Importer"


@dataclass(frozen=True)
class Step:
    """Result of a step.

    Attributes:
        name: Node of the graph.
        state: "ran", "cached" (nothing it depends on has changed), "looked up" (it only finds artifacts) or "skipped"
            (its condition does not hold).
        seconds: From start to end.
        outputs: Its artifacts by output name.
        made: When the artifacts were made, for a cached step earlier than the run.
        passed_over: Why it has not reused what an earlier run has made.
    """

    name: str
    state: Literal["ran", "cached", "looked up", "skipped"]
    seconds: float
    outputs: dict[str, list[types.Artifact]]
    made: datetime.datetime | None
    passed_over: str = ""

    @property
    def reason(self) -> str:
        """Return why it did not run, or a remark on its result."""
        if self.state == "cached":
            return f"nothing it depends on has changed since {self.made:%Y-%m-%d %H:%M}" if self.made else "no change"
        if self.state == "looked up":
            found = sum(map(len, self.outputs.values()))
            return "" if found else "found nothing, so there is nothing to compare with"
        return self.passed_over


class StepFailed(Exception):
    """A step failed; the cause is ``__cause__``, when it raised one."""

    def __init__(self, step: str, seconds: float):
        super().__init__(f"step {step} failed")
        self.step = step
        self.seconds = seconds


def upstream_of(pipeline: tfx_pipeline.Pipeline) -> dict[str, list[str]]:
    """Return the steps of a graph in their order, each with the steps it depends on."""
    return {node.id: [other.id for other in node.upstream_nodes] for node in pipeline.components}


def run_graph(
    pipeline: tfx_pipeline.Pipeline,
    run_id: str,
    on_start: Callable[[str], None],
    on_end: Callable[[Step], None],
    last: str | None = None,
) -> dict[str, Step]:
    """Run every step of the graph in its order.

    Args:
        pipeline: With a metadata store on this machine.
        run_id: Name of the run in the metadata store.
        on_start: Called with the name of a step before it starts.
        on_end: Called with the step when it has ended well.
        last: Step after which the run ends; None: it runs to its end.

    Returns:
        The steps by name.

    Raises:
        StepFailed: a step failed; nothing after it has run.
    """
    graph = Compiler().compile(pipeline)
    runtime_parameter_utils.substitute_runtime_parameter(graph, {constants.PIPELINE_RUN_ID_PARAMETER_NAME: run_id})
    deployment = runner_utils.extract_local_deployment_config(graph)
    connection = pipeline.metadata_connection_config
    # TensorFlow and TFX, loaded by now, are never garbage, and every search through them takes over half a second.
    # The steps make millions of objects, few of them in cycles: searching after every 700 took 7 % of a run.
    gc.freeze()
    gc.set_threshold(GARBAGE)
    gc.enable()
    # TFX installs the user's wheels with pip; they need nothing else, and pip nobody to ask and nothing to look for.
    os.environ.setdefault("PIP_NO_INDEX", "1")
    os.environ.setdefault("PIP_NO_DEPS", "1")
    with metadata.Metadata(connection) as handle:
        reuse.number_after_folders(Path(pipeline.pipeline_info.pipeline_root), handle.store)
    steps: dict[str, Step] = {}
    process = psutil.Process()
    with keep_decoded(_kept_by(pipeline)):
        for node in graph.nodes:
            name = node.pipeline_node.node_info.id
            on_start(name)
            started = time.monotonic()
            found = (before for before in node.pipeline_node.upstream_nodes if before not in FIND_BASELINE)
            inputs = {before: [one for made in steps[before].outputs.values() for one in made] for before in found}
            resident = process.memory_info().rss
            try:
                step = _run_node(node.pipeline_node, graph, deployment, connection, started, inputs)
            except Exception as error:
                raise StepFailed(name, time.monotonic() - started) from error
            if process.memory_info().rss - resident > GROWN:
                gc.collect()
            steps[name] = step
            on_end(step)
            if name == last:
                break
    return steps


def _kept_by(pipeline: tfx_pipeline.Pipeline) -> str:
    """Return the folder in which steps keep what the next run takes; "" where they do not."""
    return next((kept for node in pipeline.components if (kept := node.exec_properties.get("kept"))), "")


def _run_node(
    node: pipeline_pb2.PipelineNode,
    graph: pipeline_pb2.Pipeline,
    deployment: pipeline_pb2.IntermediateDeploymentConfig,
    connection: metadata_store_pb2.ConnectionConfig,
    started: float,
    inputs: Mapping[str, Sequence[types.Artifact]],
) -> Step:
    name = node.node_info.id
    kind = node.node_info.type.name
    node_launcher = launcher.Launcher(
        pipeline_node=node,
        mlmd_connection=metadata.Metadata(connection),
        pipeline_info=graph.pipeline_info,
        pipeline_runtime_spec=graph.runtime_spec,
        executor_spec=runner_utils.extract_executor_spec(deployment, name),
        custom_driver_spec=runner_utils.extract_custom_driver_spec(deployment, name),
    )
    with metadata.Metadata(connection) as store:
        reuse.refuse_changed(inputs, store.store)
    with reuse.only_unchanged() as passed_over:
        try:
            execution_info = node_launcher.launch()
        except Exception:
            # A bad disk changes a file without its time, and then the error may tell of anything.
            with metadata.Metadata(connection) as store:
                reuse.refuse_changed(inputs, store.store, thorough=True)
            raise
    if execution_info is None or execution_info.execution_id is None:
        raise UserError("its inputs are missing")

    with metadata.Metadata(connection) as store:
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
    )
