"""In place of TFX's Evaluator: TFMA measures, ``pipeline.evaluation.verdict`` judges.

TFMA's own thresholds know neither a minimum of examples nor intervals, and its failures are not sentences.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import apache_beam as beam
import tensorflow as tf
import tensorflow_model_analysis as tfma
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_metadata.proto.v0 import schema_pb2
from tensorflow_model_analysis import constants
from tensorflow_model_analysis.api.model_eval_lib import default_extractors
from tensorflow_model_analysis.extractors import extractor, unbatch_extractor
from tensorflow_model_analysis.proto import config_pb2
from tfx import types
from tfx.components.evaluator import constants as evaluator_constants
from tfx.dsl.components.base import executor_spec
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.io import fileio
from tfx.types import artifact_utils, standard_artifacts, standard_component_specs
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.utils import io_utils, path_utils, proto_utils
from tfx_bsl.public import tfxio
from tfx_bsl.tfxio import tensor_adapter

from pipeline.components.beam_pipeline import BeamExecutor
from pipeline.components.blocks import ReadBlocks, files_of
from pipeline.data import files
from pipeline.data.tfrecord_files import read_records
from pipeline.evaluation import slicing
from pipeline.evaluation.tfma_config import BASELINE, TAKE_ARRAYS, as_measured, eval_config, read_metrics, task_in
from pipeline.evaluation.verdict import Verdict, judge
from pipeline.serving.export_format import ROWS_SIGNATURE, examples_signature, read_inputs
from pipeline.settings import gates
from pipeline.settings.config import Label
from pipeline.settings.gates import Evaluation
from pipeline.settings.tasks import Task

VERDICT = "verdict.json"
# Beside the verdict: what the Pusher writes into the manifest of a version.
MEASURED = "measured.json"
# Rows that a baseline is asked before it may be compared with.
PROBE = 100


class Executor(BeamExecutor):
    """Measures with TFMA, judges by our gates, and blesses."""

    def Do(
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Writes "evaluation" and "blessing", with the verdict beside BLESSED or NOT_BLESSED."""
        self._log_startup(input_dict, output_dict, exec_properties)
        settings = gates.from_json(exec_properties["gates"])
        inputs, notes = dict(input_dict), []
        if inputs.get("baseline_model"):
            problem, differs = examine_baseline(inputs)
            if problem:
                notes.append(f"{problem}; max_drop was not judged")
                del inputs["baseline_model"]
            elif differs:
                notes.append(differs)
        elif settings.baseline != gates.NO_BASELINE and any(
            getattr(gate, "max_drop", None) is not None for gate in settings.gates
        ):
            notes.append("there is no earlier model to compare with; max_drop was not judged")
        schema_path = io_utils.get_only_uri_in_dir(artifact_utils.get_single_uri(inputs["schema"]))
        evaluation = artifact_utils.get_single_uri(output_dict["evaluation"])
        config = proto_utils.json_to_proto(
            exec_properties[standard_component_specs.EVAL_CONFIG_KEY], config_pb2.EvalConfig()
        )
        with self._make_beam_pipeline() as pipeline:
            schema = io_utils.SchemaReader().read(schema_path)
            _ = pipeline | Measure(inputs, config, schema, evaluation, settings.logits)

        against = read_metrics(evaluation, BASELINE) if inputs.get("baseline_model") else None
        metrics = read_metrics(evaluation)
        verdict = judge(settings, metrics, against, tuple(notes))
        blessing = artifact_utils.get_single_instance(output_dict["blessing"])
        bless(blessing, inputs, verdict)
        with fileio.open(schema_path, "rb") as file:
            schema_sha256 = hashlib.sha256(file.read()).hexdigest()
        measured = {
            "metrics": metrics["overall"],
            "data_span": artifact_utils.get_single_instance(inputs["examples"]).span,
            "schema_sha256": schema_sha256,
        }
        io_utils.write_string_file(f"{blessing.uri}/{MEASURED}", json.dumps(measured))


class Measure(beam.PTransform):
    """The Beam graph of the measurement: TFMA's, of the split "test", in blocks of a fixed size."""

    def __init__(
        self,
        inputs: dict[str, list[types.Artifact]],
        config: config_pb2.EvalConfig,
        schema: schema_pb2.Schema,
        to: str,
        logits: bool = False,
    ):
        super().__init__()
        # As TFX's Evaluator does: a spec for each model.
        self._config = tfma.utils.update_eval_config_with_defaults(
            config, has_baseline=bool(inputs.get("baseline_model")), rubber_stamp=True
        )
        self._folders = [
            _folder_of(inputs["baseline_model" if spec.is_baseline else "model"][0])
            for spec in self._config.model_specs
        ]
        self._examples = files_of(artifact_utils.get_single_instance(inputs["examples"]), "test")
        self._schema = schema
        self._to = to
        self._logits = logits

    def expand(self, pipeline: beam.Pipeline) -> Any:
        """Returns what TFMA's writers return."""
        models = [
            tfma.default_eval_shared_model(folder, model_name=spec.name, eval_config=self._config)
            for spec, folder in zip(self._config.model_specs, self._folders, strict=True)
        ]
        models = models if len(models) > 1 else models[0]
        raw = tfma.ARROW_INPUT_COLUMN
        tensors = tfxio.TFExampleRecord(
            file_pattern="", schema=self._schema, raw_record_column_name=raw, telemetry_descriptors=["Evaluator"]
        ).TensorAdapterConfig()
        return (
            pipeline
            | "Examples" >> ReadBlocks(self._examples, self._schema, raw)
            | tfma.ExtractEvaluateAndWriteResults(
                eval_shared_model=models,
                eval_config=self._config,
                extractors=extractors_of(self._config, models, tensors, self._logits),
                output_path=self._to,
                tensor_adapter_config=tensors,
            )
        )


def bless(blessing: types.Artifact, inputs: dict[str, list[types.Artifact]], verdict: Verdict) -> None:
    """Writes the blessing as TFX's Evaluator does, and the verdict with it.

    A model that ModelCheck has refused is not blessed, however good: it would be what the next one is compared with.
    """
    refused = [one for one in inputs.get("infra_blessing", []) if not one.get_int_custom_property("blessed")]
    blessed = verdict.blessed and not refused
    for key, uri_key, id_key in (
        (
            "model",
            evaluator_constants.ARTIFACT_PROPERTY_CURRENT_MODEL_URI_KEY,
            evaluator_constants.ARTIFACT_PROPERTY_CURRENT_MODEL_ID_KEY,
        ),
        (
            "baseline_model",
            evaluator_constants.ARTIFACT_PROPERTY_BASELINE_MODEL_URI_KEY,
            evaluator_constants.ARTIFACT_PROPERTY_BASELINE_MODEL_ID_KEY,
        ),
    ):
        if inputs.get(key):
            blessing.set_string_custom_property(uri_key, inputs[key][0].uri)
            blessing.set_int_custom_property(id_key, inputs[key][0].id)
    blessing.set_int_custom_property("blessed", int(blessed))
    reasons = [*verdict.failed, *(one.get_string_custom_property("reasons") for one in refused)]
    blessing.set_string_custom_property("reasons", "; ".join(reasons))
    mark = evaluator_constants.BLESSED_FILE_NAME if blessed else evaluator_constants.NOT_BLESSED_FILE_NAME
    io_utils.write_string_file(f"{blessing.uri}/{mark}", "")
    io_utils.write_string_file(f"{blessing.uri}/{VERDICT}", verdict.to_json())


def read_verdict(blessing_uri: str) -> Verdict:
    """The verdict that stands beside a blessing."""
    with fileio.open(f"{blessing_uri}/{VERDICT}") as file:
        return Verdict.from_json(file.read())


def read_measured(blessing_uri: str) -> dict[str, Any]:
    """Metrics on all rows, span and schema that a blessing stands on; empty beside one of TFX's own Evaluator."""
    path = f"{blessing_uri}/{MEASURED}"
    if not fileio.exists(path):
        return {}
    with fileio.open(path) as file:
        measured: dict[str, Any] = json.load(file)
        return measured


def examine_baseline(inputs: dict[str, list[types.Artifact]]) -> tuple[str | None, str | None]:
    """Why a baseline cannot be compared with, or how its columns differ from the candidate's; None for nothing."""
    baseline, candidate = _folder_of(inputs["baseline_model"][0]), _folder_of(inputs["model"][0])
    name = f"the baseline {baseline}"
    try:
        signatures = tf.saved_model.load(baseline).signatures
    except Exception as error:
        return f"{name} no longer loads: {_first_line(error)}", None
    examples = artifact_utils.get_split_uri(inputs["examples"], "test")
    records = next(read_records(files.find(examples, {"test": "*"}).by_split["test"][0], PROBE))
    try:
        answer = examples_signature(signatures)
        answer(**{next(iter(answer.structured_input_signature[1])): tf.constant(records)})
    except Exception as error:
        return f"{name} does not answer the rows of today, its schema differs: {_first_line(error)}", None
    gone = sorted(_columns(baseline) - _columns(candidate))
    new = sorted(_columns(candidate) - _columns(baseline))
    if gone or new:
        return None, f"{name} takes other columns: {_list(gone)} are gone since, {_list(new)} are new"
    return None, None


def _folder_of(model: types.Artifact) -> str:
    return str(path_utils.serving_model_path(model.uri, path_utils.is_old_model_artifact(model)))


def _columns(folder: str) -> set[str]:
    """Raw features that the signature for rows takes, read without loading the model."""
    with fileio.open(f"{folder}/saved_model.pb", "rb") as file:
        graph = saved_model_pb2.SavedModel.FromString(file.read()).meta_graphs[0]
    described = read_inputs(folder)
    tensors = graph.signature_def[ROWS_SIGNATURE].inputs
    return {described[tensor]["name"] if tensor in described else tensor for tensor in tensors}


def _list(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


class EvaluatorSpec(ComponentSpec):
    """The ports of TFX's Evaluator that we use, and our gates."""

    PARAMETERS = {
        standard_component_specs.EVAL_CONFIG_KEY: ExecutionParameter(type=config_pb2.EvalConfig),
        "gates": ExecutionParameter(type=str),
        "code": ExecutionParameter(type=str),
    }
    INPUTS = {
        standard_component_specs.EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples),
        standard_component_specs.MODEL_KEY: ChannelParameter(type=standard_artifacts.Model),
        standard_component_specs.BASELINE_MODEL_KEY: ChannelParameter(type=standard_artifacts.Model, optional=True),
        standard_component_specs.SCHEMA_KEY: ChannelParameter(type=standard_artifacts.Schema),
        standard_component_specs.INFRA_BLESSING_KEY: ChannelParameter(type=standard_artifacts.InfraBlessing),
    }
    OUTPUTS = {
        standard_component_specs.EVALUATION_KEY: ChannelParameter(type=standard_artifacts.ModelEvaluation),
        standard_component_specs.BLESSING_KEY: ChannelParameter(type=standard_artifacts.ModelBlessing),
    }


class Evaluator(BaseComponent):
    """Judges a model on the test split."""

    SPEC_CLASS = EvaluatorSpec
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(Executor)

    def __init__(
        self,
        examples: types.BaseChannel,
        model: types.BaseChannel,
        schema: types.BaseChannel,
        infra_blessing: types.BaseChannel,
        settings: Evaluation,
        label: Label,
        code: str,
        baseline_model: types.BaseChannel | None = None,
    ):
        """Makes the component.

        Args:
            examples: With a split "test".
            model: The candidate.
            schema: Of the examples.
            infra_blessing: Of ModelCheck.
            settings: Gates and slices.
            label: What is predicted.
            code: Fingerprint of this module, so that a change of it runs the step again.
            baseline_model: To compare with.
        """
        super().__init__(
            EvaluatorSpec(
                examples=examples,
                model=model,
                baseline_model=baseline_model,
                schema=schema,
                infra_blessing=infra_blessing,
                eval_config=eval_config(settings, label),
                gates=gates.to_json(settings),
                code=code,
                evaluation=types.Channel(type=standard_artifacts.ModelEvaluation),
                blessing=types.Channel(type=standard_artifacts.ModelBlessing),
            )
        )


def extractors_of(
    config: config_pb2.EvalConfig,
    models: Any = None,
    tensors: tensor_adapter.TensorAdapterConfig | None = None,
    logits: bool = False,
) -> list[extractor.Extractor]:
    """TFMA's extractors, with fewer Python objects made of a batch.

    Where the metrics take arrays, all rows of a slice go to them together. Where they do not, TFMA takes batches apart,
    which makes an object of every feature of every example: what no metric or slice reads is left out before that.
    """
    extractors: list[extractor.Extractor] = default_extractors(
        eval_shared_model=models, eval_config=config, tensor_adapter_config=tensors
    )
    unbatch = unbatch_extractor.UNBATCH_EXTRACTOR_STAGE_NAME
    place = [one.stage_name for one in extractors].index(unbatch)
    extractors.insert(place, extractor.Extractor("Answers", beam.Map(_answered, task_in(config), logits)))
    if {one.class_name for spec in config.metrics_specs for one in spec.metrics} <= TAKE_ARRAYS:
        return slicing.by_slice(extractors, config)
    needed = slicing.columns_of(config)
    extractors.insert(place + 1, extractor.Extractor("KeepSlicedFeatures", beam.Map(_keep, needed)))
    return extractors


def _answered(batch: dict[str, Any], task: Task, logits: bool) -> dict[str, Any]:
    predictions = as_measured(batch[constants.PREDICTIONS_KEY], task, logits)
    return {**batch, constants.PREDICTIONS_KEY: predictions}


def _keep(batch: dict[str, Any], needed: set[str]) -> dict[str, Any]:
    """The batch with the features that are needed, and without the serialized examples."""
    kept = {key: value for key, value in batch.items() if key != constants.INPUT_KEY}
    for key in (constants.FEATURES_KEY, constants.TRANSFORMED_FEATURES_KEY):
        if isinstance(kept.get(key), dict):
            kept[key] = {name: value for name, value in kept[key].items() if name in needed}
    return kept
