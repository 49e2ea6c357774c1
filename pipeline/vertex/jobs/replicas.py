"""The replicas of a CustomJob: executors that train, or search, together.

Of a search, the first replica starts KerasTuner's chief in a separate process, which hands trials out and writes the
best values. All replicas, the first too, train trials.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from typing import Any

from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.types import artifact_utils
from tfx.utils import path_utils

from pipeline.components import trainer, tuner
from pipeline.components.base import Artifacts
from pipeline.errors import UserError

CHIEF = "chief"


class TrainerReplica(trainer.TrainerExecutor):
    """The Trainer in one of several processes that train together: only the chief's outputs count."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Train; a replica that is not the chief writes to a temporary folder."""
        from pipeline.training import strategy

        _, index = strategy.cluster()
        if index == 0:
            super().Do(input_dict, output_dict, exec_properties)
            return
        with tempfile.TemporaryDirectory() as scratch:
            for name, (artifact,) in output_dict.items():
                artifact.uri = os.path.join(scratch, name)
            # TFX looks for a model when run_fn has ended, and training.run exports the chief's only.
            os.makedirs(path_utils.serving_model_dir(artifact_utils.get_single_uri(output_dict["model"])))
            super().Do(input_dict, output_dict, exec_properties)


class TunerReplica(BaseExecutor):
    """One of several processes that search together."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Train trials until there are no more; the first replica also runs the chief."""
        if os.environ.get("KERASTUNER_TUNER_ID") == CHIEF:
            search = tuner.search(input_dict, exec_properties, tempfile.mkdtemp())
            tuner.write_results(search, output_dict)
            return
        address, index = place_in_cluster(os.environ.get("CLUSTER_SPEC"))
        host, port = address.rsplit(":", 1)
        chief = None
        if index == 0:
            environment = {
                **os.environ,
                "KERASTUNER_TUNER_ID": CHIEF,
                "KERASTUNER_ORACLE_IP": "127.0.0.1" if host == "localhost" else "0.0.0.0",
                "KERASTUNER_ORACLE_PORT": port,
                "CUDA_VISIBLE_DEVICES": "-1",  # it trains nothing, and the GPUs' memory is the trials'
            }
            chief = subprocess.Popen([sys.executable, "-m", "tfx.scripts.run_executor", *sys.argv[1:]], env=environment)
            host = "127.0.0.1"
            # Without it this process would wait for the chief for an hour.
            threading.Thread(target=_end_with, args=[chief], daemon=True).start()
        os.environ.update(KERASTUNER_TUNER_ID=f"tuner{index}", KERASTUNER_ORACLE_IP=host, KERASTUNER_ORACLE_PORT=port)
        try:
            tuner.search(input_dict, exec_properties, tempfile.mkdtemp())
            if chief:
                chief.wait()
        finally:
            if chief and chief.poll() is None:
                chief.kill()


def _end_with(chief: subprocess.Popen[bytes]) -> None:
    """End this process when the chief fails; the chief's last lines are in the same log."""
    if chief.wait():
        os._exit(1)


def place_in_cluster(text: str | None) -> tuple[str, int]:
    """Return the address of the first replica and the index of this one, from Vertex AI's CLUSTER_SPEC.

    cloud.google.com/vertex-ai/docs/training/distributed-training#cluster-variables
    """
    try:
        spec = json.loads(text or "")
        # With one replica only, the pool has the name of its task.
        first = spec["cluster"].get("workerpool0") or spec["cluster"]["chief"]
        kind, index = spec["task"]["type"], int(spec["task"]["index"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"the environment variable CLUSTER_SPEC is {text!r} ({type(error).__name__}: {error}); expected that of "
            'Vertex AI: {"cluster": {"workerpool0": ["host:port"], ...}, "task": {"type": "workerpool0", "index": 0}}'
        ) from error
    return first[0], 0 if kind in ("workerpool0", "chief") else 1 + index
