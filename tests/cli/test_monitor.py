"""Requests against the training data: within the limits, or the features named and code 4."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tensorflow_data_validation as tfdv

from pipeline.__main__ import main
from pipeline.cli import monitor
from pipeline.errors import UserError
from pipeline.quality import predictions, reference

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """\
from dataclasses import replace
import runpy
from pipeline.settings.config import Data

CONFIG = replace(runpy.run_path({flights!r})["CONFIG"], schema={schema!r}, data=Data("nowhere/at/all"))
"""
Row = dict[str, object]


@pytest.fixture(scope="module")
def train(few_flights: Path) -> pd.DataFrame:
    return pd.concat([pd.read_parquet(file) for file in sorted(few_flights.glob("train/*.parquet"))])


@pytest.fixture(scope="module")
def output(train: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the output of a run: statistics of version 7's data, and a config."""
    output = tmp_path_factory.mktemp("output")
    statistics = {"train": tfdv.generate_statistics_from_dataframe(train)}
    of_test = predictions.statistics_of(predictions.values_of(answers(3_000)), ("on time", "late"))
    reference.write(str(output / "artifacts/_pushed/flights"), "7", statistics, {}, of_test)
    reference.write(str(output / "artifacts/_pushed/flights"), "4", statistics, {})
    text = CONFIG.format(flights=str(ROOT / "configs/flights.py"), schema=str(ROOT / "schema/flights/schema.pbtxt"))
    (output / "config.py").write_text(text)
    return output


def lines(rows: pd.DataFrame, version: int = 7, change: Callable[[Row], Row] = dict, shift: float = 0.0) -> str:
    instances = json.loads(rows.drop(columns=["late"]).to_json(orient="records"))
    about = {"time": "2026-11-21T15:00:00+00:00", "version": version}
    pairs = zip(instances, (answers(len(rows)) + shift).tolist(), strict=True)
    return "".join(
        json.dumps({**about, "instance": change(one), "prediction": {"label": "late", "probability": answer}}) + "\n"
        for one, answer in pairs
    )


def answers(rows: int) -> np.ndarray:
    return np.random.default_rng(0).beta(2, 5, rows) / 2


def run(monkeypatch: pytest.MonkeyPatch, log: Path, output: Path, *more: str) -> int:
    options = ["--log", str(log), "--config", str(output / "config.py"), "--output", str(output), *more]
    return main(["monitor", *options])


@pytest.mark.slow
def test_rows_like_those_of_the_training_are_within_the_limits(train, output, tmp_path, monkeypatch, capsys):
    (tmp_path / "requests-2026-11-20.jsonl").write_text(lines(train[::2]) + '{"time": "cut o')
    (tmp_path / "requests-2026-11-21.jsonl").write_text(lines(train[:10], version=6) + lines(train[1::2]))
    assert run(monkeypatch, tmp_path, output) == 0
    said = capsys.readouterr().out
    assert f"{len(train):,} rows of version 7" in said
    assert "10 rows of other versions skipped, 1 lines that are not rows" in said
    assert "within the limits of the schema" in said
    assert "skew_comparator" not in said


def test_a_crossed_limit_names_the_feature_and_how_to_accept_it(train, output, tmp_path, monkeypatch, capsys):
    def celsius_from_nowhere(row: Row) -> Row:
        temp = row["temp"]
        return {**row, "temp": None if temp is None else (temp - 32) / 1.8, "origin": "XXX"}  # type: ignore[operator]

    (tmp_path / "log.jsonl").write_text(lines(train, change=celsius_from_nowhere))
    assert run(monkeypatch, tmp_path, output) == 4
    said = capsys.readouterr().out
    assert f"origin in serving: {len(train):,} rows have a value that the schema does not list: XXX" in said
    assert "temp in serving: Jensen-Shannon distance" in said
    assert said.count("crossed: origin, temp\n") == 1
    written = Path(said.rsplit("statistics and findings: ", 1)[1].strip())
    assert {one["feature"] for one in json.loads((written / "findings.json").read_text())} >= {"origin", "temp"}
    # Where the remedy says to accept it from.
    assert tfdv.load_stats_binary(str(written / "Split-serving/FeatureStats.pb")).datasets[0].num_examples == len(train)


def test_shifted_predictions_cross_a_limit_though_no_feature_does(train, output, tmp_path, monkeypatch, capsys):
    (tmp_path / "log.jsonl").write_text(lines(train, shift=0.4))
    assert run(monkeypatch, tmp_path, output) == 4
    said = capsys.readouterr().out
    assert "crossed  predictions in serving: Jensen-Shannon distance" in said
    assert "accept it: DataChecks(max_prediction_drift=" in said
    assert "crossed: predictions\n" in said
    written = Path(said.rsplit("statistics and findings: ", 1)[1].strip())
    assert [one["kind"] for one in json.loads((written / "findings.json").read_text())] == ["prediction_drift"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "change", "reason"),
    [
        (4, {}, "none of the test split were kept when this version was pushed"),
        (7, {"prediction": None}, "the log has them of 0 rows only"),
    ],
)
def test_an_older_version_or_log_is_judged_without_predictions_and_says_so(
    train, output, tmp_path, monkeypatch, capsys, version, change, reason
):
    entries = [json.loads(line) | change for line in lines(train, version, shift=0.4).splitlines()]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert run(monkeypatch, tmp_path, output) == 0
    assert f"predictions are not judged: {reason}\n" in capsys.readouterr().out


@pytest.mark.slow
def test_retraining_starts_the_pipeline_and_ends_with_its_code(train, output, tmp_path, monkeypatch, capfd):
    (tmp_path / "log.jsonl").write_text(lines(train, change=lambda row: {**row, "origin": "XXX"}))
    assert run(monkeypatch, tmp_path, output, "--retrain") == 1
    # This config has no data to train on.
    assert "local_runner.py: no data at" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("rows", "version", "message"),
    [
        (20, 7, "too few rows to judge by: 20 of version 7"),
        (1_000, 5, "no training statistics of version 5"),
        (0, 7, "no rows in "),
    ],
)
def test_what_cannot_be_judged_is_said_and_nothing_written(
    train, output, tmp_path, monkeypatch, capsys, rows, version, message
):
    before = list(output.glob("monitor/*"))
    (tmp_path / "log.jsonl").write_text(lines(train[:rows], version))
    assert run(monkeypatch, tmp_path, output) == 1
    assert message in capsys.readouterr().err
    assert list(output.glob("monitor/*")) == before


def test_only_the_newest_rows_are_judged(train, tmp_path):
    (tmp_path / "requests-2026-11-20.jsonl").write_text(lines(train[:50]))
    (tmp_path / "requests-2026-11-21.jsonl").write_text(lines(train[50:60]))
    requests = monitor.read_log(tmp_path, 15)
    expected = json.loads(train[45:60].drop(columns=["late"]).to_json(orient="records"))
    assert requests.instances == expected


def test_without_a_log_it_says_where_one_comes_from(tmp_path):
    with pytest.raises(UserError, match=r"no request log .* pipeline serve --request-log"):
        monitor.read_log(tmp_path / "nowhere", 10)
