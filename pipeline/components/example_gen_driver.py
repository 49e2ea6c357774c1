"""Driver of ExampleGen in its container on Vertex AI, for changes that TFX's does not see: in images, in BigQuery."""

import argparse
import json
import sys
from typing import Any

from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.components.example_gen import driver as tfx_driver
from tfx.components.example_gen import utils
from tfx.orchestration.kubeflow.v2.container import kubeflow_v2_entrypoint_utils
from tfx.orchestration.kubeflow.v2.file_based_example_gen import driver
from tfx.types import artifact_utils, standard_component_specs

from pipeline import filesystem
from pipeline.components.arrow_example_gen import fingerprint_of_files
from pipeline.components.bigquery_example_gen import BigQueryDriver


def main(argv: list[str]) -> None:
    """Write what a driver of TFX writes for Vertex AI's cache, with what ours add to the fingerprint."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.components.example_gen_driver", description=__doc__)
    parser.add_argument("--json_serialized_invocation_args", required=True, help="an ExecutorInput")
    parser.add_argument("--json_serialized_inputs_spec_args", help="for TFX's driver")
    arguments, _ = parser.parse_known_args(argv)  # options of Beam come along
    given = pipeline_spec_pb2.ExecutorInput()
    json_format.Parse(arguments.json_serialized_invocation_args, given, ignore_unknown_fields=True)
    properties = kubeflow_v2_entrypoint_utils.parse_execution_properties(
        given.inputs.parameter_values, given.inputs.parameters, None
    )
    if standard_component_specs.INPUT_BASE_KEY not in properties:
        filesystem.write(given.outputs.output_file, json_format.MessageToJson(_of_queries(given, properties)))
        return
    driver.main(arguments)
    written = json.loads(filesystem.read_text(given.outputs.output_file))
    written["parameterValues"][utils.FINGERPRINT_PROPERTY_NAME] += fingerprint_of_files(properties)
    filesystem.write(given.outputs.output_file, json.dumps(written))


def _of_queries(given: pipeline_spec_pb2.ExecutorInput, properties: dict[str, Any]) -> pipeline_spec_pb2.ExecutorOutput:
    """Return what TFX's driver of files would write, for queries."""
    resolved = BigQueryDriver(None).resolve_exec_properties(properties, None, None)
    output = pipeline_spec_pb2.ExecutorOutput()
    output.parameter_values[utils.SPAN_PROPERTY_NAME].number_value = resolved[utils.SPAN_PROPERTY_NAME]
    for name in (utils.FINGERPRINT_PROPERTY_NAME, standard_component_specs.INPUT_CONFIG_KEY):
        output.parameter_values[name].string_value = resolved[name]
    names: dict[int, str] = {}
    outputs = kubeflow_v2_entrypoint_utils.parse_raw_artifact_dict(given.outputs.artifacts, names)
    examples = artifact_utils.get_single_instance(outputs[standard_component_specs.EXAMPLES_KEY])
    tfx_driver.update_output_artifact(resolved, examples.mlmd_artifact)
    output.artifacts[standard_component_specs.EXAMPLES_KEY].artifacts.add().CopyFrom(
        kubeflow_v2_entrypoint_utils.to_runtime_artifact(examples, names)
    )
    return output


if __name__ == "__main__":
    main(sys.argv[1:])
