"""The driver of an ExampleGen in its container on Vertex AI, called as the compiled job calls it."""

import json
from pathlib import Path
from typing import Any

from tfx.dsl.components.base.base_component import BaseComponent

from pipeline.components import example_gen_driver


def written_on_vertex(component: BaseComponent, output: Path, *beam_args: str) -> dict[str, Any]:
    """Return the ExecutorOutput that the driver writes to a file, with the component's settings as its input."""
    parameters = {
        name: {"intValue" if isinstance(value, int) else "stringValue": value}
        for name, value in component.exec_properties.items()
        if value is not None
    }
    schema = {"instanceSchema": "title: tfx.Examples\ntype: object\n"}
    examples = {"name": "1", "uri": str(output.parent / "examples"), "type": schema}
    given = {
        "inputs": {"parameters": parameters},
        "outputs": {"artifacts": {"examples": {"artifacts": [examples]}}, "outputFile": str(output)},
    }
    arguments = ["--executor_class_path", "of.the.executor", "--json_serialized_invocation_args", json.dumps(given)]
    example_gen_driver.main([*arguments, *beam_args])
    written: dict[str, Any] = json.loads(output.read_text())
    assert written["artifacts"]["examples"]["artifacts"][0]["uri"] == examples["uri"]
    return written
