"""Measurements of a pipeline on this machine, as they are kept in ``advice.json``."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepRun:
    """One execution of a step of the graph.

    Attributes:
        rows: Of all splits together.
        seconds: From start to end.
        epochs: Of the Trainer: those that it trained.
    """

    rows: int
    seconds: float
    epochs: int = 0


@dataclass(frozen=True)
class TrainingSpeed:
    """Seconds of the parts of a training on a number of cores.

    Attributes:
        cores: Of this machine, that the process was allowed to use.
        steps: (examples in a step, least seconds of a training step), for several batch sizes.
        evaluation_row: Seconds of an example in the evaluation after an epoch.
        input_row: Seconds of an example in the input pipeline alone, from the second epoch on.
        loading_row: Seconds to read, parse and decode an example, once if it is then kept in memory.
    """

    cores: int
    steps: tuple[tuple[int, float], ...]
    evaluation_row: float
    input_row: float
    loading_row: float


@dataclass(frozen=True)
class StepWork:
    """Work of one training step, as TensorFlow's profiler and the shapes in its graph say.

    Attributes:
        examples: In the step.
        flops: Multiplications and additions.
        bytes: Read and written by all operations, none of them fused.
        operations: Those that an accelerator has to launch.
    """

    examples: int
    flops: float
    bytes: float
    operations: int


@dataclass(frozen=True)
class TrainingMeasured:
    """A training, measured on this machine without training to the end.

    Attributes:
        batch_size: Examples per replica in a step.
        precision: Keras policy.
        speeds: By number of cores, the fewest first.
        work: For several batch sizes.
        memory: (examples in a step, bytes that the process grew by while it trained); empty where the system does not
            say.
        model_bytes: Of the weights and the optimizer's variables.
        gradient_bytes: Of the gradients of one step.
        row_bytes: Of an example that is kept in memory.
        loops: Whether the graph has loops, whose bodies the profiler does not count.
    """

    batch_size: int
    precision: str
    speeds: tuple[TrainingSpeed, ...]
    work: tuple[StepWork, ...]
    memory: tuple[tuple[int, int], ...]
    model_bytes: int
    gradient_bytes: int
    row_bytes: int
    loops: bool = False


@dataclass(frozen=True)
class Measured:
    """A pipeline, measured on this machine.

    Attributes:
        run: Name of the local run.
        key: Changes with the code and the settings that were measured.
        rows: Of the local run, by split.
        epochs: Most passes over the train split, as the config says.
        steps: Executions by step, the one with the fewest rows first.
        training: None where the module file trains in a loop of its own.
        why_not_measured: Why ``training`` is None, in a sentence.
        most_rows: By step, the rows of all splits beyond which it takes no longer, as it works on a sample.
    """

    run: str
    key: str
    rows: Mapping[str, int]
    epochs: int
    steps: Mapping[str, tuple[StepRun, ...]]
    training: TrainingMeasured | None
    why_not_measured: str = field(default="")
    most_rows: Mapping[str, int] = field(default_factory=dict)
