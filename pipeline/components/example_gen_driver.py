"""Driver of an ExampleGen of images in its container on Vertex AI: TFX's, which looks at no image behind a table."""

import argparse
import json
import sys

from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.components.example_gen import utils
from tfx.orchestration.kubeflow.v2.container import kubeflow_v2_entrypoint_utils
from tfx.orchestration.kubeflow.v2.file_based_example_gen import driver

from pipeline import filesystem
from pipeline.components.arrow_example_gen import fingerprint_of_images


def main(argv: list[str]) -> None:
    """Run TFX's driver, and add the images to the fingerprint that it has written."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.components.example_gen_driver", description=__doc__)
    parser.add_argument("--json_serialized_invocation_args", required=True, help="an ExecutorInput")
    parser.add_argument("--json_serialized_inputs_spec_args", help="for TFX's driver")
    arguments, _ = parser.parse_known_args(argv)  # options of Beam come along
    driver.main(arguments)
    given = pipeline_spec_pb2.ExecutorInput()
    json_format.Parse(arguments.json_serialized_invocation_args, given, ignore_unknown_fields=True)
    properties = kubeflow_v2_entrypoint_utils.parse_execution_properties(
        given.inputs.parameter_values, given.inputs.parameters, None
    )
    written = json.loads(filesystem.read_text(given.outputs.output_file))
    written["parameterValues"][utils.FINGERPRINT_PROPERTY_NAME] += fingerprint_of_images(properties)
    filesystem.write(given.outputs.output_file, json.dumps(written))


if __name__ == "__main__":
    main(sys.argv[1:])
