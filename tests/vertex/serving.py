"""Models that the tests of deployment push: a model with two blessings and rows, in the fake bucket."""

import json
from pathlib import Path
from typing import Any

from tfx.types import standard_artifacts
from tfx.utils import json_utils

from pipeline import filesystem
from pipeline.components.artifacts import MEASURED, MODEL_REPORT, SMOKE_ROWS
from pipeline.components.base import serving_model_folder
from pipeline.settings.endpoint import Canary, Endpoint
from pipeline.settings.target import Vertex
from pipeline.vertex.endpoints import pusher
from tests.fakes.google_cloud import BUCKET, GoogleCloud

QUICK = Canary(
    steps=(10, 50), minutes=0.003, probe_seconds=0.01, grace_minutes=0, drain_seconds=0, max_latency_ratio=None
)
SERVING = f"gs://{BUCKET}/flights/serving"
ENDPOINT = Endpoint("late-flights", canary=QUICK)


def probability(instance: dict[str, Any]) -> float:
    """Return what every version answers, if it answers as in the model check."""
    return (float(instance["distance"]) % 1000) / 1000


def answer(instance: dict[str, Any]) -> dict[str, Any]:
    """The whole answer."""
    return {"probability": probability(instance), "label": "late" if probability(instance) >= 0.3 else "on time"}


INSTANCES = [{"carrier": "UA", "distance": 100.0 * number} for number in range(12)]


class Pushes:
    """Pushes one model after the other with the real executor."""

    def __init__(self, there: GoogleCloud, vertex: Vertex, buckets: Path):
        self.there = there
        self.vertex = vertex
        self.buckets = buckets
        self.rows = [{"instance": one, "answer": answer(one)} for one in INSTANCES]

    def model(self, number: int) -> standard_artifacts.Model:
        """A model in the bucket, made by the run ``run-<number>``."""
        model = standard_artifacts.Model()
        model.uri = f"gs://{BUCKET}/flights/artifacts/1/run-{number}/Trainer_1/model"
        for name in ("saved_model.pb", "variables/variables.index"):
            self._write(f"{model.uri}/Format-Serving/{name}", f"model {number}")
        return model

    def push(
        self,
        number: int,
        endpoint: Endpoint = ENDPOINT,
        blessed: bool = True,
        run: str | None = None,
        to: str = SERVING,
        checked: int | None = None,
    ) -> standard_artifacts.PushedModel:
        """Pushes the model of the run ``run-<number>``, in that run or in another; ModelCheck saw ``checked``."""
        root = f"gs://{BUCKET}/flights/artifacts/1/{run or f'run-{number}'}"
        blessing, infra = standard_artifacts.ModelBlessing(), standard_artifacts.InfraBlessing()
        blessing.uri, infra.uri = f"{root}/Evaluator_1/blessing", f"{root}/ModelCheck_1/blessing"
        blessing.set_int_custom_property("blessed", int(blessed))
        infra.set_int_custom_property("blessed", 1)
        self._write(f"{infra.uri}/INFRA_BLESSED", "")
        metrics = {"auc": 0.7 + number / 100, "auc_precision_recall": 0.5, "calibration": float("nan")}
        self._write(
            f"{blessing.uri}/{MEASURED}", json.dumps({"metrics": metrics, "data_span": 7, "schema_sha256": "ab" * 32})
        )
        self._write(f"{infra.uri}/{SMOKE_ROWS}", json.dumps({"tolerance": 1e-3, "rows": self.rows}))
        model = self.model(number)
        files = filesystem.digests(serving_model_folder([self.model(checked or number)]))
        self._write(f"{infra.uri}/{MODEL_REPORT}", json.dumps({"files": files}))
        pushed = standard_artifacts.PushedModel()
        pushed.uri = f"{root}/Pusher_1/pushed_model"
        setting = pusher.setting_for(self.vertex, endpoint, "flights")
        custom = {"keep": 2, "fingerprints": {"run_fn": "0123456789abcdef"}, pusher.SETTING: setting}
        pusher.EndpointPusherExecutor().Do(
            {"model": [model], "model_blessing": [blessing], "infra_blessing": [infra]},
            {"pushed_model": [pushed]},
            {
                "push_destination": json.dumps({"filesystem": {"base_directory": to}}),
                "custom_config": json_utils.dumps(custom),
            },
        )
        return pushed

    def _write(self, address: str, text: str) -> None:
        path = self.buckets / address.removeprefix("gs://")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def answers_right(there: GoogleCloud, *versions: str) -> None:
    """Lets versions answer as in the model check."""
    for version in versions:
        there.vertex.serving.answers[version] = answer
