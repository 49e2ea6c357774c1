"""A machine whose times are made by the formulas: what is predicted for it is known exactly."""

from dataclasses import replace

from pipeline.costs.measured import Measured, StepRun, StepWork, TrainingMeasured, TrainingSpeed

# Seconds of a training step on one core: the start and each example; of that, this share runs in parallel.
STEP, EXAMPLE, PARALLEL = 0.004, 0.00025, 0.8
EVALUATION_ROW, INPUT_ROW, LOADING_ROW = 0.00006, 0.000002, 0.00001
ROWS = {"train": 8_000, "eval": 1_000, "test": 1_000}
EPOCHS = 5
# Start of a step of the graph, and seconds of a row.
STEPS = {"ExampleGen": (2.0, 0.0004), "Transform": (6.0, 0.001), "Evaluator": (5.0, 0.0002)}
# The Trainer besides its epochs.
REST = (12.0, 0.0003)


def by_cores(seconds: float, cores: int) -> float:
    """Seconds on some cores by Amdahl's law."""
    return seconds * (1 - PARALLEL + PARALLEL / cores)


def step(batch_size: int, cores: int) -> float:
    """Seconds of a training step."""
    return by_cores(STEP + EXAMPLE * batch_size, cores)


def speed(cores: int) -> TrainingSpeed:
    """What is measured on some cores."""
    return TrainingSpeed(
        cores=cores,
        steps=tuple((size, step(size, cores)) for size in (16, 64, 128, 256)),
        evaluation_row=by_cores(EVALUATION_ROW, cores),
        input_row=by_cores(INPUT_ROW, cores),
        loading_row=by_cores(LOADING_ROW, cores),
    )


def epochs(rows: int, batch_size: int, cores: int, count: int = EPOCHS) -> float:
    """Seconds of some epochs, for rows of all splits together."""
    train, evaluated = rows * 8 // 10, rows // 10
    return count * (train // batch_size * step(batch_size, cores) + evaluated * by_cores(EVALUATION_ROW, cores))


def training(**changes: object) -> TrainingMeasured:
    """A training: of 100 MFLOP and 50 kB for each example, in 300 operations."""
    measured = TrainingMeasured(
        batch_size=128,
        precision="float32",
        speeds=(speed(1), speed(2)),
        work=tuple(StepWork(size, 1e6 + 1e8 * size, 1e6 + 5e4 * size, 300) for size in (16, 256)),
        memory=tuple((size, 10_000_000 + 1_000_000 * size) for size in (16, 64, 128, 256)),
        model_bytes=40_000_000,
        gradient_bytes=10_000_000,
        row_bytes=1_000,
    )
    return replace(measured, **changes)  # type: ignore[arg-type]


def pipeline(of: TrainingMeasured | None = None) -> Measured:
    """A pipeline that ran on 1,000 and on 10,000 rows, on two cores."""
    few, many = 1_000, sum(ROWS.values())
    steps = {
        name: tuple(StepRun(rows, start + row * rows) for rows in (few, many)) for name, (start, row) in STEPS.items()
    }
    steps["Trainer"] = tuple(
        StepRun(rows, REST[0] + REST[1] * rows + epochs(rows, 128, 2), EPOCHS) for rows in (few, many)
    )
    return Measured("a run", "key", ROWS, EPOCHS, steps, of or training())
