"""Judge the data: ExampleValidator writes findings, DataGate stops the run if one is severe.

These are two steps because TFX deletes the outputs of a failed step, and the anomalies must remain readable.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from tensorflow_metadata.proto.v0 import anomalies_pb2
from tensorflow_transform.tf_metadata import schema_utils
from tfx import types
from tfx.dsl.components.base import executor_spec
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.types import artifact_utils, standard_artifacts
from tfx.utils import writer_utils

from pipeline import filesystem
from pipeline.components.artifacts import read_findings, read_statistics
from pipeline.components.base import Artifacts, DeclaredComponent, files_of, read_schema
from pipeline.errors import UserError
from pipeline.quality import groups, reference, rows
from pipeline.quality.findings import FILE as FINDINGS
from pipeline.quality.findings import Finding, to_json, with_severity
from pipeline.quality.statistics import Remedies, image_column, validate
from pipeline.quality.wrong_values import in_another_notation, with_values
from pipeline.settings.checks import from_json
from pipeline.settings.config import Label
from pipeline.settings.gates import DataChecks
from pipeline.settings.repository import shown

# Where TFX's ExampleValidator writes, for the tools that read its artifacts.
ANOMALIES = "SchemaDiff.pb"


@dataclass(frozen=True)
class ValidatorSettings:
    """What ExampleValidator checks the data by.

    Attributes:
        label: Column of class numbers, or of any numbers in a regression; and its weight.
        checks: Limits that are not in the schema.
        schema: File in which a person edits the schema, for the remedies.
        reference: Where ``quality.reference`` keeps the statistics of pushed models.
        kept: Folder for what is known of each file's rows, where the examples are of a window of spans; or "".
        split_by: What assigns rows to splits: a "hash", the "time" or "files".
    """

    label: Label
    checks: DataChecks
    schema: str | None
    reference: str
    kept: str = ""
    split_by: Literal["hash", "time", "files"] = "hash"


class ExampleValidatorExecutor(BaseExecutor):
    """Write findings about the data; never fail because of them."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Write "anomalies": TFDV's by split, and findings.json."""
        settings = from_json(ValidatorSettings, exec_properties["settings"])
        label, checks, classes = settings.label, settings.checks, len(settings.label.classes)
        statistics_artifact = artifact_utils.get_single_instance(input_dict["statistics"])
        statistics = read_statistics(statistics_artifact)
        schema = read_schema(input_dict["schema"])
        remedies = Remedies(settings.schema and shown(settings.schema), shown(statistics_artifact.uri))

        earlier = reference.read_newest(settings.reference)
        by_split, validated = validate(
            statistics, schema, label.name, checks, remedies, earlier, classes, weight=label.weight
        )
        examples = artifact_utils.get_single_instance(input_dict["examples"])
        image = image_column(schema)
        files_by_split = {split: files_of(examples, split) for split in statistics}
        version = (reference.versions(settings.reference) or [""])[-1]
        findings = list(reference.moved(statistics["train"], earlier.get("train"), version, schema, checks, remedies))
        for split, files in files_by_split.items():
            of_split = [finding for finding in validated if finding.split == split]
            findings += with_values(of_split, rows.tables_of(files), schema, classes)
            findings += in_another_notation(split, rows.sample(files, image), schema)
        counts = {split: message.datasets[0].num_examples for split, message in statistics.items()}
        findings += rows.repeated_rows(files_by_split, counts, checks, image, settings.kept)
        sample = pa.concat_tables(
            [rows.sampled(files_by_split[split], image) for split in ("train", "eval")], promote_options="permissive"
        )
        # No step reads a column that the schema has taken out of use; a new column may become a feature.
        used = schema_utils.schema_as_feature_spec(schema).feature_spec
        unused = {feature.name for feature in schema.feature} - set(used) | {label.weight}
        sample = sample.select([name for name in sample.column_names if name not in unused])
        if classes > 2:
            findings += rows.missing_classes(files_by_split["train"], label.name, label.classes)
        findings += rows.leaks(sample, label.name, checks, classes, image)
        # Later rows of a patient are new if that is what a split by time is for; images are compared by ``rows``.
        if settings.split_by != "time" and not image and sum(counts.values()):
            part = min(1, groups.SAMPLE / sum(counts.values()))
            parts = {
                split: rows.sampled(files, most=math.ceil(part * counts[split]))
                for split, files in files_by_split.items()
                if counts[split]
            }
            by_files = settings.split_by == "files"
            findings += groups.similar_rows(parts, label.name, classes, unused, checks, by_files=by_files)
        findings = with_severity(findings, checks.severity, schema)

        anomalies = artifact_utils.get_single_instance(output_dict["anomalies"])
        _write(anomalies, by_split, findings)
        anomalies.span = statistics_artifact.span


class DataGateExecutor(BaseExecutor):
    """Stop the run if a finding has the severity "stop"."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Raise a UserError if "anomalies" has such a finding."""
        anomalies = artifact_utils.get_single_instance(input_dict["anomalies"])
        stops = [finding for finding in read_findings(anomalies.uri) if finding.severity == "stop"]
        if stops:
            # Some logs show only the first line of an error.
            first, *others = stops
            noun = "finding stops" if not others else "findings stop"
            lines = [f"{len(stops)} {noun} the run before Transform: {first}", f"    {first.remedy}"]
            for finding in others:
                lines += [f"  {finding}", f"    {finding.remedy}"]
            raise UserError("\n".join([*lines, f"  anomalies: {shown(anomalies.uri)}"]))


def _write(artifact: types.Artifact, anomalies: dict[str, anomalies_pb2.Anomalies], findings: list[Finding]) -> None:
    artifact.split_names = artifact_utils.encode_split_names(list(anomalies))
    for split, message in anomalies.items():
        writer_utils.write_anomalies(f"{artifact_utils.get_split_uri([artifact], split)}/{ANOMALIES}", message)
    filesystem.write(f"{artifact.uri}/{FINDINGS}", to_json(findings))
    stops = [finding for finding in findings if finding.severity == "stop"]
    artifact.set_json_value_custom_property(
        "blessed", {split: int(all(split not in stop.split.split(", ") for stop in stops)) for split in anomalies}
    )
    artifact.set_int_custom_property("stops", len(stops))
    artifact.set_int_custom_property("warnings", len(findings) - len(stops))


class ExampleValidator(DeclaredComponent):
    """Compare the data with the schema, with the data of the model pushed last, and with ``ValidatorSettings``."""

    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(ExampleValidatorExecutor)
    INPUTS = {
        "statistics": standard_artifacts.ExampleStatistics,
        "examples": standard_artifacts.Examples,
        "schema": standard_artifacts.Schema,
    }
    OUTPUTS = {"anomalies": standard_artifacts.ExampleAnomalies}


class DataGate(DeclaredComponent):
    """Stop the run if a finding has the severity "stop"."""

    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(DataGateExecutor)
    INPUTS = {"anomalies": standard_artifacts.ExampleAnomalies}
