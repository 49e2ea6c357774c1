"""WHAT the pipeline does; WHERE it runs is ``pipeline.settings.target``.

Settings are frozen, and checked when built. A config file such as ``configs/flights.py`` holds one
``CONFIG = PipelineConfig(...)``.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pipeline.settings.checks import (
    ConfigError,
    Count,
    Rule,
    Share,
    check_settings,
    listed,
    number,
    read_settings,
    text,
    whole,
)
from pipeline.settings.gates import DataChecks, Evaluation, ModelChecks
from pipeline.settings.image_data import Images
from pipeline.settings.tasks import TASKS, Task, task_of
from pipeline.settings.training import Training

TuningMode = Literal["search", "reuse", "off"]
Minutes = Annotated[float, number("above 0, or None for no limit", lambda value: value > 0)]
Megabytes = Annotated[int, whole(1, 1_024)]
Name = Annotated[
    str, text('lower-case letters, digits, "_" or "-", from a letter on, at most 49', r"[a-z][a-z0-9_-]{0,48}")
]
Columns = Annotated[
    tuple[str, ...],
    Rule(
        'a tuple of names of columns, such as ("id",)',
        lambda value: isinstance(value, (tuple, list)) and all(isinstance(name, str) and name for name in value),
    ),
]
SPLITS = ("train", "eval", "test")
BIGQUERY = "bigquery://"


def _are_shares(value: Any) -> bool:
    splits = isinstance(value, Mapping) and tuple(value) == SPLITS
    return splits and all(type(share) is int and share >= 1 for share in value.values())


Shares = Annotated[
    Mapping[str, int], Rule("whole numbers of 1 or more by train, eval and test, in this order", _are_shares)
]


@dataclass(frozen=True)
class HashSplit:
    """Split of rows by a hash, the same on every machine and in every run.

    Attributes:
        column: Rows with the same value, of one customer say, get the same split; integers or text. None: each alone.
        shares: Parts of the whole by split.
    """

    column: str | None = None
    shares: Shares = field(default_factory=lambda: {"train": 8, "eval": 1, "test": 1})

    def __post_init__(self) -> None:
        check_settings("split_by.", self)


@dataclass(frozen=True)
class TimeSplit:
    """Split of rows by the order of time: the oldest to train, then eval, the newest to test.

    Attributes:
        column: Timestamps, dates, numbers or ISO 8601 text. Rows of the same time come into the same split.
        shares: Parts of the whole by split.
    """

    column: str
    shares: Shares = field(default_factory=lambda: {"train": 8, "eval": 1, "test": 1})

    def __post_init__(self) -> None:
        check_settings("split_by.", self)


@dataclass(frozen=True)
class Data:
    """Raw rows with named columns: files of one format, or the answer to a query.

    Attributes:
        path: Folder or file here or on a filesystem that Beam can read, "bigquery://project.dataset.table", or a .sql
            file with a query of BigQuery. Relative paths start at the repository.
        splits: File pattern below ``path`` by split name. The Trainer fits "train", early stopping and the Tuner judge
            on "eval", the Evaluator on "test". Empty: ``split_by`` splits the rows of all files.
        files: File pattern below ``path`` of all rows, where ``splits`` is empty; of images "*" means any depth.
        split_by: How rows are split, where ``splits`` is empty.
        last_spans: How many of the newest spans are read, where patterns hold "{SPAN}"; None: all.
        until_span: Number of the newest span that counts; None: all count.
        test_newest: The newest span is the test split, and the others are train and eval by their shares.
        leave_out: Columns that are not read, whatever they hold; a file may lack them.
        max_bad_rows: Share of CSV rows and of images that may be bad; these are skipped, counted and listed in a file.
        prepare: Script that writes ``path`` when it does not exist, called with ``--output path``.
        images: The rows are images, with these limits; None: they are rows of tables.
        shard_mb: Megabytes of a file of examples in memory, about: the least that a worker takes. None: 24 of tables,
            up to 128 from a split of 500 GB on; 128 of images.
    """

    path: str
    splits: Mapping[str, str] = field(default_factory=dict)
    files: str = "*"
    split_by: HashSplit | TimeSplit = field(default_factory=HashSplit)
    last_spans: Count | None = 1
    until_span: int | None = None
    test_newest: bool = False
    leave_out: Columns = ()
    max_bad_rows: Share = 0.0
    prepare: str | None = None
    images: Images | None = None
    shard_mb: Megabytes | None = None

    def __post_init__(self) -> None:
        check_settings("data.", self)
        if not self.splits:
            self.check_is_read(self.split_by.column, "data.split_by")
        if self.images:
            self.check_is_read(self.images.column, "data.images")
        if self.splits and set(self.splits) != set(SPLITS):
            raise ConfigError(
                f"data.splits must name exactly train, eval and test, got {listed(self.splits)}; "
                "leave it empty to deal all rows by data.split_by"
            )
        if self.splits and self.files != "*":
            raise ConfigError(f"data.files {self.files!r} and data.splits exclude each other; leave one of them out")
        patterns = self.splits or {"all": self.files}
        if any(pattern.count("{SPAN}") > 1 for pattern in patterns.values()):
            raise ConfigError(f'data: "{{SPAN}}" may stand once in a pattern, got {", ".join(patterns.values())}')
        if len({"{SPAN}" in pattern for pattern in patterns.values()}) > 1:
            raise ConfigError('data.splits: "{SPAN}" must stand in all patterns or in none')
        if self.test_newest and (not self.has_spans or self.last_spans == 1 or self.images):
            raise ConfigError(
                'data.test_newest needs tables, "{SPAN}" in the file patterns, and data.last_spans of 2 or more or '
                "None: a span to test on, and others to learn from"
            )
        if self.query_source:
            if self.images:
                raise ConfigError("data.images needs image files, CSV, Parquet or TFRecords, not BigQuery")
            if self.shard_mb:
                raise ConfigError("data.shard_mb is for files; how rows of BigQuery are dealt to files is TFX's to say")
            if self.splits:
                raise ConfigError("data.splits are file patterns and BigQuery has none; deal rows by data.split_by")
            if isinstance(self.split_by, TimeSplit):
                raise ConfigError(
                    "data.split_by: a TimeSplit needs files, not BigQuery; take a HashSplit, or export to Parquet"
                )
        if self.path.startswith(BIGQUERY) and not re.fullmatch(r"[\w:.-]+\.\w+\.[\w-]+", self.path[len(BIGQUERY) :]):
            raise ConfigError(f"data.path must be bigquery://project.dataset.table, got {self.path!r}")

    def check_is_read(self, column: str | None, what: str) -> None:
        """Raise ConfigError if a column that another setting needs is in ``leave_out``."""
        if column in self.leave_out:
            raise ConfigError(f"data.leave_out names {column!r}, which {what} needs; take it out of one of them")

    @property
    def has_spans(self) -> bool:
        """Return whether the files are of numbered spans."""
        return any("{SPAN}" in pattern for pattern in (self.splits or {"all": self.files}).values())

    @property
    def is_window(self) -> bool:
        """Return whether rows of several spans are read, of which a later run meets some again."""
        return self.has_spans and self.last_spans != 1 and self.images is None

    @property
    def query_source(self) -> bool:
        """Return whether the rows come from BigQuery."""
        return self.path.startswith(BIGQUERY) or self.path.endswith(".sql")


@dataclass(frozen=True)
class Label:
    """The column to predict: which of some classes, or a number.

    Attributes:
        name: Column of the raw data.
        classes: Names of the classes, which the served model answers with. The data holds these or, if none of them is
            a whole number, their places, from 0. Of two classes, the model answers the probability of the second.
            Empty: the label is a number.
        weight: Column of how much each row counts in loss, metrics and gates, 0 or more, which is no input of the
            model; None: all count the same.
        spellings: Class by another word for it in the data, such as ``{"Yes": "yes", "y": "yes"}``.
    """

    name: str
    classes: tuple[str, ...] = ("0", "1")
    weight: str | None = None
    spellings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        classes = self.classes
        if isinstance(classes, str) or len(classes) == 1 or len(set(classes)) != len(classes) or "" in classes:
            raise ConfigError(
                "label.classes must be a tuple of two or more different words, or empty where the label is a number, "
                f"got {classes!r}"
            )
        if self.weight is not None and (not isinstance(self.weight, str) or self.weight in ("", self.name)):
            raise ConfigError(f"label.weight must be a column other than the label, or None, got {self.weight!r}")
        for word, meant in self.spellings.items():
            if meant not in classes or word in classes:
                raise ConfigError(
                    f"label.spellings must map words that are no class to one of {', '.join(classes) or 'no classes'}, "
                    f"got {word!r}: {meant!r}"
                )

    @property
    def task(self) -> Task:
        """Return the task that the label implies."""
        return task_of(len(self.classes))

    @property
    def numbers(self) -> dict[str, int]:
        """Return the number of a class, from 0, by each word or number that stands for it in the data."""
        words = {word: number for number, word in enumerate(self.classes)}
        others = {word.strip(): words[meant] for word, meant in self.spellings.items()}
        if any(re.fullmatch(r"[+-]?[0-9]+", word) for word in words):
            return {**words, **others}
        return {**words, **{str(number): number for number in range(len(words))}, **others}

    @property
    def csv_type(self) -> str:
        """Return the type with which the column is read from a CSV file, regardless of its values."""
        if self.task == "regression":
            return "floats"
        places = all(word == str(number) for number, word in enumerate(self.classes))
        return "integers" if places and not self.spellings else "text"


@dataclass(frozen=True)
class Tuning:
    """Search for hyperparameters with KerasTuner.

    Attributes:
        mode: "search", "reuse" (the best values of the last search) or "off" (the defaults in ``build_model``).
        trials: Most models tried in one search.
        epochs: Most passes of one trial over the train split.
        minutes: Time of one search, whose first trial is always finished. None: no limit.
        rows: About the most rows of the train split that a trial learns from, in whole files, and as large a part of
            the eval split. None: all.
    """

    mode: TuningMode = "search"
    trials: Count = 6
    epochs: Count = 3
    minutes: Minutes | None = None
    rows: Count | None = 2_000_000

    def __post_init__(self) -> None:
        check_settings("tuning.", self)


@dataclass(frozen=True)
class PipelineConfig:
    """Everything about WHAT the pipeline does.

    Attributes:
        name: Name of the pipeline and its pushed model: lower-case letters, digits, "_" and "-".
        module: The module file with ``preprocessing_fn``, ``run_fn`` and, optionally, ``tuner_fn``.
        schema: Reviewed schema (schema.pbtxt) that every step after SchemaGen uses; None: the inferred one.
    """

    name: Name
    data: Data
    label: Label
    module: str
    evaluation: Evaluation
    schema: str | None = None
    tuning: Tuning = field(default_factory=Tuning)
    training: Training = field(default_factory=Training)
    data_checks: DataChecks = field(default_factory=DataChecks)
    model_checks: ModelChecks = field(default_factory=ModelChecks)

    def __post_init__(self) -> None:
        check_settings("", self)
        self.data.check_is_read(self.label.name, "label.name")
        self.data.check_is_read(self.label.weight, "label.weight")
        for column in self.evaluation.sliced_by:
            self.data.check_is_read(column, "evaluation")
        task = TASKS[self.label.task]
        if self.training.class_weight and not self.label.classes:
            raise ConfigError("training.class_weight is for a label of classes; of a label of a number leave it out")
        for gate in self.evaluation.gates:
            if gate.metric not in task.metrics:
                raise ConfigError(
                    f"evaluation.gates: {gate.metric} is no metric of a label of {task.label}; there are "
                    f"{', '.join(task.metrics)}"
                )

        if self.label.task != "binary" and self.evaluation.threshold != 0.5:  # 0.5 is the default
            raise ConfigError(f"evaluation.threshold: a label of {task.label} has none; leave it out")
        kinds = {"binary": ("sigmoid", "isotonic", "temperature"), "multiclass": ("temperature",)}
        calibration, possible = self.training.calibration, ("none", *kinds.get(self.label.task, ()))
        if calibration not in possible or (self.evaluation.logits and calibration != "none"):
            of = "logits (logits=True)" if self.evaluation.logits else f"a label of {task.label}"
            possible = ("none",) if self.evaluation.logits else possible
            raise ConfigError(f'training.calibration of {of} must be one of {", ".join(possible)}, got "{calibration}"')

    @property
    def objective(self) -> str:
        """Return the metric that early stopping and the search judge by."""
        return self.training.objective or TASKS[self.label.task].objective

    def with_paths_from(self, root: Path) -> "PipelineConfig":
        """Return the config with its relative paths made absolute, starting at ``root``."""

        def absolute(path: str) -> str:
            return path if "://" in path else str(root / path)

        prepare, schema = self.data.prepare and absolute(self.data.prepare), self.schema and absolute(self.schema)
        data = dataclasses.replace(self.data, path=absolute(self.data.path), prepare=prepare)
        training, weights = self.training, self.training.backbone_weights
        if weights and weights != "imagenet":
            training = dataclasses.replace(training, backbone_weights=absolute(weights))
        return dataclasses.replace(self, data=data, module=absolute(self.module), schema=schema, training=training)


def load_config(path: Path) -> PipelineConfig:
    """Return ``CONFIG`` from a config file; raise ConfigError if it is missing."""
    return read_settings(path, "CONFIG", PipelineConfig)
