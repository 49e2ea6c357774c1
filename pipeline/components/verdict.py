"""The last step: what came of the model, in one artifact; and what the next run needs to know of a pushed one."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from tfx import types
from tfx.dsl.components.base import executor_spec
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.dsl.io import fileio
from tfx.types import artifact_utils, standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from pipeline.components.data_gate import read_statistics
from pipeline.components.evaluator import read_verdict
from pipeline.components.model_check import read_report
from pipeline.validation import reference


class Executor(BaseExecutor):
    """Puts together what the gates said and what the Pusher did."""

    def Do(
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Writes "verdict" as JSON, and keeps the statistics of a pushed model's data for ``validation.reference``."""
        self._log_startup(input_dict, output_dict, exec_properties)
        gates = read_verdict(artifact_utils.get_single_uri(input_dict["model_blessing"]))
        check = read_report(artifact_utils.get_single_uri(input_dict["infra_blessing"]))
        pushed_model = artifact_utils.get_single_instance(input_dict["pushed_model"])
        pushed = bool(pushed_model.get_int_custom_property("pushed"))
        pushed_to = pushed_model.get_string_custom_property("pushed_destination") if pushed else None
        failed = [*gates.failed, *(f"model check: {problem}" for problem in check["problems"])]

        statistics = artifact_utils.get_single_instance(input_dict["statistics"])
        if pushed:
            version = pushed_model.get_string_custom_property("pushed_version")
            reference.write(
                exec_properties["reference"],
                version if version.isdigit() else str(int(time.time())),
                read_statistics(statistics),
                {"pushed_to": pushed_to, "span": statistics.span},
            )

        verdict = artifact_utils.get_single_instance(output_dict["verdict"])
        found = {
            "blessed": not failed,
            "pushed_to": pushed_to,
            "failed": failed,
            "passed_over": list(gates.passed_over),
            "notes": [*gates.notes, *check["notes"]],
            "model_check": check["facts"],
        }
        fileio.makedirs(os.path.dirname(verdict.uri))  # a value's address is a file
        verdict.write(json.dumps(found, indent=2))
        verdict.set_int_custom_property("blessed", int(not failed))
        verdict.set_string_custom_property("reasons", "; ".join(failed))


class VerdictSpec(ComponentSpec):
    """Ports of Verdict."""

    PARAMETERS = {"reference": ExecutionParameter(type=str), "code": ExecutionParameter(type=str)}
    INPUTS = {
        "model_blessing": ChannelParameter(type=standard_artifacts.ModelBlessing),
        "infra_blessing": ChannelParameter(type=standard_artifacts.InfraBlessing),
        "pushed_model": ChannelParameter(type=standard_artifacts.PushedModel),
        "statistics": ChannelParameter(type=standard_artifacts.ExampleStatistics),
    }
    OUTPUTS = {"verdict": ChannelParameter(type=standard_artifacts.String)}


class Verdict(BaseComponent):
    """Says what came of the model."""

    SPEC_CLASS = VerdictSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self,
        model_blessing: types.BaseChannel,
        infra_blessing: types.BaseChannel,
        pushed_model: types.BaseChannel,
        statistics: types.BaseChannel,
        *,
        reference_root: str,
        code: str,
    ):
        """Makes the component.

        Args:
            model_blessing: Of the Evaluator.
            infra_blessing: Of ModelCheck.
            pushed_model: Of the Pusher.
            statistics: Of the data that the model was trained on.
            reference_root: Where they are kept if it was pushed.
            code: Fingerprint of this module, so that a change of it runs the step again.
        """
        super().__init__(
            VerdictSpec(
                model_blessing=model_blessing,
                infra_blessing=infra_blessing,
                pushed_model=pushed_model,
                statistics=statistics,
                reference=reference_root,
                code=code,
                verdict=types.Channel(type=standard_artifacts.String),
            )
        )
