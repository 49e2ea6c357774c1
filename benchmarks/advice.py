"""Compare what ``advise`` predicts for this machine with what is then measured.

    python benchmarks/advice.py

A quarter of the flights is run and measured as ``vertex_runner.py advise`` does it. Predicted from that, and then
measured: the steps of a run on twice the rows, and real trainings with batch sizes that were not measured, on one core
and on all. Of each time the least of some repetitions counts, on both sides. Exits 1 when the median error is more than
15 % or the worst more than 35 %, of the longer of the two times.

It wants the machine for itself: other work on it makes every time longer, each by another share.
"""

import csv
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

MEDIAN, WORST = 0.15, 0.35
# Of the flights, one of so many rows.
EVERY = 4
RUNS = 2
# None of them is a size that the probe measures.
BATCH_SIZES = (384, 768, 1536, 3072)
EPOCHS = 4
# Shorter steps are of no interest to whoever wants to know what a run takes.
LEAST_SECONDS = 1.5


def main() -> int:
    """Prints the table; returns the exit code."""
    from rich.console import Console
    from rich.table import Table

    table = Table("setting", "predicted", "measured", "off by")
    errors = []
    with tempfile.TemporaryDirectory() as folder:
        for setting, predicted, measured in settings(Path(folder)):
            errors.append(abs(predicted - measured) / max(predicted, measured))
            table.add_row(setting, f"{predicted:.2f} s", f"{measured:.2f} s", f"{errors[-1]:.0%}")
    Console().print(table)
    median, worst = statistics.median(errors), max(errors)
    print(f"{len(errors)} settings: median error {median:.0%} (at most {MEDIAN:.0%}), worst {worst:.0%} ({WORST:.0%})")
    return 0 if median <= MEDIAN and worst <= WORST else 1


def settings(folder: Path) -> Iterator[tuple[str, float, float]]:
    """Yields name, predicted and measured seconds of each setting."""
    from pipeline.costs.advice import Advisor, Question
    from pipeline.costs.performance import Trainings
    from pipeline.costs.prices import read_prices
    from pipeline.costs.rates import Rates
    from pipeline.graph import create_pipeline
    from pipeline.runs import measure, store
    from pipeline.settings.config import load_config

    config = load_config(ROOT / "configs/flights.py").with_paths_from(ROOT)
    config = replace(config, tuning=replace(config.tuning, mode="off"))
    some, twice = (part_of_the_flights(folder / f"rows-{every}", every) for every in (EVERY, EVERY // 2))
    # In turns: what slows the machine down for minutes then lies on both sides.
    both = [[run(rows, folder / f"{rows.name}-{number}") for rows in (some, twice)] for number in range(RUNS)]
    outputs, larger = zip(*both, strict=True)
    found = [
        measure.measured(
            replace(config, data=replace(config.data, path=str(some), prepare=None)),
            output,
            create_pipeline,
            anew=True,
            flags="",
            tell=lambda text: print(text, flush=True),
        )
        for output in outputs
    ]
    assert all(each.training for each in found), found[0].why_not_measured
    measured = least(found)

    real = least_steps(larger)
    rows = max(each.rows for each in real.values())
    rates = Rates((), 0.0, (), (), "")  # of times alone
    question = Question(rows, config.training.epochs, config.training.batch_size, "us-central1", rates)
    predicted = Advisor(measured, read_prices(ROOT / "configs/prices.toml"), question).steps_here()
    for name, step in real.items():
        if step.seconds >= LEAST_SECONDS:
            yield f"{name}, twice the rows", predicted[name], step.seconds
    yield "all steps, twice the rows", sum(predicted.values()), sum(each.seconds for each in real.values())

    assert measured.training
    trainings = Trainings(measured.training)
    with store.opened(outputs[0]) as metadata:
        job = measure.job_of(store.runs_of(metadata)[-1])
    for cores in (1, trainings.cores_here):
        for batch_size in BATCH_SIZES:
            steps, seconds = epoch_of_a_training(job, batch_size, cores, folder)
            name = f"an epoch in batches of {batch_size:,}, {cores} {'core' if cores == 1 else 'cores'}"
            yield name, steps * trainings.step_here(batch_size, cores), seconds


def part_of_the_flights(folder: Path, every: int) -> Path:
    """Writes one of so many flights; returns the folder."""
    import pyarrow.parquet as pq

    flights = ROOT / "data/flights"
    if not flights.is_dir():
        subprocess.run([sys.executable, ROOT / "data/prepare_flights.py", "--output", flights], check=True)
    for file in sorted(flights.glob("*/*.parquet")):
        table = pq.read_table(file)
        part = folder / file.relative_to(flights)
        part.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.take(list(range(0, table.num_rows, every))), part)
    return folder


def run(data: Path, output: Path) -> Path:
    """Runs the pipeline without a search; returns its output folder."""
    command = [sys.executable, "local_runner.py", "--data", data, "--output", output, "--tuning", "off"]
    print(f"running {data.name}", flush=True)
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if process.returncode not in (0, 3):
        sys.exit(f"{' '.join(map(str, command))} failed:\n{process.stdout}{process.stderr}")
    return output


def least_steps(outputs: Iterable[Path]) -> dict[str, Any]:
    """Returns each step's shortest execution."""
    from pipeline.runs import store
    from pipeline.runs.timings import timings

    found = []
    for output in outputs:
        with store.opened(output) as metadata:
            found.append(timings(store.runs_of(metadata)[-1]))
    return {name: min((each[name] for each in found), key=lambda step: step.seconds) for name in found[0]}


def least(found: list[Any]) -> Any:
    """Returns the measurement with the least of each time."""
    steps = {
        name: tuple(
            min(same, key=lambda step: step.seconds) for same in zip(*(one.steps[name] for one in found), strict=True)
        )
        for name in found[0].steps
    }
    speeds = tuple(
        replace(
            same[0],
            steps=tuple(map(min, *(speed.steps for speed in same))),
            evaluation_row=min(speed.evaluation_row for speed in same),
            loading_row=min(speed.loading_row for speed in same),
            input_row=min(speed.input_row for speed in same),
        )
        for same in zip(*(one.training.speeds for one in found), strict=True)
    )
    return replace(found[0], steps=steps, training=replace(found[0].training, speeds=speeds))


def epoch_of_a_training(job: dict[str, Any], batch_size: int, cores: int, folder: Path) -> tuple[int, float]:
    """Returns the steps of an epoch of a real training on some cores, and the seconds of its fastest."""
    to = folder / f"training-{batch_size}-{cores}"
    to.mkdir()
    only = {"epochs": EPOCHS, "batch_size": batch_size, "members": "network", "explain_rows": 0, "patience": EPOCHS}
    arguments = {
        **job["arguments"],
        "custom_config": {**job["arguments"]["custom_config"], **only, "calibration": "none", "warmup_epochs": 0.5},
        "serving_model_dir": str(to / "model"),
        "model_run_dir": str(to / "Trainer/model_run/1"),
    }
    (to / "job.json").write_text(json.dumps({**job, "arguments": arguments}))
    allowed = sorted(os.sched_getaffinity(0))[:cores]
    subprocess.run(
        [sys.executable, __file__, str(to / "job.json")],
        check=True,
        capture_output=True,
        preexec_fn=lambda: os.sched_setaffinity(0, allowed),
    )
    with (to / "Trainer/model_run/1/history.csv").open() as file:
        fastest = max(float(epoch["examples_per_second"]) for epoch in csv.DictReader(file))
    with (to / "Trainer/model_run/1/steps.csv").open() as file:
        steps = sum(row["epoch"] == "1" for row in csv.DictReader(file))
    return steps, steps * batch_size / fastest


def train(job: dict[str, Any]) -> None:
    """Trains as the Trainer does, in this process."""
    sys.path.insert(0, job["wheel"])
    importlib.import_module(job["module"]).run_fn(SimpleNamespace(**job["arguments"]))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(json.loads(Path(sys.argv[1]).read_text()))
    else:
        sys.exit(main())
