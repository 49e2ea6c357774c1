"""The data gate, in two steps: ExampleValidator writes down what is wrong, DataGate ends the run if that is grave.

Two, because TFX deletes what a failed step has written, and the anomalies are to be read afterwards.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from tensorflow_metadata.proto.v0 import anomalies_pb2
from tensorflow_transform.tf_metadata import schema_utils
from tfx import types
from tfx.components.statistics_gen import stats_artifact_utils
from tfx.dsl.components.base import executor_spec
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.dsl.io import fileio
from tfx.types import artifact_utils, standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.utils import io_utils, writer_utils

from pipeline.data import files
from pipeline.errors import UserError
from pipeline.settings.config import Label
from pipeline.settings.gates import DataChecks
from pipeline.settings.repository import shown
from pipeline.validation import findings as finding_list
from pipeline.validation import reference, rows
from pipeline.validation.findings import Finding, merged, with_severity
from pipeline.validation.statistics import Draft, Remedies, Statistics, validate

# Where TFX's ExampleValidator writes, for the tools that read its artifacts.
ANOMALIES = "SchemaDiff.pb"


class ValidateExecutor(BaseExecutor):
    """Finds what is wrong with the data, and never fails because of it."""

    def Do(
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Writes "anomalies": TFDV's by split, and findings.json."""
        self._log_startup(input_dict, output_dict, exec_properties)
        settings = json.loads(exec_properties["settings"])
        checks = DataChecks(**{**settings["checks"], "label_share": tuple(settings["checks"]["label_share"])})
        statistics_artifact = artifact_utils.get_single_instance(input_dict["statistics"])
        statistics = read_statistics(statistics_artifact)
        schema_folder = artifact_utils.get_single_uri(input_dict["schema"])
        schema = io_utils.SchemaReader().read(io_utils.get_only_uri_in_dir(schema_folder))
        remedies = Remedies(settings["schema"] and shown(settings["schema"]), shown(statistics_artifact.uri))

        earlier = reference.read_newest(settings["reference"])
        by_split, drafts = validate(
            statistics, schema, settings["label"], checks, remedies, earlier, settings["classes"]
        )
        examples = artifact_utils.get_single_instance(input_dict["examples"])
        examples_by_split = {
            split: files.find(artifact_utils.get_split_uri([examples], split), {split: "*"}).by_split[split]
            for split in statistics
        }
        found = [*_with_values(drafts, examples_by_split)]
        counts = {split: one.datasets[0].num_examples for split, one in statistics.items()}
        found += rows.repeated_rows(examples_by_split, counts, checks)
        sample = pa.concat_tables(
            [rows.sampled(examples_by_split[split]) for split in ("train", "eval")], promote_options="permissive"
        )
        # What the schema has taken out of use, no step reads. A new column may become a feature next.
        used = schema_utils.schema_as_feature_spec(schema).feature_spec
        unused = {feature.name for feature in schema.feature} - set(used)
        sample = sample.select([name for name in sample.column_names if name not in unused])
        found += rows.leaks(sample, settings["label"], checks, settings["classes"])
        found = with_severity(merged(found), checks.severity, schema)
        found.sort(key=lambda one: one.severity != "stop")

        anomalies = artifact_utils.get_single_instance(output_dict["anomalies"])
        _write(anomalies, by_split, found)
        anomalies.span = statistics_artifact.span


class GateExecutor(BaseExecutor):
    """Ends the run when a finding says so."""

    def Do(
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Reads "anomalies".

        Raises:
            UserError: a finding stops the run.
        """
        self._log_startup(input_dict, output_dict, exec_properties)
        anomalies = artifact_utils.get_single_instance(input_dict["anomalies"])
        stops = [one for one in read_findings(anomalies.uri) if one.severity == "stop"]
        if stops:
            # The first stands on the first line, which is all that some logs show of an error.
            first, *others = stops
            noun = "finding stops" if not others else "findings stop"
            lines = [f"{len(stops)} {noun} the run before Transform: {first}", f"    {first.remedy}"]
            for one in others:
                lines += [f"  {one}", f"    {one.remedy}"]
            raise UserError("\n".join([*lines, f"  anomalies: {shown(anomalies.uri)}"]))


def read_findings(anomalies_uri: str) -> list[Finding]:
    """The findings that ExampleValidator wrote."""
    with fileio.open(f"{anomalies_uri}/{finding_list.FILE}") as file:
        return finding_list.from_json(file.read())


def read_statistics(artifact: types.Artifact) -> dict[str, Statistics]:
    """Statistics by split, train first."""
    splits = artifact_utils.decode_split_names(artifact.split_names)
    ordered = sorted(splits, key=lambda name: ("train", "eval", "test").index(name))
    return {split: stats_artifact_utils.load_statistics(artifact, split).proto() for split in ordered}


def _with_values(drafts: list[Draft], examples: Mapping[str, Sequence[str]]) -> list[Finding]:
    """The findings, those about values with the values; only then are the rows read for them."""
    found = []
    for split, of_split in examples.items():
        mine = [draft for draft in drafts if draft.finding.split == split]
        tests = {draft.finding.feature: draft.is_wrong for draft in mine if draft.is_wrong}
        wrong = rows.wrong_values(rows.tables_of(of_split), tests) if tests else {}
        found += [draft.with_values(wrong) for draft in mine]
    return found


def _write(artifact: types.Artifact, anomalies: dict[str, anomalies_pb2.Anomalies], found: list[Finding]) -> None:
    artifact.split_names = artifact_utils.encode_split_names(list(anomalies))
    for split, one in anomalies.items():
        writer_utils.write_anomalies(f"{artifact_utils.get_split_uri([artifact], split)}/{ANOMALIES}", one)
    io_utils.write_string_file(f"{artifact.uri}/{finding_list.FILE}", finding_list.to_json(found))
    stops = [one for one in found if one.severity == "stop"]
    artifact.set_json_value_custom_property(
        "blessed", {split: int(all(split not in one.split.split(", ") for one in stops)) for split in anomalies}
    )
    artifact.set_int_custom_property("stops", len(stops))
    artifact.set_int_custom_property("warnings", len(found) - len(stops))


class ExampleValidatorSpec(ComponentSpec):
    """Ports of ExampleValidator."""

    PARAMETERS = {"settings": ExecutionParameter(type=str), "code": ExecutionParameter(type=str)}
    INPUTS = {
        "statistics": ChannelParameter(type=standard_artifacts.ExampleStatistics),
        "examples": ChannelParameter(type=standard_artifacts.Examples),
        "schema": ChannelParameter(type=standard_artifacts.Schema),
    }
    OUTPUTS = {"anomalies": ChannelParameter(type=standard_artifacts.ExampleAnomalies)}


class ExampleValidator(BaseComponent):
    """Writes down what is wrong with the data."""

    SPEC_CLASS = ExampleValidatorSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(ValidateExecutor)

    def __init__(
        self,
        statistics: types.BaseChannel,
        examples: types.BaseChannel,
        schema: types.BaseChannel,
        *,
        label: Label,
        checks: DataChecks,
        schema_file: str | None,
        reference_root: str,
        code: str,
    ):
        """Makes the component.

        Args:
            statistics: Of every split.
            examples: That the statistics are of.
            schema: That they are held against.
            label: Column of the numbers of classes, or of any numbers.
            checks: Limits that are not in the schema.
            schema_file: Where a person edits the schema, for the remedies.
            reference_root: Where ``reference`` keeps the statistics of pushed models.
            code: Fingerprint of this module, so that a change of it runs the step again.
        """
        settings = {
            "label": label.name,
            "classes": len(label.classes),
            "checks": dataclasses.asdict(checks),
            "schema": schema_file,
            "reference": reference_root,
        }
        super().__init__(
            ExampleValidatorSpec(
                statistics=statistics,
                examples=examples,
                schema=schema,
                settings=json.dumps(settings, sort_keys=True),
                code=code,
                anomalies=types.Channel(type=standard_artifacts.ExampleAnomalies),
            )
        )


class DataGateSpec(ComponentSpec):
    """Ports of DataGate."""

    PARAMETERS: dict[str, ExecutionParameter] = {}
    INPUTS = {"anomalies": ChannelParameter(type=standard_artifacts.ExampleAnomalies)}
    OUTPUTS: dict[str, ChannelParameter] = {}


class DataGate(BaseComponent):
    """Ends the run when the data is not fit for use; steps that use it come after."""

    SPEC_CLASS = DataGateSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(GateExecutor)

    def __init__(self, anomalies: types.BaseChannel):
        """Takes what ExampleValidator wrote."""
        super().__init__(DataGateSpec(anomalies=anomalies))
