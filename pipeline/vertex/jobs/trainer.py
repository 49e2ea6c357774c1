"""The Trainer as a CustomJob of Vertex AI: what its task runs, and what every replica of the job runs."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.types import artifact_utils
from tfx.utils import path_utils

from pipeline.components import trainer
from pipeline.vertex.jobs import launch


class Executor(BaseExecutor):
    """Starts the job and waits for it.

    TFX's own overwrites the command of every pool, so that a Reduction Server would train, and its replicas fail when
    they end before the chief has exported.
    """

    def Do(self, input_dict: launch.Artifacts, output_dict: launch.Artifacts, exec_properties: dict[str, Any]) -> None:
        """Runs the training as a job; takes and fills what TFX's Trainer does."""
        launch.run_as_job(Replica, input_dict, output_dict, exec_properties, beside="model_run")


class Replica(trainer.Executor):
    """The Trainer in one of several processes that train together: only the chief's outputs count."""

    def Do(self, input_dict: launch.Artifacts, output_dict: launch.Artifacts, exec_properties: dict[str, Any]) -> None:
        """Trains; a replica that is not the chief writes where nobody looks."""
        from pipeline.training import strategy

        _, place = strategy.cluster()
        if place == 0:
            super().Do(input_dict, output_dict, exec_properties)
            return
        with tempfile.TemporaryDirectory() as scratch:
            for name, (artifact,) in output_dict.items():
                artifact.uri = os.path.join(scratch, name)
            # TFX looks for a model when run_fn has ended, and training.run exports the chief's only.
            os.makedirs(path_utils.serving_model_dir(artifact_utils.get_single_uri(output_dict["model"])))
            super().Do(input_dict, output_dict, exec_properties)
