"""Run Transform or the Trainer on a sample of the rows of the last run, and show the output in a table.

python -m pipeline spin Transform              the features, their statistics and the first rows
python -m pipeline spin Trainer --watch        the loss by step, again after each edit

The executor and its settings are the same as in a run. The driver, the cache, the metadata store and the
installation of a wheel are left out. Nothing is kept, except for the log of the last spin of each step.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli import command_line
from pipeline.cli.scratch import scratch_folder
from pipeline.cli.terminal import redirect_output
from pipeline.errors import UserError
from pipeline.packaging.user_code import importable_from
from pipeline.processes import collect_rarely
from pipeline.settings import checks
from pipeline.settings.config import PipelineConfig
from pipeline.settings.repository import find_root, shown
from pipeline.settings.target import EngineName, Target

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from tfx.dsl.components.base.base_node import BaseNode
    from tfx.orchestration.pipeline import Pipeline
    from tfx.types import Artifact, BaseChannel

    from pipeline.runs.store import Run

Artifacts = dict[str, list["Artifact"]]
STEPS = ("Transform", "Trainer")
ROWS = 2_000
INTERVAL = 0.05  # seconds between two checks for an edit
# The most lines of a table, and characters of a cell.
MOST_LINES, CELL_WIDTH = 40, 24
# Inputs of the Trainer that are left out: with them, an edit of a default or of the first weights would have no effect.
LEFT_OUT = ("hyperparameters", "base_model")
# The most epochs of a training, and the fewest steps of an epoch.
MOST_EPOCHS, LEAST_STEPS = 3, 10
FIRST_ROWS = 3  # in the description of a feature
OF_STEPS = ["step", "epoch", "loss", "learning_rate", "gradient_norm"]


def main(argv: list[str]) -> int:
    """Run the command; return the exit code."""
    arguments = parse_arguments(argv)
    root = find_root()
    config = _checked_config(arguments, root)
    output = command_line.output_folder(arguments, root, config)
    log = output / "logs" / f"spin-{arguments.step}.log"
    with scratch_folder() as scratch, redirect_output(log) as screen:
        screen.busy("importing TensorFlow and TFX")
        spinner = Spinner(output, scratch, arguments.rows, arguments.engine)
        collect_rarely()
        if arguments.watch:
            screen.note(f"watching {shown(Path(config.module).parent)} and the config; press Ctrl-C to stop")
        while True:
            state = _state(arguments, root, config)
            code = command_line.FAILED
            screen.busy(arguments.step)
            started = time.monotonic()
            try:
                config = _checked_config(arguments, root)
                table, rows = spinner.spin(config, arguments.step)
                screen.line(arguments.step, "ran", time.monotonic() - started, f"{rows:,} rows")
                screen.note(_text(table))
                code = command_line.SUCCEEDED
            except UserError as error:
                if not arguments.watch:
                    raise
                screen.note(str(error))
            except Exception as error:
                screen.failure(arguments.step, time.monotonic() - started, error, config, kept=False)
            if not arguments.watch:
                return code
            while _state(arguments, root, config) == state:
                time.sleep(INTERVAL)


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = command_line.make_parser(
        "python -m pipeline spin",
        "Run one step on a sample of the rows of the last run, and show its output, without keeping it.",
        {0: "done"},
        "The Trainer trains the network only: a few epochs with the defaults in build_model.",
    )
    parser.add_argument("step", choices=STEPS, metavar="STEP", help=", ".join(STEPS))
    command_line.add_pipeline_arguments(parser)
    command_line.add_engine_argument(parser)
    parser.add_argument("--rows", type=command_line.positive, default=ROWS, help="rows of the sample (%(default)s)")
    parser.add_argument("--watch", action="store_true", help="run again after each edit, until Ctrl-C")
    return parser.parse_args(argv)


def _checked_config(arguments: argparse.Namespace, root: Path) -> PipelineConfig:
    config = command_line.chosen_config(arguments, root)
    command_line.check_files(config)
    return config


def _state(arguments: argparse.Namespace, root: Path, config: PipelineConfig) -> list[tuple[str, int]]:
    """Return the config file and the Python files in the folder of the module file, with their times of change."""
    file = Path(arguments.config) if arguments.config else command_line.config_file(root, arguments.pipeline)
    times = []
    for path in (file, *Path(config.module).parent.glob("*.py")):
        with contextlib.suppress(OSError):  # an editor is replacing the file
            times.append((str(path), path.stat().st_mtime_ns))
    return sorted(times)


def _text(table: pd.DataFrame) -> str:
    if table.empty:
        return "  the module file has its own training loop, which records no losses"
    number = "{:.4g}".format
    return str(table.to_string(max_rows=MOST_LINES, max_colwidth=CELL_WIDTH, float_format=number, na_rep=""))


class Spinner:
    """Runs steps of a pipeline again and again on the same samples."""

    def __init__(self, output: Path, scratch: Path, rows: int, engine: EngineName = "fast") -> None:
        from pipeline.graph import create_pipeline  # imports TensorFlow and TFX

        self._engine = engine
        self._output, self._scratch, self._rows, self._create = output, scratch, rows, create_pipeline
        self._graph: tuple[PipelineConfig, Pipeline] | None = None
        self._samples: dict[str, tuple[str, int]] = {}
        self._numbers = itertools.count()

    def spin(self, config: PipelineConfig, step: str) -> tuple[pd.DataFrame, int]:
        """Run a step; return a table of its output, and the number of rows in the sample.

        The table of Transform has a row for each feature, the table of the Trainer a row for each training step. The
        latter is empty if the module file has its own training loop.
        """
        from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor

        if self._graph is None or self._graph[0] != config:
            target = replace(Target.local(self._scratch / "target", config.name), engine=self._engine)
            self._graph = config, self._create(config, target)
        pipeline, module = self._graph[1], Path(config.module)
        nodes = {node.id: node for node in pipeline.components}
        node = nodes[step]
        inputs = self._inputs(node, nodes)
        rows = self._take_sample(inputs["examples"][0])
        shutil.rmtree(self._scratch / "outputs", ignore_errors=True)
        folder = self._scratch / "outputs" / str(next(self._numbers))  # a new path, because graphs are cached by path
        outputs = {name: [channel.type()] for name, channel in node.outputs.items()}
        for name, (artifact,) in outputs.items():
            artifact.uri = str(folder / name)
            Path(artifact.uri).mkdir(parents=True)
        properties = {name: value for name, value in node.exec_properties.items() if value is not None}
        properties["module_path"] = module.stem
        beam_args = list(pipeline.beam_pipeline_args or ())
        context = BaseBeamExecutor.Context(beam_args, tmp_dir=str(folder / "temporary"), unique_id="spin")
        executor = node.executor_spec.executor_class(context)
        with importable_from(str(module.parent)):
            if step == "Transform":
                return _transform(executor, inputs, outputs, properties), rows
            return _train(executor, inputs, outputs, properties, self._rows), rows

    def _inputs(self, node: BaseNode, nodes: Mapping[str, BaseNode]) -> Artifacts:
        """Return the inputs of a step from the newest run that has all of them."""
        from pipeline.runs import store

        channels = {name: channel for name, channel in node.inputs.items() if name not in LEFT_OUT}
        for run in reversed(store.runs(self._output)):
            found = {
                name: _artifact(nodes[channel.producer_component_id], channel, run)
                for name, channel in channels.items()
            }
            if all(found.values()):
                return {name: [artifact] for name, artifact in found.items() if artifact}
        producers = ", ".join(sorted({channel.producer_component_id for channel in channels.values()}))
        raise UserError(
            f"{node.id} needs the output of {producers}; no run below {self._output} has it. Run the pipeline first"
        )

    def _take_sample(self, examples: Artifact) -> int:
        """Replace the folder of examples by a sample of them; return its number of rows."""
        from pipeline.data.sample import Sample, write

        if examples.uri not in self._samples:
            folder = str(self._scratch / "examples" / str(len(self._samples)))
            taken = write(Sample(examples.uri, self._rows), folder)
            self._samples[examples.uri] = folder, sum(taken.values())
        examples.uri, rows = self._samples[examples.uri]
        return rows


def _artifact(producer: BaseNode, channel: BaseChannel, run: Run) -> Artifact | None:
    """Return the output of a step in a run, or the file that an importer reads now; None if it does not exist."""
    artifact = channel.type()
    if "artifact_uri" in producer.exec_properties:
        artifact.uri = str(producer.exec_properties["artifact_uri"])
        return artifact
    made = run.artifact(producer.id, channel.output_key)
    if made is None or not Path(made.uri).exists():
        return None
    artifact.set_mlmd_artifact(made)
    return artifact


def _transform(executor: Any, inputs: Artifacts, outputs: Artifacts, properties: dict[str, Any]) -> pd.DataFrame:
    """Make the features, if possible without a transform graph; return a row for each feature."""
    import pandas as pd
    import pyarrow as pa
    import tensorflow_transform as tft
    from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

    from pipeline.data.sample import BLOCK
    from pipeline.data.tfrecord_files import read_records

    properties.pop("kept", None)  # the folder of results that later runs reuse
    # Without the fast engine there is only Do.
    getattr(executor, "write_features", executor.Do)(inputs, outputs, properties)
    schema = tft.TFTransformOutput(outputs["transform_graph"][0].uri).transformed_metadata.schema
    decoder = ExamplesToRecordBatchDecoder(schema.SerializeToString())
    files = sorted(map(str, Path(outputs["transformed_examples"][0].uri).glob("Split-train/*")))
    batches = [decoder.DecodeBatch(records) for file in files for records in read_records(file, BLOCK)]
    table = pa.Table.from_batches(batches)
    rows = {name: _feature(table[name].combine_chunks()) for name in sorted(table.column_names)}
    return pd.DataFrame.from_dict(rows, orient="index")


def _feature(lists: pa.LargeListArray) -> dict[str, Any]:
    import pandas as pd

    values, lengths = lists.flatten().to_pandas(), lists.value_lengths().fill_null(0).to_pandas()
    is_text = values.dtype == object
    numbers = pd.Series(dtype=float) if is_text else values
    return {
        "type": "text" if is_text else str(values.dtype),
        "values": " to ".join(map(str, sorted({lengths.min(), lengths.max()}))),
        **{name: getattr(numbers, name)() for name in ("mean", "std", "min", "max")},
        "zero": (numbers == 0).mean(),
        "nan": numbers.isna().mean(),
        "distinct": values.nunique(dropna=False),
        **{f"row {place}": row for place, row in enumerate(lists.slice(0, FIRST_ROWS).to_pandas(), 1)},
    }


def _train(executor: Any, inputs: Artifacts, outputs: Artifacts, properties: dict[str, Any], rows: int) -> pd.DataFrame:
    """Train the network; return a row for each training step, with the metrics at the end of each epoch.

    Trees and the export are left out. The batches are so small that an epoch has ``LEAST_STEPS`` or more.
    """
    import pandas as pd
    from tfx.components.util import udf_utils

    from pipeline.components.trainer import reject_infinite_data
    from pipeline.training.history import EPOCHS_FILE, STEPS_FILE
    from pipeline.training.settings import Settings

    settings = checks.from_json(Settings, properties["custom_config"])
    epochs, batch_size = min(settings.epochs, MOST_EPOCHS), min(settings.batch_size, max(1, rows // LEAST_STEPS))
    settings = replace(settings, spin=True, profile=None, epochs=epochs, batch_size=batch_size)
    properties["custom_config"] = checks.to_json(settings)
    run_fn = udf_utils.get_fn(properties, "run_fn")
    with reject_infinite_data():
        run_fn(executor._GetFnArgs(inputs, outputs, properties))
    history = Path(outputs["model_run"][0].uri)
    if not (history / STEPS_FILE).is_file():
        return pd.DataFrame()
    steps, epochs = pd.read_csv(history / STEPS_FILE), pd.read_csv(history / EPOCHS_FILE, index_col="epoch")
    names = [name for name in epochs if name not in steps and (name.startswith("val_") or f"val_{name}" in epochs)]
    at_ends = steps.drop_duplicates("epoch", keep="last").join(epochs[names], on="epoch")[names]
    table = steps[OF_STEPS].join(at_ends)
    table[["step", "epoch"]] += 1  # files count from 0
    return table.set_index("step").rename_axis(index=None, columns="step")
