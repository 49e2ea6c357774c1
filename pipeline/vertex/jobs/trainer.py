"""Run the Trainer as a CustomJob of Vertex AI: the executor of its task, and that of every replica of the job."""

import os
import tempfile
from typing import Any

from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.types import artifact_utils
from tfx.utils import path_utils

from pipeline.components import trainer
from pipeline.components.base import Artifacts
from pipeline.vertex.jobs import launch


class TrainerJobExecutor(BaseExecutor):
    """Start the job and wait for it.

    TFX's own overwrites the command of every pool, so that a Reduction Server would train, and its replicas fail when
    they end before the chief has exported.
    """

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Run the training as a job; inputs and outputs are those of TFX's Trainer."""
        launch.run_as_job(TrainerReplica, input_dict, output_dict, exec_properties, beside="model_run")


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
