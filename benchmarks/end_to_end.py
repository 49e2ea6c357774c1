"""The whole pipeline: stock TFX components against ours, on every flight as CSV.

    python benchmarks/end_to_end.py [--rounds 3]

Both have the same files, schema, features, model, trials, epochs and steps, and the same launcher; stock has TFX's
components, whose Transform makes no statistics and transforms no split but those that are trained on, as ours, and
reads its training data by ``tf_dataset_factory``, as in ``benchmarks/stock/stock_flights.py``. What ours does and stock
does not is named below the table.

Each side runs in a separate process, in turns, with large pages of memory, and imports do not count. Ours runs twice:
one step after the other, which the rows of the steps compare, and as local_runner.py runs it, two steps at a time and
with the process of the model's check started ahead, which the last row compares by the clock; TFX's runner on one
machine has neither. Medians are shown, and the lowest and highest ratio of a round. Exits 1 when ours is not 5 times as
fast by the clock, or its AUC is more than 0.005 below.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from pipeline.cli.local import FOR_STEPS  # noqa: E402
from pipeline.cli.startup import with_allocation  # noqa: E402

SPLITS = ("train", "eval", "test")
LEAST_FASTER, MOST_BELOW = 5.0, 0.005
LEAST_SECONDS = 0.1  # of a step that has a ratio
STOCK, ALONE, OURS = SIDES = "stock", "alone", "ours"
SUM, CLOCK = "steps run sequentially", "by the clock, as each is run"


def main() -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="of both (%(default)s)")
    parser.add_argument("--run", nargs=3, metavar=("WHICH", "DATA", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        which, data, folder = arguments.run
        Path(folder, "found.json").write_text(json.dumps(run(which, Path(data), Path(folder))))
        return 0
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as name:
        data = Path(name, "data")
        write_csv(data)
        for number in range(arguments.rounds):
            for which in SIDES if number % 2 == 0 else reversed(SIDES):
                folder = Path(name, f"{which}-{number}")
                folder.mkdir()
                command = [sys.executable, __file__, "--run", which, str(data), str(folder)]
                process = subprocess.run(
                    command, cwd=ROOT, env=with_allocation(os.environ), capture_output=True, text=True, check=False
                )
                if process.returncode:
                    sys.exit(f"{' '.join(command)} failed:\n{process.stdout[-5000:]}{process.stderr[-5000:]}")
                found[which].append(json.loads((folder / "found.json").read_text()))
                shutil.rmtree(folder)
    return report(found[STOCK], found[ALONE], found[OURS])


def report(stock: list[dict[str, Any]], alone: list[dict[str, Any]], ours: list[dict[str, Any]]) -> int:
    """Print the results of the rounds; return the exit code."""
    table = Table("step", title=f"Every flight, from CSV to the pushed model, rounds: {len(ours)}")
    table.title_justify = "left"
    for column in ("TFX, s", "ours, s", "times as fast", "lowest", "highest"):
        table.add_column(column, justify="right")
    for one in (*stock, *alone):
        one["seconds"][SUM] = sum(one["seconds"].values())
    names = [*dict.fromkeys([*stock[0]["seconds"], *alone[0]["seconds"]])]
    names.append(names.pop(names.index(SUM)))
    seconds = {name: [[one["seconds"].get(name, 0.0) for one in side] for side in (stock, alone)] for name in names}
    seconds[CLOCK] = [[one["clock"] for one in side] for side in (stock, ours)]
    for name, sides in seconds.items():
        medians = [statistics.median(side) for side in sides]
        ratios = sorted(one / other for one, other in zip(*sides, strict=True) if min(one, other) >= LEAST_SECONDS)
        shown = (statistics.median(ratios), ratios[0], ratios[-1]) if ratios else ()
        table.add_row(name, *(f"{median:.1f}" for median in medians), *(f"{ratio:.2f}" for ratio in shown))
    faster = shown[0]
    aucs = [statistics.median(one["auc"] for one in side) for side in (stock, ours)]
    table.add_row("AUC on the test split", *(f"{auc:.4f}" for auc in aucs))
    console = Console()
    console.print(table)
    steps = ", ".join(name for name in alone[0]["seconds"] if name not in stock[0]["seconds"])
    console.print(
        f"not in stock: {steps}; trees next to the network, calibration and explanations in the Trainer; gates"
    )
    passed = faster >= LEAST_FASTER and aucs[1] >= aucs[0] - MOST_BELOW
    console.print(
        f"must reach: {LEAST_FASTER:g} times as fast by the clock, the median of the rounds ({faster:.2f}), AUC at "
        f"most {MOST_BELOW:g} below ({aucs[1] - aucs[0]:+.4f}): {'reached' if passed else 'misses its target'}"
    )
    return 0 if passed else 1


def write_csv(folder: Path) -> None:
    """Write the flights as CSV, one file per month; floats have a point, so that TFX infers floats."""
    import pandas as pd

    source = ROOT / "data/flights"
    if not source.is_dir():
        subprocess.run([sys.executable, "data/prepare_flights.py", "--output", str(source)], cwd=ROOT, check=True)
    for file in sorted(source.glob("*/*.parquet")):
        to = folder / file.parent.name / f"{file.stem}.csv"
        to.parent.mkdir(parents=True, exist_ok=True)
        pd.read_parquet(file).to_csv(to, index=False)


def run(which: str, files: Path, folder: Path) -> dict[str, Any]:
    """Run a pipeline on CSV files; return the seconds by step and by the clock, and the AUC."""
    from pipeline.components.tensorflow_process import started_ahead

    with started_ahead() if which == OURS else contextlib.nullcontext():
        from pipeline.fast.engine import MODULES
        from pipeline.fast.side_by_side import side_by_side
        from pipeline.graph import create_pipeline
        from pipeline.processes import processes
        from pipeline.quality.tfma_config import read_metrics
        from pipeline.runs.run_graph import one_after_the_other, run_graph
        from pipeline.settings.config import load_config
        from pipeline.settings.target import Target

        with processes(*FOR_STEPS, *MODULES) if which == OURS else contextlib.nullcontext() as of_steps:
            assert of_steps or which != OURS, "this machine runs no two steps at a time"
            config = load_config(ROOT / "configs/flights.py").with_paths_from(ROOT)
            patterns = {split: f"{split}/*.csv" for split in SPLITS}
            data = dataclasses.replace(config.data, path=str(files), splits=patterns, prepare=None)
            config = dataclasses.replace(config, data=data)
            target = Target.local(folder / "output", config.name)
            (folder / "output").mkdir()
            graph = stock_pipeline(config, target, folder) if which == STOCK else create_pipeline(config, target)
            started = time.monotonic()
            schedule = side_by_side(of_steps) if of_steps else one_after_the_other
            steps = run_graph(graph, which, lambda name: None, lambda step: None, schedule=schedule)
            clock = time.monotonic() - started
    seconds = {name: step.seconds for name, step in steps.items() if step.state != "looked up"}
    evaluation = steps["Evaluator"].outputs["evaluation"][0].uri
    return {"seconds": seconds, "clock": clock, "auc": read_metrics(evaluation)["overall"]["auc"]}


def stock_pipeline(config: Any, target: Any, folder: Path) -> Any:
    """Build the same graph from TFX's components, which do no more than ours."""
    from ml_metadata.proto import metadata_store_pb2
    from tfx import components
    from tfx.dsl.components.common.importer import Importer
    from tfx.dsl.components.common.resolver import Resolver
    from tfx.dsl.input_resolution.strategies.latest_blessed_model_strategy import LatestBlessedModelStrategy
    from tfx.orchestration import pipeline as tfx_pipeline
    from tfx.proto import example_gen_pb2, pusher_pb2, transform_pb2
    from tfx.types import Channel, standard_artifacts

    from pipeline.quality.tfma_config import eval_config

    modules = folder / "modules"
    modules.mkdir()
    shutil.copy(ROOT / "benchmarks/stock/stock_flights.py", modules)
    shutil.copy(config.module, modules / "flights.py")
    sys.path.insert(0, str(modules))  # stock_flights.py imports flights.py
    module_file = str(modules / "stock_flights.py")
    rows = sum(sum(1 for _ in file.open()) - 1 for file in Path(config.data.path, "train").iterdir())
    settings = {
        **dataclasses.asdict(config.training),
        "label": config.label.name,
        "classes": list(config.label.classes),
        "threshold": config.evaluation.threshold,
        "train_examples": rows,
    }

    example_gen = components.CsvExampleGen(
        input_base=config.data.path,
        input_config=example_gen_pb2.Input(
            splits=[example_gen_pb2.Input.Split(name=name, pattern=one) for name, one in config.data.splits.items()]
        ),
    ).with_id("ExampleGen")
    examples = example_gen.outputs["examples"]
    statistics_gen = components.StatisticsGen(examples=examples)
    schema_gen = components.SchemaGen(statistics=statistics_gen.outputs["statistics"], infer_feature_shape=True)
    reviewed = Importer(source_uri=str(Path(config.schema).parent), artifact_type=standard_artifacts.Schema).with_id(
        "ReviewedSchema"
    )
    schema = reviewed.outputs["result"]
    validator = components.ExampleValidator(statistics=statistics_gen.outputs["statistics"], schema=schema)
    transform = components.Transform(
        examples=examples,
        schema=schema,
        module_file=module_file,
        custom_config={"label": config.label.name},
        splits_config=transform_pb2.SplitsConfig(analyze=["train"], transform=["train", "eval"]),
        disable_statistics=True,
    )
    inputs = {
        "examples": transform.outputs["transformed_examples"],
        "transform_graph": transform.outputs["transform_graph"],
        "schema": schema,
    }
    tuning = {**settings, "epochs": config.tuning.epochs, "trials": config.tuning.trials}
    tuner = components.Tuner(module_file=module_file, custom_config=tuning, **inputs)
    trainer = components.Trainer(
        module_file=module_file,
        hyperparameters=tuner.outputs["best_hyperparameters"],
        custom_config=settings,
        **inputs,
    )
    baseline = Resolver(
        strategy_class=LatestBlessedModelStrategy,
        model=Channel(type=standard_artifacts.Model),
        model_blessing=Channel(type=standard_artifacts.ModelBlessing),
    ).with_id("LatestBlessedModel")
    evaluator = components.Evaluator(
        examples=examples,
        example_splits=["test"],
        model=trainer.outputs["model"],
        baseline_model=baseline.outputs["model"],
        eval_config=eval_config(config.evaluation, config.label),
        schema=schema,
    )
    pusher = components.Pusher(
        model=trainer.outputs["model"],
        model_blessing=evaluator.outputs["blessing"],
        push_destination=pusher_pb2.PushDestination(
            filesystem=pusher_pb2.PushDestination.Filesystem(base_directory=target.push_to)
        ),
    )
    return tfx_pipeline.Pipeline(
        pipeline_name=config.name,
        pipeline_root=target.pipeline_root,
        components=[
            *(example_gen, statistics_gen, schema_gen, reviewed, validator, transform),
            *(tuner, trainer, baseline, evaluator, pusher),
        ],
        enable_cache=True,
        metadata_connection_config=metadata_store_pb2.ConnectionConfig(
            sqlite=metadata_store_pb2.SqliteMetadataSourceConfig(filename_uri=target.metadata)
        ),
        beam_pipeline_args=list(target.beam_args),
    )


if __name__ == "__main__":
    sys.exit(main())
