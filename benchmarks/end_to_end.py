"""The whole pipeline: stock TFX components against ours, on every flight as CSV, step by step.

    python benchmarks/end_to_end.py

Both have the same files, schema, features, model, trials, epochs, steps and gates, and the same launcher; stock has
TFX's components with their defaults and reads its training data by ``tf_dataset_factory``, as in
``benchmarks/stock/stock_flights.py``; ours stops bad trials early. Each runs in a process of its own, and its imports
do not count. Exits 1 when ours is not 3 times as fast in all, or its AUC is more than 0.005 below.
"""

import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
SPLITS = ("train", "eval", "test")
LEAST_FASTER, MOST_BELOW = 3.0, 0.005


def main() -> int:
    """Prints the table; returns the exit code."""
    if len(sys.argv) > 1:
        which, folder = sys.argv[1], Path(sys.argv[2])
        (folder / f"{which}.json").write_text(json.dumps(run(which, folder)))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_csv(folder / "data")
        for which in ("stock", "ours"):
            command = [sys.executable, __file__, which, str(folder)]
            process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if process.returncode:
                sys.exit(f"{' '.join(command)} failed:\n{process.stdout[-5000:]}{process.stderr[-5000:]}")
        return report(folder)


def report(folder: Path) -> int:
    """Prints what both runs have left in ``folder``."""
    stock, ours = (json.loads((folder / f"{which}.json").read_text()) for which in ("stock", "ours"))
    table = Table("step", title="Every flight, from CSV to the pushed model", title_justify="left")
    for column in ("TFX, s", "ours, s", "times as fast"):
        table.add_column(column, justify="right")
    for name in [*stock["seconds"], *(name for name in ours["seconds"] if name not in stock["seconds"])]:
        one, other = stock["seconds"].get(name, 0.0), ours["seconds"].get(name, 0.0)
        table.add_row(name, f"{one:.1f}", f"{other:.1f}", f"{one / other:.1f}" if min(one, other) >= 0.1 else "")
    totals = [sum(one["seconds"].values()) for one in (stock, ours)]
    faster = totals[0] / totals[1]
    table.add_row("in all, without imports", f"{totals[0]:.1f}", f"{totals[1]:.1f}", f"{faster:.2f}")
    table.add_row("AUC on the test split", f"{stock['auc']:.4f}", f"{ours['auc']:.4f}", "")
    console = Console()
    console.print(table)
    passed = faster >= LEAST_FASTER and ours["auc"] >= stock["auc"] - MOST_BELOW
    console.print(
        f"must reach: {LEAST_FASTER:g} times as fast in all ({faster:.2f}), AUC at most {MOST_BELOW:g} below "
        f"({ours['auc'] - stock['auc']:+.4f}): {'reached' if passed else 'falls short'}"
    )
    return 0 if passed else 1


def write_csv(folder: Path) -> None:
    """Writes the flights as CSV, one file for each month; floats with a point, so that TFX knows them for floats."""
    import pandas as pd

    source = ROOT / "data/flights"
    if not source.is_dir():
        subprocess.run([sys.executable, "data/prepare_flights.py", "--output", str(source)], cwd=ROOT, check=True)
    for file in sorted(source.glob("*/*.parquet")):
        to = folder / file.parent.name / f"{file.stem}.csv"
        to.parent.mkdir(parents=True, exist_ok=True)
        pd.read_parquet(file).to_csv(to, index=False)


def run(which: str, folder: Path) -> dict[str, Any]:
    """Runs a pipeline on the CSV files in ``folder``: seconds by step, and the AUC."""
    sys.path.insert(0, str(ROOT))
    from pipeline.evaluation.tfma_config import read_metrics
    from pipeline.graph import create_pipeline
    from pipeline.runs.run_graph import run_graph
    from pipeline.settings.config import load_config
    from pipeline.settings.target import Target

    config = load_config(ROOT / "configs/flights.py").with_paths_from(ROOT)
    patterns = {split: f"{split}/*.csv" for split in SPLITS}
    data = dataclasses.replace(config.data, path=str(folder / "data"), splits=patterns, prepare=None)
    config = dataclasses.replace(config, data=data)
    (folder / which).mkdir()
    target = Target.local(folder / which, config.name)
    graph = create_pipeline(config, target) if which == "ours" else stock_pipeline(config, target, folder)
    steps = run_graph(graph, which, lambda name: None, lambda step: None)
    seconds = {name: step.seconds for name, step in steps.items() if step.state != "looked up"}
    evaluation = steps["Evaluator"].outputs["evaluation"][0].uri
    return {"seconds": seconds, "auc": read_metrics(evaluation)["overall"]["auc"]}


def stock_pipeline(config: Any, target: Any, folder: Path) -> Any:
    """The same graph of TFX's own components, with their defaults."""
    from ml_metadata.proto import metadata_store_pb2
    from tfx import components
    from tfx.dsl.components.common.importer import Importer
    from tfx.dsl.components.common.resolver import Resolver
    from tfx.dsl.input_resolution.strategies.latest_blessed_model_strategy import LatestBlessedModelStrategy
    from tfx.orchestration import pipeline as tfx_pipeline
    from tfx.proto import example_gen_pb2, pusher_pb2
    from tfx.types import Channel, standard_artifacts

    from pipeline.evaluation.tfma_config import eval_config

    modules = folder / "modules"
    modules.mkdir()
    shutil.copy(ROOT / "benchmarks/stock/stock_flights.py", modules)
    shutil.copy(config.module, modules / "flights.py")
    sys.path.insert(0, str(modules))  # stock_flights.py imports flights.py
    module_file = str(modules / "stock_flights.py")
    rows = sum(sum(1 for _ in file.open()) - 1 for file in (folder / "data/train").iterdir())
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
        examples=examples, schema=schema, module_file=module_file, custom_config={"label": config.label.name}
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
