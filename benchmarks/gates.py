"""Measure the cost of the gates, and of the baselines, in the default run.

    python benchmarks/gates.py

Runs local_runner.py in a new output folder. The steps ExampleValidator, DataGate, ModelCheck and Verdict are there for
the gates only. Of the Evaluator, which one would have without them, what counts is how much longer it measures than
with the metrics alone that are shown, the smaller of two times each. (The predictions that the Trainer writes for
ModelCheck are one batch.) Exits 1 when the sum is more than 15 % of the run, or the step Baselines more than 5 %.
"""

import contextlib
import glob
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
STEP = re.compile(r"^  (\w+) +ran +([\d.]+) s", re.MULTILINE)
GATES = ("ExampleValidator", "DataGate", "ModelCheck", "Verdict")
ONLY_FOR_GATES = ("FPR", "TruePositives", "FalsePositives", "TrueNegatives", "FalseNegatives")
MOST, MOST_FOR_BASELINES = 0.15, 0.05


def main() -> int:
    """Print the table; return the exit code."""
    with tempfile.TemporaryDirectory() as output:
        command = [sys.executable, "local_runner.py", "--output", output]
        started = time.monotonic()
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        whole = time.monotonic() - started
        if process.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{process.stdout}{process.stderr}")
        steps = {name: float(seconds) for name, seconds in STEP.findall(process.stdout)}
        costs = {name: steps[name] for name in GATES}
        measured, shown = evaluators(Path(output, "artifacts"))
        costs["Evaluator, for the gates"] = max(0.0, measured - shown)

    table = Table("what", title="The gates in the default run", title_justify="left")
    table.add_column("seconds", justify="right")
    table.add_column("of the run", justify="right")
    for name, seconds in costs.items():
        table.add_row(name, f"{seconds:.1f}", f"{seconds / whole:.1%}")
    total = sum(costs.values())
    table.add_row("together", f"{total:.1f}", f"{total / whole:.1%}")
    baselines = steps["Baselines"]
    table.add_row("Baselines", f"{baselines:.1f}", f"{baselines / whole:.1%}")
    table.add_row("the whole run", f"{whole:.1f}", "")
    Console().print(table)
    passed = True
    for what, seconds, most in (("gates", total, MOST), ("baselines", baselines, MOST_FOR_BASELINES)):
        reached = seconds <= most * whole
        passed &= reached
        print(
            f"must reach: the {what} cost at most {most:.0%} of the run ({seconds / whole:.1%}): "
            f"{'reached' if reached else 'misses its target'}"
        )
    return 0 if passed else 1


def evaluators(artifacts: Path) -> tuple[float, float]:
    """Return the seconds of the Evaluator's measurement with and without the gates' part, each the smaller of two."""
    sys.path.insert(0, str(ROOT))
    with quiet():
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
        from tfx.types import standard_artifacts
        from tfx.utils import io_utils

        from pipeline.fast.evaluator import FastEvaluatorExecutor
        from pipeline.quality.tfma_config import eval_config
        from pipeline.settings.config import load_config
        from pipeline.settings.target import IN_PROCESS

        config = load_config(ROOT / "configs/flights.py")
        measured = eval_config(config.evaluation, config.label)
        shown = type(measured)()
        shown.CopyFrom(measured)
        metrics = [one for one in measured.metrics_specs[0].metrics if one.class_name not in ONLY_FOR_GATES]
        del shown.metrics_specs[0].metrics[:]
        shown.metrics_specs[0].metrics.extend(metrics)
        examples, model = standard_artifacts.Examples(), standard_artifacts.Model()
        (examples.uri,) = glob.glob(str(artifacts / "ExampleGen/examples/*"))
        examples.split_names = '["train", "eval", "test"]'
        (model.uri,) = glob.glob(str(artifacts / "Trainer/model/*"))
        inputs = {"examples": [examples], "model": [model]}
        schema = io_utils.SchemaReader().read(str(ROOT / config.schema))

        times: dict[str, list[float]] = {"measured": [], "shown": []}
        for turn in range(2):
            for name, settings in (("measured", measured), ("shown", shown)):
                started = time.monotonic()
                to = str(artifacts / f"{name}-{turn}")
                with beam.Pipeline(options=PipelineOptions(list(IN_PROCESS))) as pipeline:
                    FastEvaluatorExecutor().evaluate(pipeline, inputs, settings, schema, to)
                times[name].append(time.monotonic() - started)
    return min(times["measured"]), min(times["shown"])


@contextlib.contextmanager
def quiet():
    """Keep the output of TensorFlow and TFX off the terminal."""
    kept = os.dup(1), os.dup(2)
    with open(os.devnull, "w", encoding="utf-8") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
        try:
            yield
        finally:
            for number, copy in enumerate(kept, start=1):
                os.dup2(copy, number)
                os.close(copy)


if __name__ == "__main__":
    sys.exit(main())
