"""Read the statistics of a run, and the files that its gates have written next to their artifacts."""

import json
from typing import Any

from tfx import types
from tfx.components.statistics_gen import stats_artifact_utils
from tfx.types import artifact_utils

from pipeline import filesystem
from pipeline.quality import findings
from pipeline.quality.statistics import Statistics
from pipeline.quality.verdict import GateResult
from pipeline.settings.config import SPLITS

# Next to the Evaluator's blessing: the result of the gates, the facts for a version's manifest, the statistics of the
# predictions for the test split, and the counts of labels within intervals or sets.
GATE_RESULT, MEASURED, PREDICTIONS, COVERED = "verdict.json", "measured.json", "predictions.pb", "covered.json"
# Property of a transform graph: what preprocessing_fn does with a label that is a number.
WARNING = "warning"
# Metrics of simple models.
BASELINES = "baselines.json"
# Next to ModelCheck's blessing: its report, and rows with predictions to compare a deployed model with:
# {"tolerance": ..., "rows": [{"instance", "answer"}]}.
MODEL_REPORT, SMOKE_ROWS = "model_check.json", "smoke_rows.json"


def read_statistics(artifact: types.Artifact) -> dict[str, Statistics]:
    """Return the statistics by split, train first."""
    splits = sorted(artifact_utils.decode_split_names(artifact.split_names), key=SPLITS.index)
    return {split: stats_artifact_utils.load_statistics(artifact, split).proto() for split in splits}


def read_findings(anomalies_uri: str) -> list[findings.Finding]:
    """Return the findings of ExampleValidator."""
    return findings.from_json(filesystem.read_text(f"{anomalies_uri}/{findings.FILE}"))


def read_gate_result(blessing_uri: str) -> GateResult:
    """Return the Evaluator's result of the gates."""
    return GateResult.from_json(filesystem.read_text(f"{blessing_uri}/{GATE_RESULT}"))


def read_measured(blessing_uri: str) -> dict[str, Any]:
    """Return metrics on all rows, span and schema of an evaluation; empty for a blessing of TFX's own Evaluator."""
    return _read_json(f"{blessing_uri}/{MEASURED}", {})


def read_predictions(blessing_uri: str) -> Statistics | None:
    """Return the statistics of the predictions for the test split; None for a blessing of TFX's own Evaluator."""
    path = f"{blessing_uri}/{PREDICTIONS}"
    return Statistics.FromString(filesystem.read_bytes(path)) if filesystem.exists(path) else None


def read_baselines(uri: str) -> dict[str, dict[str, float]]:
    """Return metrics on the test split by simple model, as the step Baselines has measured them."""
    return _read_json(f"{uri}/{BASELINES}")["metrics"]


def read_hyperparameters(uri: str) -> dict[str, Any]:
    """Return the values that a search has found, by name, from KerasTuner's file."""
    return _read_json(f"{uri}/best_hyperparameters.txt")["values"]


def read_model_report(blessing_uri: str) -> dict[str, Any]:
    """Return the report of ModelCheck."""
    return _read_json(f"{blessing_uri}/{MODEL_REPORT}")


def read_smoke_rows(blessing_uri: str) -> dict[str, Any]:
    """Return rows with their predictions; none for a blessing of TFX's own InfraValidator."""
    return _read_json(f"{blessing_uri}/{SMOKE_ROWS}", {"tolerance": 0.0, "rows": []})


def _read_json(path: str, default: dict[str, Any] | None = None) -> dict[str, Any]:
    if default is not None and not filesystem.exists(path):
        return default
    return json.loads(filesystem.read_text(path))
