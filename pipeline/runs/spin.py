"""Run one step on a sample of what the last run has made, and keep nothing: an edit is answered in seconds.

The step is that of the graph, its executor and its settings. What TFX does around it is left out: the driver, the
cache, the metadata store and the installation of a wheel.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import UserError
from pipeline.runs import store
from pipeline.runs.store import Run
from pipeline.settings.config import PipelineConfig
from pipeline.settings.target import Target

if TYPE_CHECKING:
    from tfx.dsl.components.base.base_node import BaseNode
    from tfx.orchestration.pipeline import Pipeline
    from tfx.types import Artifact, BaseChannel

Artifacts = dict[str, list["Artifact"]]
# The steps that can be spun.
STEPS = ("Transform", "Trainer", "Evaluator")
# Of the Trainer: epochs, and about the steps of one, of a sample.
MOST_EPOCHS, LEAST_STEPS = 3, 10


@dataclass
class Spinner:
    """Runs steps of a pipeline again and again.

    Attributes:
        output: Folder of the pipeline's runs; nothing in it is changed.
        scratch: Folder for what the steps make.
        rows: Of the sample; None: all.
        create: Creates the graph of a config for a target.
        used: Rows of the last step's sample; there may be fewer than were asked for. None: all.
        searched: Hyperparameters that the last step took from a search, by name; empty if it took none.
    """

    output: Path
    scratch: Path
    rows: int | None
    create: Callable[[PipelineConfig, Target], Pipeline]
    used: int | None = None
    searched: Mapping[str, Any] = field(default_factory=dict)
    _graph: tuple[PipelineConfig, Pipeline] | None = None
    _samples: dict[str, tuple[Path, int]] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def spin(self, config: PipelineConfig, step: str) -> Mapping[str, Path]:
        """Run a step of a config; return the folder of each of its outputs, which the next spin deletes.

        Raises:
            UserError: no run has made what it needs.
            Exception: whatever the step raises.
        """
        from pipeline.components.artifacts import read_hyperparameters  # TFX
        from pipeline.data.decoded_blocks import keep_decoded  # pyarrow

        pipeline = self._graph_of(config)
        nodes = {node.id: node for node in pipeline.components}
        node = nodes[step]
        inputs = self._inputs(node, nodes)
        found = inputs.get("hyperparameters")
        self.searched = read_hyperparameters(found[0].uri) if found else {}
        outputs: Artifacts = {}
        shutil.rmtree(self.scratch / "outputs", ignore_errors=True)  # of the spin before
        folder = self.scratch / "outputs" / str(next(self._numbers))  # never the same: graphs are cached by their path
        for name, channel in node.outputs.items():
            artifact = channel.type()
            artifact.uri = str(folder / name)
            Path(artifact.uri).mkdir(parents=True)
            outputs[name] = [artifact]
        properties = {name: value for name, value in node.exec_properties.items() if value is not None}
        properties.pop("kept", None)  # the results of whole spans
        if step == "Trainer":
            _shorten(properties, self.rows)
        module = Path(config.module)
        if "module_path" in properties:
            properties["module_path"] = module.stem
        with (
            _importable(module),
            tempfile.TemporaryDirectory(dir=self.scratch) as temporary,
            keep_decoded(str(self.scratch / "decoded")),  # for the next spin, too
        ):
            _run(node, list(pipeline.beam_pipeline_args or ()), inputs, outputs, properties, temporary)
        return {name: Path(artifact.uri) for name, (artifact,) in outputs.items()}

    def _graph_of(self, config: PipelineConfig) -> Pipeline:
        """Return the graph; of the same config the same one, for no step reads the digests of code in it."""
        if self._graph is None or self._graph[0] != config:
            self._graph = config, self.create(config, Target.local(self.scratch / "target", config.name))
        return self._graph[1]

    def _inputs(self, node: BaseNode, nodes: Mapping[str, BaseNode]) -> Artifacts:
        """Return the inputs of a step as the newest run that has all of them has made them."""
        if not (self.output / store.FILE).is_file():
            raise UserError(f"there is no run below {self.output} yet, of which {node.id} could take its inputs")
        with store.opened(self.output) as metadata:
            runs = store.runs_of(metadata)
        missing = ""
        for run in reversed(runs):
            found, lacking = self._of_run(node, nodes, run)
            if not lacking:
                return found
            missing = missing or lacking
        raise UserError(f"no run below {self.output} has made what {node.id} needs: {missing} has no output there")

    def _of_run(self, node: BaseNode, nodes: Mapping[str, BaseNode], run: Run) -> tuple[Artifacts, str]:
        """Return the inputs of a step by a run, and the step of which one is missing."""
        found: Artifacts = {}
        for name, channel in node.inputs.items():
            producer = nodes[channel.producer_component_id]
            artifact = _artifact_of(producer, channel, run)
            if artifact is not None:
                found[name] = [self._sampled(artifact)]
            elif not _optional(producer):
                return found, producer.id
        return found, ""

    def _sampled(self, artifact: Artifact) -> Artifact:
        """Return a sample of an artifact with examples, and any other as it is."""
        from pipeline.data import sample  # pyarrow

        if self.rows is None or artifact.type_name != "Examples":
            return artifact
        uri = artifact.uri
        if uri not in self._samples:
            to = self.scratch / "examples" / str(len(self._samples))
            taken = sample.write(sample.Sample(uri, self.rows), str(to))
            self._samples[uri] = to, sum(taken.values())
        folder, self.used = self._samples[uri]
        artifact.uri = str(folder)
        return artifact


def _artifact_of(producer: BaseNode, channel: BaseChannel, run: Run) -> Artifact | None:
    """Return what a step has made in a run, and what an importer names now; None where that is gone."""
    artifact = channel.type()
    if "artifact_uri" in producer.exec_properties:
        artifact.uri = str(producer.exec_properties["artifact_uri"])
        return artifact
    made = run.artifact(producer.id, channel.output_key)
    if made is None or not Path(made.uri).exists():
        return None
    artifact.set_mlmd_artifact(made)
    return artifact


def _optional(node: BaseNode) -> bool:
    """Return whether a step need not have made anything: it looks for an earlier model, or for better settings."""
    from tfx.dsl.components.common.resolver import Resolver

    return isinstance(node, Resolver) or node.id == "Tuner"


@contextlib.contextmanager
def _importable(module: Path) -> Iterator[None]:
    """Let the module file be imported as it is now, and the modules beside it, without a wheel."""
    folder = str(module.parent)
    beside = {path.stem for path in module.parent.glob("*.py")}
    for name in beside & set(sys.modules):
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == module.parent:
            del sys.modules[name]
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _shorten(properties: dict[str, Any], rows: int | None) -> None:
    """Let a training end with the network after a few epochs, with batches of which a sample has several."""
    settings = json.loads(properties["custom_config"])
    settings |= {"spin": True, "epochs": min(settings["epochs"], MOST_EPOCHS), "profile": "off"}
    if rows is not None:
        settings["batch_size"] = min(settings["batch_size"], max(1, rows // LEAST_STEPS))
    properties["custom_config"] = json.dumps(settings)


def _run(
    node: BaseNode,
    beam_args: list[str],
    inputs: Artifacts,
    outputs: Artifacts,
    properties: dict[str, Any],
    temporary: str,
) -> None:
    """Run the executor of a step; of the Trainer ``run_fn`` alone, and of Transform no transform graph is written."""
    from tfx.components.util import udf_utils
    from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor
    from tfx.dsl.components.base.base_executor import BaseExecutor

    from pipeline.components.infinite_data import reject_infinite_data

    executor_class = node.executor_spec.executor_class
    where = {"tmp_dir": temporary, "unique_id": "spin"}
    if issubclass(executor_class, BaseBeamExecutor):
        executor = executor_class(BaseBeamExecutor.Context(beam_pipeline_args=beam_args, **where))
    else:
        executor = executor_class(BaseExecutor.Context(**where))
    if node.id == "Transform":
        from pipeline.components.analysis_operations import OnlyInBeam

        with contextlib.suppress(OnlyInBeam):
            executor.write_features(inputs, outputs, properties)
            return
    if node.id != "Trainer":
        executor.Do(inputs, outputs, properties)
        return
    run_fn = udf_utils.get_fn(properties, "run_fn")
    with reject_infinite_data():
        run_fn(executor._GetFnArgs(inputs, outputs, properties))
