"""In place of TFX's Evaluator: TFMA computes the metrics, ``pipeline.quality.verdict`` judges them.

TFMA's own thresholds know neither a minimum of examples nor intervals, and do not explain a failure.
"""

import dataclasses
import hashlib
import json
import logging
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np
import tensorflow as tf
import tensorflow_model_analysis as tfma
from tensorflow_metadata.proto.v0 import schema_pb2
from tensorflow_model_analysis.extractors import Extractor, UnbatchExtractor
from tensorflow_model_analysis.proto import config_pb2
from tfx import types
from tfx.components.evaluator import constants as tfx_names
from tfx.components.evaluator import executor as evaluator_executor
from tfx.dsl.components.base import executor_spec
from tfx.types import artifact_utils, standard_artifacts
from tfx.utils import io_utils
from tfx_bsl.public import tfxio

from pipeline import filesystem
from pipeline.components.artifacts import COVERED, GATE_RESULT, MEASURED, PREDICTIONS, read_baselines
from pipeline.components.base import Artifacts, DeclaredComponent, files_of, read_schema, serving_model_folder
from pipeline.components.earlier_model import examine_baseline
from pipeline.errors import UserError
from pipeline.model.export_format import read_fitted, threshold_of
from pipeline.quality import predictions
from pipeline.quality.predictions import Covered
from pipeline.quality.tfma_config import (
    BASELINE,
    CANDIDATE,
    as_measured,
    eval_config,
    read_metrics,
    task_in,
)
from pipeline.quality.verdict import GateResult, judge
from pipeline.settings import checks, gates
from pipeline.settings.config import Label
from pipeline.settings.gates import Evaluation
from pipeline.settings.tasks import ANSWERS, Task

logger = logging.getLogger("pipeline")
# Remedies for answers that are not numbers.
REMEDIES = {
    CANDIDATE: "preprocessing_fn has to give each missing value a number, and nothing may be divided by what can be 0",
    BASELINE: 'Name another with Evaluation(baseline=...), or none: baseline="none"',
}


@dataclass(frozen=True)
class KeptPredictions:
    """Statistics of the predictions for the test split, by which ``monitor`` judges those for requests.

    Attributes:
        file: Where they are written.
        classes: Of the label; empty where it is a number.
        covered: Where is written how many labels intervals or sets contain; None: the model answers none.
    """

    file: str
    classes: tuple[str, ...]
    covered: str | None = None


class EvaluatorExecutor(evaluator_executor.Executor):
    """Compute metrics with TFMA, judge them by the gates, and bless the model.

    On Vertex AI artifacts have names. TFX's entry point there writes them into a blessing, where the next run looks for
    its baseline, if the executor is one of TFX's Evaluator (``kubeflow_v2_run_executor``).
    """

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Write "evaluation" and "blessing"; the result of the gates goes next to BLESSED or NOT_BLESSED.

        A model that ModelCheck refused is evaluated as far as possible, so that all reasons are known at the same time.

        Raises:
            UserError: the baseline is unusable, and the settings require one.
        """
        try:
            self._judge(input_dict, output_dict, exec_properties)
        except Exception as error:
            if not _refused(input_dict):
                raise
            logger.info("The refused model was not evaluated", exc_info=error)
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}, see the log"
            later = f"the model was not evaluated, which may follow from that: {reason}"
            bless(
                artifact_utils.get_single_instance(output_dict["blessing"]),
                input_dict,
                GateResult(False, (later,)),
            )

    def _judge(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        parameters = json.loads(exec_properties["settings"])
        settings = checks.from_json(Evaluation, parameters["gates"])
        inputs, notes, warnings = dict(input_dict), [], []
        if inputs.get("baseline_model"):
            problem, differs = examine_baseline(inputs)
            if problem and settings.broken_baseline == "fail":
                raise UserError(f'{problem}; name another with Evaluation(baseline=...), or set broken_baseline="warn"')
            if problem:
                warnings.append(f"{problem}; max_drop was not judged")
                del inputs["baseline_model"]
            elif differs:
                notes.append(differs)
        elif settings.baseline != gates.NO_BASELINE and any(
            getattr(gate, "max_drop", None) is not None for gate in settings.gates
        ):
            notes.append("there is no earlier model to compare with; max_drop was not judged")
        evaluation = artifact_utils.get_single_uri(output_dict["evaluation"])
        label = checks.from_json(Label, parameters["label"])
        thresholds = thresholds_of(inputs, settings)
        config = eval_config(settings, label, thresholds)
        blessing = artifact_utils.get_single_instance(output_dict["blessing"])
        fitted = fitted_of(serving_model_folder(inputs["model"]), settings)
        covered = f"{blessing.uri}/{COVERED}" if "coverage" in fitted else None
        kept = KeptPredictions(f"{blessing.uri}/{PREDICTIONS}", label.classes, covered)
        with self._make_beam_pipeline() as pipeline:
            self.evaluate(pipeline, inputs, config, read_schema(inputs["schema"]), evaluation, settings.logits, kept)

        baseline_metrics = None
        if inputs.get("baseline_model"):
            baseline_metrics = read_metrics(evaluation, BASELINE)
            before = [
                f"{gate.metric} {baseline_metrics['overall'][gate.metric]:.4f}"
                for gate in settings.gates
                if isinstance(gate, gates.Gate) and gate.metric in baseline_metrics["overall"]
            ]
            notes.append(f"the baseline {inputs['baseline_model'][0].uri} has {', '.join(before) or 'no such metric'}")
        notes += fitted.get("found", [])
        if covered:
            counts = Covered(**json.loads(filesystem.read_text(covered)))
            notes.append(counts.sentence(fitted["coverage"], fitted["rows"]))
        metrics = read_metrics(evaluation)
        simple_models = read_baselines(artifact_utils.get_single_uri(inputs["baselines"]))
        said = tuple(notes), simple_models, tuple(warnings)
        bless(blessing, inputs, judge(settings, metrics, baseline_metrics, *said, refused=bool(_refused(inputs))))
        schema_path = io_utils.get_only_uri_in_dir(artifact_utils.get_single_uri(inputs["schema"]))
        measured = {
            "metrics": metrics["overall"],
            "threshold": thresholds[CANDIDATE] if label.task == "binary" else None,
            "data_span": artifact_utils.get_single_instance(inputs["examples"]).span,
            "schema_sha256": hashlib.sha256(filesystem.read_bytes(schema_path)).hexdigest(),
        }
        filesystem.write(f"{blessing.uri}/{MEASURED}", json.dumps(measured))

    def evaluate(
        self,
        pipeline: beam.Pipeline,
        inputs: Artifacts,
        config: config_pb2.EvalConfig,
        schema: schema_pb2.Schema,
        output_path: str,
        logits: bool = False,
        keep: "KeptPredictions | None" = None,
    ) -> None:
        """Add TFMA's evaluation of the split "test" to a Beam pipeline."""
        # As TFX's Evaluator does: a spec for each model.
        config = tfma.utils.update_eval_config_with_defaults(
            config, has_baseline=bool(inputs.get("baseline_model")), rubber_stamp=True
        )
        folders = [
            serving_model_folder(inputs["baseline_model" if spec.is_baseline else "model"])
            for spec in config.model_specs
        ]
        models = [
            tfma.default_eval_shared_model(folder, model_name=spec.name, eval_config=config)
            for spec, folder in zip(config.model_specs, folders, strict=True)
        ]
        models = models if len(models) > 1 else models[0]
        files = files_of(artifact_utils.get_single_instance(inputs["examples"]), "test")
        source = tfxio.TFExampleRecord(
            files, schema=schema, raw_record_column_name=tfma.ARROW_INPUT_COLUMN, telemetry_descriptors=["Evaluator"]
        )
        tensors = source.TensorAdapterConfig()
        config, extractors = self.extractors(config, models, tensors, logits, keep)
        _ = (
            pipeline
            | "Examples" >> self.read(source, files, schema)
            | tfma.ExtractEvaluateAndWriteResults(
                eval_shared_model=models,
                eval_config=config,
                extractors=extractors,
                output_path=output_path,
                tensor_adapter_config=tensors,
            )
        )

    def read(self, source: tfxio.TFXIO, files: list[str], schema: schema_pb2.Schema) -> beam.PTransform:
        """Return the transform that reads files of examples as record batches."""
        return source.BeamSource()

    def extractors(
        self,
        config: config_pb2.EvalConfig,
        models: Any = None,
        tensors: tfxio.TensorAdapterConfig | None = None,
        logits: bool = False,
        keep: "KeptPredictions | None" = None,
    ) -> tuple[config_pb2.EvalConfig, list[Extractor]]:
        """Return the config, and TFMA's extractors with ``Predictions`` before TFMA splits batches into rows."""
        extractors: list[Extractor] = tfma.default_extractors(
            eval_shared_model=models, eval_config=config, tensor_adapter_config=tensors
        )
        place = [extractor.stage_name for extractor in extractors].index(UnbatchExtractor().stage_name)
        extractors.insert(place, Extractor("Predictions", Predictions(task_in(config), logits, keep)))
        return config, extractors


def thresholds_of(inputs: Artifacts, settings: Evaluation) -> dict[str, float]:
    """Return each model's decision threshold for the second of two classes, by the model's name for TFMA.

    A baseline without a threshold uses the configured one, or else the candidate's.

    Raises:
        UserError: the Trainer was to choose the candidate's threshold, and the model has none.
    """
    thresholds = {CANDIDATE: threshold_of(serving_model_folder(inputs["model"]), settings.threshold)}
    if inputs.get("baseline_model"):
        is_set = isinstance(settings.threshold, int | float)
        asked = settings.threshold if is_set else thresholds[CANDIDATE]
        thresholds[BASELINE] = threshold_of(serving_model_folder(inputs["baseline_model"]), asked)
    return thresholds


def fitted_of(folder: str, settings: Evaluation) -> dict[str, Any]:
    """Return the values that were fitted on the eval split for a model's answers.

    Raises:
        UserError: a coverage is set, and the model answers no intervals or sets.
    """
    fitted = read_fitted(folder)
    if settings.coverage is not None and "coverage" not in fitted:
        raise UserError(
            f"evaluation.coverage is set, and the model in {folder} answers no intervals or sets: its module file does "
            "not call training.run. Call it, or leave evaluation.coverage out"
        )
    return fitted


def bless(blessing: types.Artifact, inputs: Artifacts, result: GateResult) -> None:
    """Write the blessing as TFX's Evaluator does, and the result of the gates with it.

    A model that ModelCheck rejected is never blessed, because the next model would be compared with it.
    """
    refused = _refused(inputs)
    blessed = result.blessed and not refused
    for key, uri_key, id_key in (
        ("model", tfx_names.ARTIFACT_PROPERTY_CURRENT_MODEL_URI_KEY, tfx_names.ARTIFACT_PROPERTY_CURRENT_MODEL_ID_KEY),
        (
            "baseline_model",
            tfx_names.ARTIFACT_PROPERTY_BASELINE_MODEL_URI_KEY,
            tfx_names.ARTIFACT_PROPERTY_BASELINE_MODEL_ID_KEY,
        ),
    ):
        if inputs.get(key):
            blessing.set_string_custom_property(uri_key, inputs[key][0].uri)
            blessing.set_int_custom_property(id_key, inputs[key][0].id)
    blessing.set_int_custom_property("blessed", int(blessed))
    reasons = [*(f"model check: {check.get_string_custom_property('reasons')}" for check in refused), *result.failed]
    blessing.set_string_custom_property("reasons", "; ".join(reasons))
    mark = tfx_names.BLESSED_FILE_NAME if blessed else tfx_names.NOT_BLESSED_FILE_NAME
    filesystem.write(f"{blessing.uri}/{mark}", "")
    filesystem.write(f"{blessing.uri}/{GATE_RESULT}", result.to_json())


def _refused(inputs: Artifacts) -> list[types.Artifact]:
    return [check for check in inputs.get("infra_blessing", []) if not check.get_int_custom_property("blessed")]


@beam.ptransform_fn
def Predictions(
    batches: beam.PCollection, task: Task, logits: bool, keep: "KeptPredictions | None"
) -> beam.PCollection:
    """Change the predictions in extracts to what the metrics need, and write statistics of the candidate's."""
    measured = batches | "AsMeasured" >> beam.Map(_with_predictions, task, logits)
    if keep:
        # Four bytes a row, all in one place: TFDV's own steps in Beam take one to two seconds for any number of rows.
        values = measured | "Candidate" >> beam.Map(lambda batch: (None, _candidate_values(batch, task)))
        _ = values | beam.GroupByKey() | "Write" >> beam.Map(_write_statistics, keep)
    if keep and keep.covered:
        counts = batches | "Covered" >> beam.Map(lambda batch: (None, _covered(batch)))
        _ = counts | "Together" >> beam.GroupByKey() | "WriteCovered" >> beam.Map(_write_covered, keep.covered)
    return measured


def _with_predictions(batch: dict[str, Any], task: Task, logits: bool) -> dict[str, Any]:
    measured = {**batch, tfma.PREDICTIONS_KEY: as_measured(batch[tfma.PREDICTIONS_KEY], task, logits)}
    _refuse_no_number(measured, task)
    return measured


def _refuse_no_number(batch: dict[str, Any], task: Task) -> None:
    """Raise a UserError if a measured answer is not finite; TFMA's error would print a whole batch of answers."""
    for model in (CANDIDATE, BASELINE):
        answers = _answers_of(batch, model, task)
        if answers is None or answers.dtype.kind != "f":
            continue
        answers = answers.reshape(len(answers), -1)
        bad = np.argwhere(~np.isfinite(answers))
        if len(bad):
            row, place = bad[0]
            raise UserError(
                f"the {model} answers {answers[row, place]} for a row of the test split, expected a number: "
                f"{_in_words(batch[tfma.INPUT_KEY][row])}. {REMEDIES[model]}"
            )


def _answers_of(batch: dict[str, Any], model: str, task: Task) -> np.ndarray | None:
    """Return the measured answers of a model; None if there is no such model."""
    found = batch[tfma.PREDICTIONS_KEY]
    if model == BASELINE and not (isinstance(found, Mapping) and BASELINE in found):
        return None
    while isinstance(found, Mapping):  # by model if there are two, by output if there are several
        found = next(found[name] for name in (model, ANSWERS[task], *found) if name in found)
    return np.asarray(found)


def _in_words(record: bytes) -> str:
    """Return a row, a serialized tf.Example, for a message."""
    words = []
    for name, feature in sorted(tf.train.Example.FromString(record).features.feature.items()):
        kind = feature.WhichOneof("kind")
        values = getattr(feature, kind).value if kind else ()
        shown = " ".join(value.decode(errors="replace") if kind == "bytes_list" else str(value) for value in values[:5])
        words.append(f"{name} {textwrap.shorten(shown, 40) or 'missing'}")
    return textwrap.shorten(", ".join(words), 500, placeholder=" …")


def _candidate_values(batch: dict[str, Any], task: Task) -> np.ndarray:
    """Return the predictions of the judged model, one number per row."""
    answers = _answers_of(batch, CANDIDATE, task)
    assert answers is not None
    return predictions.values_of(answers)


def _covered(batch: dict[str, Any]) -> Covered:
    """Return how many labels of a batch the judged model's intervals or sets contain."""
    outputs, labels = batch[tfma.PREDICTIONS_KEY], batch[tfma.LABELS_KEY]
    while isinstance(labels, Mapping):  # by model
        labels = labels[CANDIDATE]
    return Covered.of(labels, outputs.get(CANDIDATE, outputs))


def _write_covered(grouped: tuple[None, Iterable[Covered]], file: str) -> None:
    filesystem.write(file, json.dumps(dataclasses.asdict(sum(grouped[1], Covered()))))


def _write_statistics(grouped: tuple[None, Iterable[np.ndarray]], keep: "KeptPredictions") -> None:
    statistics = predictions.statistics_of(np.concatenate(list(grouped[1])), keep.classes)
    filesystem.write(keep.file, statistics.SerializeToString())


class Evaluator(DeclaredComponent):
    """Evaluate a model on the test split and judge it by the gates."""

    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(EvaluatorExecutor)
    INPUTS = {
        "examples": standard_artifacts.Examples,
        "model": standard_artifacts.Model,
        "schema": standard_artifacts.Schema,
        "infra_blessing": standard_artifacts.InfraBlessing,
        "baselines": standard_artifacts.ModelEvaluation,
    }
    OPTIONAL_INPUTS = {"baseline_model": standard_artifacts.Model}
    OUTPUTS = {"evaluation": standard_artifacts.ModelEvaluation, "blessing": standard_artifacts.ModelBlessing}

    def __init__(self, *, evaluation: Evaluation, label: Label, **inputs: types.BaseChannel | None):
        """Create the component from gates and slices, the label, and a channel for every input."""
        super().__init__({"gates": checks.to_json(evaluation), "label": checks.to_json(label)}, **inputs)
