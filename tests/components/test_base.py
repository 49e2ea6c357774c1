"""Components made from a declaration, and the fingerprint of their code."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tfx.types import Channel, standard_artifacts

from pipeline.components.data_gate import DataGate
from pipeline.components.schema_gen import SchemaGen
from pipeline.components.verdict import Verdict
from pipeline.graph import create_pipeline
from pipeline.packaging.fingerprints import fingerprint_of, repository_modules
from pipeline.settings.config import load_config
from pipeline.settings.target import Target

ROOT = Path(__file__).resolve().parents[2]


def test_every_step_of_ours_carries_the_fingerprint_of_its_executors_code(few_flights, tmp_path):
    flights = load_config(ROOT / "configs/flights.py").with_paths_from(ROOT)
    config = replace(flights, data=replace(flights.data, path=str(few_flights)))
    components = create_pipeline(config, Target.local(tmp_path, config.name)).components
    executors = {one.id: one.executor_spec.executor_class for one in components if hasattr(one, "spec")}
    assert len(executors) == 13
    for component in components:
        if component.id in executors:
            module = sys.modules[executors[component.id].__module__]
            assert component.exec_properties["code"] == fingerprint_of(Path(module.__file__)), component.id


@pytest.mark.parametrize(
    "step", ["arrow_example_gen", "statistics_gen", "schema_gen", "data_gate", "transform", "verdict"]
)
def test_an_edit_of_the_training_library_is_none_of_a_step_that_does_not_train(step):
    source = (ROOT / f"pipeline/components/{step}.py").read_text()
    assert ROOT / "pipeline/training/input_pipeline.py" not in repository_modules(source)


def test_the_class_of_a_component_is_its_id_and_its_ports_have_the_declared_types():
    component = SchemaGen(statistics=Channel(standard_artifacts.ExampleStatistics))
    assert component.id == "SchemaGen"
    assert component.inputs["statistics"].type is standard_artifacts.ExampleStatistics
    assert component.outputs["schema"].type is standard_artifacts.Schema
    assert json.loads(component.exec_properties["settings"]) == {}


def test_settings_reach_the_executor():
    channels = {name: Channel(kind) for name, kind in Verdict.INPUTS.items()}
    properties = Verdict(reference_root="here", **channels).exec_properties
    assert json.loads(properties["settings"]) == {"reference": "here"}


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ({}, ValueError, "Missing argument 'anomalies'"),
        ({"anomaly": Channel(standard_artifacts.ExampleAnomalies)}, ValueError, "anomal"),
        ({"anomalies": Channel(standard_artifacts.Schema)}, TypeError, "anomalies.*ExampleAnomalies.*Schema"),
    ],
)
def test_a_wrong_input_is_refused_with_its_name(inputs, error, message):
    with pytest.raises(error, match=message):
        DataGate(**inputs)
