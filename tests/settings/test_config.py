"""Settings are checked when they are made, and the message says what to write instead."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.settings.checks import ConfigError, from_json, to_json
from pipeline.settings.config import Data, HashSplit, Label, PipelineConfig, TimeSplit, Tuning, load_config
from pipeline.settings.gates import AtLeast, Costs, DataChecks, Evaluation, FairnessGate, Gate, SliceGate
from pipeline.settings.training import Training

ROOT = Path(__file__).resolve().parents[2]
PATTERNS = {"train": "a", "eval": "b", "test": "c"}


def config(**changes) -> PipelineConfig:
    settings = {
        "name": "mine",
        "data": Data("data/mine"),
        "label": Label("late"),
        "module": "models/mine.py",
        "evaluation": Evaluation(gates=(Gate("auc", floor=0.6),)),
    }
    return PipelineConfig(**{**settings, **changes})


@pytest.mark.parametrize("name", ["flights", "digits"])
def test_a_config_comes_back_from_json_as_it_was(name):
    """As the tasks of a job get it."""
    shipped = load_config(ROOT / f"configs/{name}.py")
    portable = replace(shipped, data=replace(shipped.data, prepare=None))
    assert from_json(PipelineConfig, to_json(portable)) == portable


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Evaluation(gates=(Gate("auroc", 0.6),)), r"Gate.metric must be one of auc, .*, got 'auroc'"),
        (lambda: Evaluation(gates=(Gate("auc", 0.6), Gate("auc", 0.7))), r"two Gates of auc; leave one"),
        (lambda: Gate("auc", floor=0.7, ceiling=0.6), r"auc: the floor 0.7 is above the ceiling 0.6"),
        (lambda: SliceGate("auc", by="carrier"), r"auc by carrier: give a floor, a ceiling or max_drop"),
        (lambda: SliceGate("auc", "carrier", 0.6, confidence=95), r"confidence must be from 0 to less than 1, got 95"),
        (lambda: FairnessGate("auc", by="carrier=MQ", max_gap=0.1), r"a gap is between the values of a column"),
        (lambda: Evaluation((Gate("calibration", 0.9, max_drop=0.1),)), r"calibration has no better direction"),
        (lambda: DataChecks(severity={"domian": "warn"}), r"domian is no finding; there are missing_column, "),
        (lambda: DataChecks(severity={"domain": "halt"}), r"must be one of stop, warn, ignore, got 'halt'"),
        (lambda: DataChecks(label_share=(0.9, 0.1)), r"must be the lowest and the highest, got \(0.9, 0.1\)"),
        (lambda: DataChecks(max_shared_rows=5), r"max_shared_rows must be between 0 and 1, got 5; for 5 % write 0.05"),
        (lambda: Gate("auc", floor=60), r"auc floor must be between 0 and 1, got 60; for 60 % write 0.6"),
        (lambda: Gate("auc", floor=float("nan")), r"auc floor must be between 0 and 1, got nan"),
        (lambda: Evaluation(gates=()), r"evaluation.gates is empty: without a gate TFX blesses no model"),
        (lambda: Evaluation(gates=(Gate("auc", 0.6),), threshold=30), r"or AtLeast\(...\), got 30; for 30 % write 0.3"),
        (lambda: Evaluation((Gate("auc", 0.6),), threshold=0), r"evaluation.threshold must be above 0: from 0 on"),
        (
            lambda: Evaluation((Gate("auc", 0.6),), coverage=90),
            r"coverage must be above 0 and below 1, got 90",
        ),
        (lambda: Costs(false_negative=-5), r"Costs.false_negative must be a number of 0 or more, got -5"),
        (lambda: Costs(false_positive=0), r"Costs: both must be above 0, or one answer for every row costs least"),
        (lambda: AtLeast(precision=80), r"AtLeast.precision must be between 0 and 1, got 80; for 80 % write 0.8"),
        (lambda: AtLeast(), r"AtLeast takes a precision or a recall, one of both, got AtLeast\("),
        (lambda: AtLeast(precision=0.5, recall=0.5), r"AtLeast takes a precision or a recall, one of both"),
        (
            lambda: Evaluation((Gate("auc", 0.6),), threshold=Costs(1, 5), logits=True),
            r"of logits \(logits=True\) no threshold is chosen",
        ),
        (lambda: Evaluation(gates=(Gate("auc", 0.6),), slices="origin"), r"tuple of columns, got the text 'origin'"),
        (lambda: Tuning(mode="sometimes"), r"tuning.mode must be one of search, reuse, off, got 'sometimes'"),
        (lambda: Tuning(trials=0), r"tuning.trials must be a whole number of 1 or more, got 0"),
        (lambda: Tuning(minutes=0), r"tuning.minutes must be above 0, or None for no limit, got 0"),
        (lambda: Training(batch_size=0.5), r"training.batch_size must be a whole number"),
        (lambda: Training(strategy="gpu"), r"training.strategy must be one of auto, one_device, .*, tpu, got 'gpu'"),
        (lambda: Training(clip_norm=0), r"training.clip_norm must be above 0, or None to clip nothing, got 0"),
        (lambda: Training(profile=(9, 3)), r"such as \(100, 110\), or None, got \(9, 3\)"),
        (lambda: Training(profile=(1, 2, 3)), r"training.profile must be the first step .*, got \(1, 2, 3\)"),
        (lambda: Training(profile="auto"), r"training.profile must be the first step .*, or None, got 'auto'"),
        (lambda: Training(checkpoint_steps=0), r"training.checkpoint_steps must be a whole number of 1 or more"),
        (lambda: Training(train_steps=0), r"training.train_steps must be a whole number of 1 or more, got 0"),
        (lambda: Training(eval_steps=2.5), r"training.eval_steps must be a whole number of 1 or more, got 2.5"),
        (lambda: Label("late", classes=("no", "no")), r"two or more different words"),
        (lambda: Label("late", classes=("yes",)), r"two or more different words"),
        (lambda: Label("late", classes="ab"), r"must be a tuple"),
        (
            lambda: config(
                label=Label("p", ()),
                evaluation=Evaluation((Gate("rmse", ceiling=1.0),)),
                training=Training(class_weight="balanced"),
            ),
            r"training.class_weight is for a label of classes",
        ),
        (
            lambda: Training(class_weight="balanced", calibration="temperature"),
            r'"temperature" cannot undo what training.class_weight "balanced" does .*; leave one of them out',
        ),
        (
            lambda: config(
                label=Label("p", ("a", "b", "c")), evaluation=Evaluation((Gate("accuracy"),), threshold=0.3)
            ),
            r"evaluation.threshold: a label of several classes has none; leave it out",
        ),
        (lambda: Training(class_weight="even"), r"training.class_weight must be one of balanced, got 'even'"),
        (lambda: config(label=Label("p", classes=())), r"auc is no metric of a label of a number; there are rmse, mae"),
        (
            lambda: config(
                label=Label("p", ("a", "b", "c")), evaluation=Evaluation((Gate("accuracy"),), threshold=Costs())
            ),
            r"evaluation.threshold: a label of several classes has none; leave it out",
        ),
        (
            lambda: config(training=Training(calibration="platt")),
            r"training.calibration must be one of none, sigmoid, isotonic, temperature, got 'platt'",
        ),
        (
            lambda: config(
                label=Label("p", ("a", "b", "c")),
                evaluation=Evaluation((Gate("accuracy"),)),
                training=Training(calibration="isotonic"),
            ),
            r'training.calibration of a label of several classes must be one of none, temperature, got "isotonic"',
        ),
        (
            lambda: config(
                label=Label("p", ()), evaluation=Evaluation((Gate("rmse"),)), training=Training(calibration="sigmoid")
            ),
            r"training.calibration of a label of a number must be one of none, got",
        ),
        (
            lambda: config(
                evaluation=Evaluation((Gate("auc"),), logits=True), training=Training(calibration="sigmoid")
            ),
            r"training.calibration of logits \(logits=True\) must be one of none, got",
        ),
        (lambda: Gate("rmse", ceiling=-1.0), r"rmse ceiling must be a number of 0 or more, got -1.0"),
        (lambda: Data("d", splits={"train": "a", "eval": "b"}), r"exactly train, eval and test, got eval, train"),
        (lambda: Data("d", splits=PATTERNS, files="*.csv"), r"data.files '\*.csv' and data.splits exclude each other"),
        (lambda: Data("d", split_by="time"), r"must be HashSplit\(...\), or TimeSplit\(...\), got 'time'"),
        (lambda: Data("d", last_spans=0), r"data.last_spans must be a whole number of 1 or more, got 0"),
        (lambda: Data("d", files="{SPAN}/{SPAN}"), r'"{SPAN}" may stand once in a pattern'),
        (lambda: Data("d", splits={**PATTERNS, "test": "{SPAN}/*"}), r'"{SPAN}" must stand in all patterns or in none'),
        (lambda: Data("d", max_bad_rows=5), r"data.max_bad_rows must be between 0 and 1, got 5; for 5 % write 0.05"),
        (lambda: Data("d", leave_out="id"), r'data.leave_out must be a tuple .* such as \("id",\), got \'id\''),
        (lambda: Data("d", leave_out=("c",), split_by=HashSplit("c")), r"names 'c', which data.split_by needs"),
        (lambda: config(data=Data("d", leave_out=("p",)), label=Label("p")), r"names 'p', which label.name needs"),
        (
            lambda: config(data=Data("d", leave_out=("w",)), label=Label("p", weight="w")),
            r"names 'w', which label.weight needs",
        ),
        (
            lambda: config(data=Data("d", leave_out=("s",)), evaluation=Evaluation((Gate("auc"),), ("s",))),
            r"names 's', which evaluation needs",
        ),
        (lambda: Label("p", ("no", "yes"), spellings={"J": "ja"}), r"to one of no, yes, got 'J': 'ja'"),
        (lambda: Label("p", ("no", "yes"), spellings={"no": "yes"}), r"map words that are no class .*, got 'no'"),
        (lambda: Data("bigquery://table"), r"must be bigquery://project.dataset.table, got 'bigquery://table'"),
        (lambda: Data("q.sql", splits=PATTERNS), r"data.splits are file patterns and BigQuery has none"),
        (lambda: Data("d", shard_mb=0), r"data.shard_mb must be a whole number from 1 to 1024, got 0"),
        (lambda: Data("q.sql", shard_mb=8), r"data.shard_mb is for files; how rows of BigQuery are dealt"),
        (lambda: Data("bigquery://p.d.t", split_by=TimeSplit("t")), r"a TimeSplit needs files, not BigQuery"),
        (lambda: HashSplit("c", {"eval": 1, "train": 8, "test": 1}), r"train, eval and test, in this order"),
        (
            lambda: TimeSplit("t", {"train": 8, "eval": 0, "test": 1}),
            r"split_by.shares must be whole numbers of 1 or more by train, .*, got {'train': 8, 'eval': 0",
        ),
        (lambda: config(name="My Model"), r"lower-case letters.* got 'My Model'"),
        (lambda: config(data="data/mine"), r"data must be Data\(...\), got 'data/mine'"),
        (lambda: Data("d", images=True), r"data.images must be Images\(...\), or None, got True"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_to_write(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_relative_paths_start_at_the_root_and_addresses_stay(tmp_path):
    made = config(data=Data("gs://bucket/data"), schema="schema/s.pbtxt").with_paths_from(tmp_path)
    assert made.data.path == "gs://bucket/data"
    assert made.module == str(tmp_path / "models/mine.py")
    assert made.schema == str(tmp_path / "schema/s.pbtxt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no file .*; expected a Python file with CONFIG"),
        ("CONFIG = 3", "defines no CONFIG = PipelineConfig"),
        ("1/0", "does not run: ZeroDivisionError"),
        ("from pipeline.config import Gate; Gate('auc', 60)", "for 60 % write 0.6"),
    ],
)
def test_a_config_file_that_is_not_one_is_named(tmp_path, text, message):
    path = tmp_path / "config.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(path)


def test_config_and_target_import_neither_tensorflow_nor_tfx():
    heavy = {"tensorflow", "tfx", "keras", "pyarrow"}
    code = f"import sys, pipeline.config, pipeline.settings.target; print({heavy} & set(sys.modules))"
    root = Path(__file__).resolve().parents[2]
    answer = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"
