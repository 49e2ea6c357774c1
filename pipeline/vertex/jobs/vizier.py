"""Run the Tuner as a HyperparameterTuningJob: Vizier chooses the values, and every trial is a separate job.

The module file's ``tuner_fn`` gives the search space, the objective and the number of trials. A trial gets its values
as arguments and reports by cloudml-hypertune, after every epoch when it trains in our loop
(cloud.google.com/vertex-ai/docs/training/using-hyperparameter-tuning).
"""

import logging
import math
import os
import re
import tempfile
from collections.abc import Sequence
from typing import Any

import keras
import keras_tuner
from keras_tuner.engine import hyperparameters as kinds
from keras_tuner.engine.trial import Trial
from keras_tuner.src.engine import tuner_utils
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.utils import json_utils, name_utils

from pipeline.components.base import Artifacts, user_code
from pipeline.components.trainer import reject_infinite_data
from pipeline.components.tuner import prepare, write_files
from pipeline.errors import UserError
from pipeline.training.tuning import Search
from pipeline.vertex.jobs import launch

logger = logging.getLogger("pipeline.vertex")

SCALES = {"linear": "UNIT_LINEAR_SCALE", "log": "UNIT_LOG_SCALE", "reverse_log": "UNIT_REVERSE_LOG_SCALE"}
MOST_VALUES = 1000  # of a discrete parameter (StudySpec.ParameterSpec.DiscreteValueSpec.values)
# Arguments behind it are no options of run_executor; Vertex AI appends a trial's values to the command.
VALUES_FOLLOW = "--"


class VizierJobExecutor(BaseExecutor):
    """Start the job, wait for it, and write the best values as TFX's Tuner does."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Run the search as a job; inputs and outputs are those of TFX's Tuner."""
        setting, given = launch.without_setting(exec_properties)
        with user_code(given) as properties:
            tuner, _ = prepare(input_dict, properties, tempfile.mkdtemp())
            space = tuner.oracle.get_space()
        settings = _settings(exec_properties)
        most = tuner.oracle.max_trials or settings["trials"]  # Hyperband and a grid have no number of trials
        folder = launch.job_folder(output_dict)
        executor = name_utils.get_full_name(TrialExecutor)
        command = [*launch.command_of(executor, input_dict, output_dict, given), VALUES_FOLLOW]
        job = setting["job"]
        trial_job = job.pop("jobSpec")
        # Every trial is one process; side by side are trials.
        trial_job["workerPoolSpecs"] = trial_job["workerPoolSpecs"][:1]
        job |= {
            "studySpec": study_of(space, tuner.oracle.objective, settings.get("minutes")),
            "maxTrialCount": most,
            "parallelTrialCount": min(setting["replicas"], most),
            "maxFailedTrialCount": most,  # the others may still be good
            "trialJobSpec": launch.with_command(trial_job, command, folder),
        }
        trials = launch.run_search(job, setting["parent"], folder)
        if not trials:
            raise UserError("every trial of the search failed; the log of each trial's job says why")
        sign = 1 if tuner.oracle.objective.direction == "max" else -1
        _write(space, sorted(trials, key=lambda trial: sign * trial["measured"], reverse=True), output_dict)


class TrialExecutor(BaseExecutor):
    """Train the model of one trial, by the values in its arguments, and report the objective."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Train with the values behind ``VALUES_FOLLOW``."""
        flags = list(self._extra_flags or ())
        with user_code(exec_properties) as properties:
            tuner, fit_kwargs = prepare(input_dict, properties, tempfile.mkdtemp())
            space, objective = tuner.oracle.get_space(), tuner.oracle.objective
            space.values.update(values_of(space, flags[flags.index(VALUES_FOLLOW) + 1 :]))
            trial = Trial(space, trial_id=os.environ.get("CLOUD_ML_TRIAL_ID", "0"), status="RUNNING")
            reporting = _ReportToVizier(objective.name, _settings(properties).get("head_epochs", 0))
            if isinstance(tuner, Search):
                fit_kwargs = {**fit_kwargs, "callbacks": [reporting]}
            with reject_infinite_data(tuner):
                results = tuner.run_trial(trial, **fit_kwargs)
        measured = tuner_utils.convert_to_metrics_dict(results, objective)[objective.name]
        logger.info("Trial %s: %s %.4f, %s", trial.trial_id, objective.name, measured, space.values)
        if not reporting.hypertune.metrics_queue:
            reporting.hypertune.report_hyperparameter_tuning_metric(objective.name, measured, global_step=1)


class _ReportToVizier(keras.callbacks.Callback):
    """Report the objective after every epoch, so that Vizier can stop the trial's job.

    Epochs in which only the head learns are not reported: the median would judge what most values have no part in yet.
    """

    def __init__(self, metric: str, head_epochs: int):
        import hypertune

        super().__init__()
        # It writes all its reports into the file each time, so there is one for the trial.
        self.hypertune = hypertune.HyperTune()
        self._metric, self._head_epochs = metric, head_epochs

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Report; the first epoch is step 1."""
        if epoch >= self._head_epochs:
            value = (logs or {})[self._metric]
            self.hypertune.report_hyperparameter_tuning_metric(self._metric, value, global_step=epoch + 1)


def study_of(
    space: keras_tuner.HyperParameters, objective: keras_tuner.Objective, minutes: float | None = None
) -> dict[str, Any]:
    """Return KerasTuner's search space and objective as a StudySpec of Vizier that stops bad trials early.

    After ``minutes`` from its start the study ends, with the trials that run then, as soon as one trial has completed.
    """
    limit = {
        "maximumRuntimeConstraint": {"maxDuration": f"{math.ceil(60 * (minutes or 0))}s"},
        "minNumTrials": 1,
        "shouldStopAsap": True,
    }
    return {
        "medianAutomatedStoppingSpec": {},  # the rule of pipeline.training.tuning
        "measurementSelectionType": "BEST_MEASUREMENT",  # as the search on this machine counts trials
        **({"studyStoppingConfig": limit} if minutes else {}),
        "metrics": [{"metricId": objective.name, "goal": "MAXIMIZE" if objective.direction == "max" else "MINIMIZE"}],
        "parameters": [_parameter(parameter) for parameter in space.space if not isinstance(parameter, kinds.Fixed)],
    }


def values_of(space: keras_tuner.HyperParameters, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the values in a trial's arguments, such as ["--units=32.0"], as ``build_model`` gets them."""
    parameters = {parameter.name: parameter for parameter in space.space}
    values = {}
    for argument in arguments:
        name, equals, text = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not equals or name not in parameters:
            raise UserError(
                f"a trial got the argument {argument!r}; expected --name=value with a name of {', '.join(parameters)}"
            )
        values[name] = _value(parameters[name], text)
    return values


def _settings(exec_properties: dict[str, Any]) -> dict[str, Any]:
    """Return what the module file gets as ``fn_args.custom_config``."""
    settings: dict[str, Any] = json_utils.loads(exec_properties["custom_config"])
    return settings


def _parameter(hp: Any) -> dict[str, Any]:
    if hp.conditions:
        parents = ", ".join(sorted({condition.name for condition in hp.conditions}))
        raise UserError(
            f"the hyperparameter {hp.name!r} is only there for some values of {parents}, which a search by Vizier "
            'does not take here; ask for it always, or set search_with="keras_tuner"'
        )
    if re.search(r"\s", hp.name):
        raise UserError(
            f"the hyperparameter {hp.name!r} has a space in its name, which Vizier does not take; write "
            f'{"_".join(hp.name.split())!r}, or set search_with="keras_tuner"'
        )
    spec: dict[str, Any] = {"parameterId": hp.name}
    if isinstance(hp, kinds.Boolean) or (isinstance(hp, kinds.Choice) and isinstance(hp.values[0], (str, bool))):
        return {**spec, "categoricalValueSpec": {"values": [str(value) for value in hp.values]}}
    if isinstance(hp, kinds.Choice):
        return {**spec, "discreteValueSpec": {"values": _discrete(hp)}}
    spec["scaleType"] = SCALES[hp.sampling]
    if hp.step is not None and not (isinstance(hp, kinds.Int) and hp.step == 1 and hp.sampling == "linear"):
        return {**spec, "discreteValueSpec": {"values": _discrete(hp)}}
    if isinstance(hp, kinds.Int):
        return {
            **spec,
            "integerValueSpec": {"minValue": int(hp.min_value), "maxValue": int(hp.max_value)},
        }
    return {**spec, "doubleValueSpec": {"minValue": float(hp.min_value), "maxValue": float(hp.max_value)}}


def _discrete(hp: Any) -> list[float]:
    values = sorted({float(value) for value in hp.values})
    if len(values) > MOST_VALUES:
        raise UserError(
            f"the hyperparameter {hp.name!r} has {len(values):,} values, Vizier takes {MOST_VALUES:,} at most; take "
            'a larger step, or none for a range without steps, or set search_with="keras_tuner"'
        )
    return values


def _value(hp: Any, text: str) -> Any:
    """Return a value of Vizier, which is text or a number, in KerasTuner's type."""
    if isinstance(hp, (kinds.Boolean, kinds.Choice)):
        allowed = list(hp.values)
        if isinstance(allowed[0], (str, bool)):
            return next(value for value in allowed if str(value) == text)
        return min(allowed, key=lambda value: abs(value - float(text)))
    return round(float(text)) if isinstance(hp, kinds.Int) else float(text)


def _write(space: keras_tuner.HyperParameters, trials: list[dict[str, Any]], output_dict: Artifacts) -> None:
    parameters = {parameter.name: parameter for parameter in space.space}
    values = [
        {name: _value(parameters[name], str(value)) for name, value in trial["values"].items()} for trial in trials
    ]
    space.values.update(values[0])
    rows = [
        {"trial_id": trial["id"], "score": trial["measured"], **chosen}
        for trial, chosen in zip(trials, values, strict=True)
    ]
    write_files(space, rows, output_dict)
