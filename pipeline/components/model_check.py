"""Asks the exported model what a server will ask it, before it is pushed: fills the role of TFX's InfraValidator.

That one starts a model server in Docker, and not at all on Vertex AI. Here a fresh Python process that can import
nothing but TensorFlow loads the model, on any machine (``model_questions``).
"""

from __future__ import annotations

import base64
import dataclasses
import importlib.metadata
import json
import logging
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_transform.tf_metadata import schema_utils
from tfx import types
from tfx.dsl.components.base import executor_spec
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.dsl.io import fileio
from tfx.types import artifact_utils, standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.utils import io_utils, path_utils

from pipeline.components import model_questions
from pipeline.data import files
from pipeline.data.tfrecord_files import read_records
from pipeline.serving.export_format import read_inputs
from pipeline.settings.config import Label
from pipeline.settings.gates import ModelChecks
from pipeline.settings.tasks import ANSWERS, task_of
from pipeline.training.predictions import PREDICTIONS, ROWS

REPORT = "model_check.json"
# Rows with their answers, for who asks the model where it serves: {"tolerance": ..., "rows": [{"instance", "answer"}]}.
SMOKE_ROWS = "smoke_rows.json"
# As TFX's InfraValidator names them.
BLESSED, NOT_BLESSED = "INFRA_BLESSED", "INFRA_NOT_BLESSED"
logger = logging.getLogger("pipeline")
# Of this repository, which is no installed package on a workstation.
OURS = ("configs", "models", "pipeline")
# TensorFlow brings it along, a model server does not.
KERAS = "keras"


class Executor(BaseExecutor):
    """Blesses a model that answers."""

    def Do(
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Writes "blessing", TFX's InfraBlessing, with the report beside it."""
        self._log_startup(input_dict, output_dict, exec_properties)
        settings = json.loads(exec_properties["settings"])
        model = artifact_utils.get_single_instance(input_dict["model"])
        folder = path_utils.serving_model_path(model.uri, path_utils.is_old_model_artifact(model))
        schema_folder = artifact_utils.get_single_uri(input_dict["schema"])
        schema = io_utils.SchemaReader().read(io_utils.get_only_uri_in_dir(schema_folder))
        spec = schema_utils.schema_as_feature_spec(schema).feature_spec
        spec.pop(settings["label"], None)
        examples = artifact_utils.get_split_uri(input_dict["examples"], "eval")
        first = _first_rows(list(files.find(examples, {"eval": "*"}).by_split["eval"]), ROWS)
        report = ask(
            {
                **settings,
                "answer": ANSWERS[task_of(len(settings["classes"]))],
                "model": folder,
                "examples": [base64.b64encode(row).decode() for row in first],
                "training": _predictions(artifact_utils.get_single_uri(input_dict["model_run"])),
                "optional": sorted(name for name, one in spec.items() if not isinstance(one, tf.io.FixedLenFeature)),
                "text": sorted(name for name, one in spec.items() if getattr(one, "dtype", None) == tf.string),
                "columns": {tensor: one["name"] for tensor, one in read_inputs(folder).items()},
                "refused": [*OURS, KERAS, *not_tensorflow()],
            }
        )
        report["facts"]["size_bytes"] = _size(folder)

        blessing = artifact_utils.get_single_instance(output_dict["blessing"])
        blessed = not report["problems"]
        mark = BLESSED if blessed else NOT_BLESSED
        io_utils.write_string_file(f"{blessing.uri}/{mark}", "")
        rows = {"tolerance": settings["tolerance"], "rows": report.pop("rows", [])}
        io_utils.write_string_file(f"{blessing.uri}/{SMOKE_ROWS}", json.dumps(rows))
        io_utils.write_string_file(f"{blessing.uri}/{REPORT}", json.dumps(report, indent=2))
        blessing.set_int_custom_property("blessed", int(blessed))
        blessing.set_int_custom_property("has_model", 0)
        blessing.set_string_custom_property("reasons", "; ".join(report["problems"]))
        for name, fact in report["facts"].items():
            blessing.set_float_custom_property(name, float(fact))


def ask(questions: dict[str, Any]) -> dict[str, Any]:
    """Runs ``model_questions`` in a fresh process; returns its answers, or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "questions.json"), Path(folder, "answers.json")
        asked.write_text(json.dumps(questions), encoding="utf-8")
        command = [sys.executable, "-I", model_questions.__file__, str(asked), str(answered)]
        problem = ""
        try:
            asking = subprocess.run(
                command, check=False, timeout=questions["timeout"], capture_output=True, text=True, errors="replace"
            )
            logger.info("What the process said that asked the model:\n%s%s", asking.stdout, asking.stderr)
            if asking.returncode:
                last = (asking.stderr.strip().splitlines() or ["nothing"])[-1]
                problem = f"the process that asks the exported model ended with code {asking.returncode}, saying {last}"
        except subprocess.TimeoutExpired:
            problem = f"the exported model has not answered within {questions['timeout']} seconds"
        if problem:
            return {"problems": [problem], "notes": [], "facts": {}}
        answers: dict[str, Any] = json.loads(answered.read_text(encoding="utf-8"))
        return answers


def not_tensorflow() -> list[str]:
    """Installed packages, as they are imported, that TensorFlow does not bring along."""
    brought: set[str] = set()
    pending = ["tensorflow"]
    while pending:
        name = _normal(pending.pop())
        if name in brought:
            continue
        brought.add(name)
        try:
            required = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        pending += [re.split(r"[^\w.-]", one)[0] for one in required if "extra ==" not in one]
    installed = importlib.metadata.packages_distributions()
    return sorted(name for name, owners in installed.items() if not brought & {_normal(owner) for owner in owners})


def read_report(blessing_uri: str) -> dict[str, Any]:
    """The answers that stand beside a blessing."""
    with fileio.open(f"{blessing_uri}/{REPORT}") as file:
        report: dict[str, Any] = json.load(file)
        return report


def read_smoke_rows(blessing_uri: str) -> dict[str, Any]:
    """Rows with their answers that stand beside a blessing; none beside one of TFX's own InfraValidator."""
    path = f"{blessing_uri}/{SMOKE_ROWS}"
    if not fileio.exists(path):
        return {"tolerance": 0.0, "rows": []}
    with fileio.open(path) as file:
        rows: dict[str, Any] = json.load(file)
        return rows


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _first_rows(of: list[str], most: int) -> list[bytes]:
    rows: list[bytes] = []
    for file in of:
        for block in read_records(file, most):
            rows += block
            if len(rows) >= most:
                return rows[:most]
    return rows


def _predictions(model_run: str) -> list[float] | None:
    """What the model said of the same rows in training; None where its run_fn has not written it."""
    path = f"{model_run}/{PREDICTIONS}"
    if not fileio.exists(path):
        return None
    with fileio.open(path, "rb") as file:
        return [float(value) for value in np.frombuffer(file.read(), np.float32)]


def _size(folder: str) -> int:
    found = [f"{path}/{name}" for path, _, names in tf.io.gfile.walk(folder) for name in names]
    return sum(tf.io.gfile.stat(path).length for path in found)


class ModelCheckSpec(ComponentSpec):
    """Ports of ModelCheck."""

    PARAMETERS = {"settings": ExecutionParameter(type=str), "code": ExecutionParameter(type=str)}
    INPUTS = {
        "model": ChannelParameter(type=standard_artifacts.Model),
        "model_run": ChannelParameter(type=standard_artifacts.ModelRun),
        "examples": ChannelParameter(type=standard_artifacts.Examples),
        "schema": ChannelParameter(type=standard_artifacts.Schema),
    }
    OUTPUTS = {"blessing": ChannelParameter(type=standard_artifacts.InfraBlessing)}


class ModelCheck(BaseComponent):
    """Asks the exported model raw rows and blesses it if it answers as it did in training."""

    SPEC_CLASS = ModelCheckSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self,
        model: types.BaseChannel,
        model_run: types.BaseChannel,
        examples: types.BaseChannel,
        schema: types.BaseChannel,
        *,
        checks: ModelChecks,
        label: Label,
        threshold: float,
        logits: bool,
        code: str,
    ):
        """Makes the component.

        Args:
            model: As the Trainer exported it.
            model_run: Where the Trainer wrote what the model said of the first rows of eval.
            examples: Raw, with a split "eval".
            schema: Of the examples.
            checks: Tolerance and timeout.
            label: Its classes are what the model answers in words.
            threshold: Of two classes, the probability from which it answers the second.
            logits: Whether it answers logits.
            code: Fingerprint of this module, so that a change of it runs the step again.
        """
        settings = {
            **dataclasses.asdict(checks),
            "label": label.name,
            "classes": list(label.classes),
            "threshold": threshold,
            "logits": logits,
        }
        super().__init__(
            ModelCheckSpec(
                model=model,
                model_run=model_run,
                examples=examples,
                schema=schema,
                settings=json.dumps(settings, sort_keys=True),
                code=code,
                blessing=types.Channel(type=standard_artifacts.InfraBlessing),
            )
        )
