"""Take the place of ExampleGen with a sample of the examples that an earlier run has written."""

from typing import Any

from tfx.components.util import examples_utils
from tfx.dsl.components.base import base_executor, executor_spec
from tfx.proto import example_gen_pb2
from tfx.types import artifact_utils, standard_artifacts

from pipeline.components.base import Artifacts, DeclaredComponent
from pipeline.data import sample
from pipeline.data.sample import Sample
from pipeline.settings.checks import from_json


class SampleGenExecutor(base_executor.BaseExecutor):
    """Take a sample."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Write "examples"."""
        examples = artifact_utils.get_single_instance(output_dict["examples"])
        taken = sample.write(from_json(Sample, exec_properties["settings"]), examples.uri)
        examples.split_names = artifact_utils.encode_split_names(list(taken))
        examples_utils.set_payload_format(examples, example_gen_pb2.FORMAT_TF_EXAMPLE)
        examples_utils.set_file_format(examples, "tfrecords_gzip")


class SampleGen(DeclaredComponent):
    """Take a ``Sample`` of the examples of a run."""

    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(SampleGenExecutor)
    OUTPUTS = {"examples": standard_artifacts.Examples}
