"""Collect the results of all gates and the push in one artifact, and keep the reference for the next run's data."""

import dataclasses
import json
import time
from typing import Any

from tfx import types
from tfx.dsl.components.base import executor_spec
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.types import artifact_utils, standard_artifacts

from pipeline import filesystem
from pipeline.components import artifacts
from pipeline.components.base import Artifacts, DeclaredComponent
from pipeline.quality import reference


class VerdictExecutor(BaseExecutor):
    """Combine the results of the gates and of the Pusher."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Write "verdict" as JSON, and keep the statistics of a pushed model for ``quality.reference``."""
        blessing = artifact_utils.get_single_uri(input_dict["model_blessing"])
        gates = artifacts.read_gate_result(blessing)
        check = artifacts.read_model_report(artifact_utils.get_single_uri(input_dict["infra_blessing"]))
        pushed_model = artifact_utils.get_single_instance(input_dict["pushed_model"])
        pushed = bool(pushed_model.get_int_custom_property("pushed"))
        pushed_to = pushed_model.get_string_custom_property("pushed_destination") if pushed else None
        failed = [*(f"model check: {problem}" for problem in check["problems"]), *gates.failed]  # the root first

        statistics = artifact_utils.get_single_instance(input_dict["statistics"])
        if pushed:
            version = pushed_model.get_string_custom_property("pushed_version")
            reference.write(
                json.loads(exec_properties["settings"])["reference"],
                version if version.isdigit() else str(int(time.time())),
                artifacts.read_statistics(statistics),
                {"pushed_to": pushed_to, "span": statistics.span},
                artifacts.read_predictions(blessing),
            )

        verdict = artifact_utils.get_single_instance(output_dict["verdict"])
        content = {
            **dataclasses.asdict(gates),
            "blessed": not failed,
            "pushed_to": pushed_to,
            "failed": failed,
            "notes": [*gates.notes, *check["notes"]],
            "threshold": artifacts.read_measured(blessing).get("threshold"),
            "model_check": check["facts"],
            "baselines": artifacts.read_baselines(artifact_utils.get_single_uri(input_dict["baselines"])),
        }
        filesystem.write(verdict.uri, json.dumps(content, indent=2))  # the address of a value is a file
        verdict.set_int_custom_property("blessed", int(not failed))
        verdict.set_string_custom_property("reasons", "; ".join(failed))


class Verdict(DeclaredComponent):
    """Put the results of all gates and the push into one artifact."""

    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(VerdictExecutor)
    INPUTS = {
        "model_blessing": standard_artifacts.ModelBlessing,
        "infra_blessing": standard_artifacts.InfraBlessing,
        "pushed_model": standard_artifacts.PushedModel,
        "statistics": standard_artifacts.ExampleStatistics,
        "baselines": standard_artifacts.ModelEvaluation,
    }
    OUTPUTS = {"verdict": standard_artifacts.String}

    def __init__(self, *, reference_root: str, **inputs: types.BaseChannel):
        """Create the component; statistics of pushed models are kept in ``reference_root``."""
        super().__init__(settings={"reference": reference_root}, **inputs)
