"""Check the exported model as a server will use it, before it is pushed, instead of TFX's InfraValidator.

TFX's needs Docker for a model server and does not run on Vertex AI. Here a Python process that can import only
TensorFlow (``tensorflow_process``) loads and checks the model (``model_probe``).
"""

import base64
import contextlib
import dataclasses
import itertools
import json
import logging
import os
import tempfile
from typing import IO, Any

import numpy as np
import tensorflow as tf
from tensorflow_transform.tf_metadata import schema_utils
from tfx import types
from tfx.dsl.components.base import executor_spec
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.types import artifact_utils, standard_artifacts

from pipeline import filesystem
from pipeline.components import model_probe
from pipeline.components.artifacts import MODEL_REPORT, SMOKE_ROWS
from pipeline.components.base import Artifacts, DeclaredComponent, files_of, read_schema, serving_model_folder
from pipeline.components.tensorflow_process import TensorflowProcess, take_ahead
from pipeline.data.tfrecord_files import read_records
from pipeline.model.export_format import read_inputs, threshold_of
from pipeline.model.outside_operations import outside_operations
from pipeline.processes import add_cpu_seconds
from pipeline.quality.statistics import image_column
from pipeline.settings.config import Label
from pipeline.settings.gates import ModelChecks, Threshold
from pipeline.settings.tasks import ANSWERS, task_of
from pipeline.training.export import PREDICTIONS, ROWS, not_served

# As TFX's InfraValidator names them.
BLESSED, NOT_BLESSED = "INFRA_BLESSED", "INFRA_NOT_BLESSED"
# Images of a model that may take a second for each, and bytes of rows: the process gets them as JSON.
IMAGE_ROWS, MOST_BYTES = 64, 64 << 20
logger = logging.getLogger("pipeline")


class ModelCheckExecutor(BaseExecutor):
    """Bless a model without problems."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Write "blessing", TFX's InfraBlessing, with the report."""
        settings = json.loads(exec_properties["settings"])
        folder = serving_model_folder(input_dict["model"])
        schema = read_schema(input_dict["schema"])
        image = image_column(schema)
        absent = not_served(schema, settings["label"])
        given = schema_utils.schema_as_feature_spec(schema).feature_spec
        spec = {name: kind for name, kind in given.items() if name not in {*absent, image}}
        files = files_of(artifact_utils.get_single_instance(input_dict["examples"]), "eval")
        records = _first_records(files, IMAGE_ROWS if image else ROWS)
        checked = filesystem.digests(folder)
        request = {
            **settings,
            "threshold": threshold_of(folder, settings["threshold"]),
            "answer": ANSWERS[task_of(len(settings["classes"]))],
            "model": folder,
            "examples": [base64.b64encode(record).decode() for record in records],
            "training": _predictions(artifact_utils.get_single_uri(input_dict["model_run"])),
            "optional": sorted(name for name, kind in spec.items() if not isinstance(kind, tf.io.FixedLenFeature)),
            "text": sorted(name for name, kind in spec.items() if getattr(kind, "dtype", None) == tf.string),
            "image": image,
            "not_served": sorted(absent),
            "columns": {tensor: column["name"] for tensor, column in read_inputs(folder).items()},
        }
        reached, notes = outside_operations(folder)
        problems = [
            f"the exported model {what}, and would do so in every server; a model computes from its rows, variables "
            "and vocabularies only: take the call out of the module file"
            for what in reached
        ]
        # One with problems is not even loaded, which runs its initializers.
        report: dict[str, Any] = {"problems": problems, "notes": [], "facts": {}} if problems else run_probe(request)
        report["notes"] += notes
        report["facts"]["size_bytes"] = _size(folder)
        report["files"] = checked

        blessing = artifact_utils.get_single_instance(output_dict["blessing"])
        blessed = not report["problems"]
        mark = BLESSED if blessed else NOT_BLESSED
        filesystem.write(f"{blessing.uri}/{mark}", "")
        rows = {"tolerance": settings["tolerance"], "rows": report.pop("rows", [])}
        filesystem.write(f"{blessing.uri}/{SMOKE_ROWS}", json.dumps(rows))
        filesystem.write(f"{blessing.uri}/{MODEL_REPORT}", json.dumps(report, indent=2))
        blessing.set_int_custom_property("blessed", int(blessed))
        blessing.set_int_custom_property("has_model", 0)
        blessing.set_string_custom_property("reasons", "; ".join(report["problems"]))
        for name, fact in report["facts"].items():
            blessing.set_float_custom_property(name, float(fact))


def run_probe(request: dict[str, Any]) -> dict[str, Any]:
    """Run ``ModelProbe`` in another process; return its report, or one with the reason for having none."""
    request = {**request, "probe": model_probe.__file__}
    try:
        if ahead := take_ahead():
            try:
                report = ahead.ask(request, request["timeout"])
                add_cpu_seconds(report.pop("cpu_seconds"))
                return report
            except (EOFError, ConnectionError):
                logger.info("The process that was to check the model has exited; a new one is started")
        return _ask_new(request)
    except TimeoutError:
        return _without_answer(f"the exported model has not answered within {request['timeout']} seconds")


def _ask_new(request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as output, contextlib.closing(TensorflowProcess(output)) as process:
        try:
            report = process.ask(request, request["timeout"])
            del report["cpu_seconds"]  # of a child, counted when it has exited
            return report
        except (EOFError, ConnectionError):
            code = process.exit_code()
            last = (_printed(output).strip().splitlines() or ["no message"])[-1]
            return _without_answer(f"the process that checks the exported model ended with code {code}: {last}")
        finally:
            logger.info("Output of the process that checked the model:\n%s", _printed(output))


def _without_answer(problem: str) -> dict[str, Any]:
    return {"problems": [problem], "notes": [], "facts": {}}


def _printed(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode(errors="replace")


def _first_records(files: list[str], count: int) -> list[bytes]:
    """Return the first records, fewer where these are large."""
    records = itertools.chain.from_iterable(block for file in files for block in read_records(file, count))
    kept: list[bytes] = []
    size = 0
    for record in itertools.islice(records, count):
        size += len(record)
        if kept and size > MOST_BYTES:
            break
        kept.append(record)
    return kept


def _predictions(model_run: str) -> list[float] | None:
    """Return the predictions for the same rows in training; None where run_fn has not written them."""
    path = f"{model_run}/{PREDICTIONS}"
    if not filesystem.exists(path):
        return None
    return [float(value) for value in np.frombuffer(filesystem.read_bytes(path), np.float32)]


def _size(folder: str) -> int:
    # In a bucket, walk gives folders with a "/" at the end; a name with "//" is another object.
    paths = [os.path.join(path, name) for path, _, names in tf.io.gfile.walk(folder) for name in names]
    return sum(tf.io.gfile.stat(path).length for path in paths)


class ModelCheck(DeclaredComponent):
    """Bless the exported model if it predicts raw rows as it did in training."""

    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(ModelCheckExecutor)
    INPUTS = {
        "model": standard_artifacts.Model,
        "model_run": standard_artifacts.ModelRun,
        "examples": standard_artifacts.Examples,
        "schema": standard_artifacts.Schema,
    }
    OUTPUTS = {"blessing": standard_artifacts.InfraBlessing}

    def __init__(
        self, *, checks: ModelChecks, label: Label, threshold: Threshold, logits: bool, **inputs: types.BaseChannel
    ):
        """Create the component; inputs are named as in ``INPUTS``."""
        settings = {
            **dataclasses.asdict(checks),
            "label": label.name,
            "classes": list(label.classes),
            "threshold": dataclasses.asdict(threshold) if dataclasses.is_dataclass(threshold) else threshold,
            "logits": logits,
        }
        super().__init__(settings, **inputs)
