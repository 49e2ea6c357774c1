"""Training, tuning and batch jobs of the fake Vertex AI: they run nothing, and go a step on when asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.cloud import aiplatform_v1 as v1
from google.rpc import code_pb2, status_pb2

from tests.fakes import checks
from tests.fakes.script import Script
from tests.fakes.serving import FakeServing

JOB_ENDED = (v1.JobState.JOB_STATE_SUCCEEDED, v1.JobState.JOB_STATE_FAILED, v1.JobState.JOB_STATE_CANCELLED)


class FakeJobs:
    """The state and its methods.

    Attributes:
        custom_jobs, tuning_jobs, batch_jobs: What was made, by resource name.
    """

    def __init__(self, new: Callable[[str, str], str], script: Script, serving: FakeServing):
        self._new = new
        self._script = script
        self._serving = serving
        self.custom_jobs: dict[str, v1.CustomJob] = {}
        self.tuning_jobs: dict[str, v1.HyperparameterTuningJob] = {}
        self.batch_jobs: dict[str, v1.BatchPredictionJob] = {}

    def services(self) -> dict[str, dict[str, tuple[Any, Callable[[Any], Any]]]]:
        """Request type and answer, by method, by service."""
        return {
            "JobService": {
                "CreateCustomJob": (v1.CreateCustomJobRequest, self._create_custom_job),
                "GetCustomJob": (v1.GetCustomJobRequest, lambda ask: self._job_goes_on(self.custom_jobs, ask.name)),
                "CancelCustomJob": (v1.CancelCustomJobRequest, lambda ask: self._cancel(self.custom_jobs, ask.name)),
                "CreateHyperparameterTuningJob": (v1.CreateHyperparameterTuningJobRequest, self._create_tuning_job),
                "GetHyperparameterTuningJob": (v1.GetHyperparameterTuningJobRequest, self._get_tuning_job),
                "CancelHyperparameterTuningJob": (
                    v1.CancelHyperparameterTuningJobRequest,
                    lambda ask: self._cancel(self.tuning_jobs, ask.name),
                ),
                "CreateBatchPredictionJob": (v1.CreateBatchPredictionJobRequest, self._create_batch_job),
                "GetBatchPredictionJob": (v1.GetBatchPredictionJobRequest, self._get_batch_job),
            },
        }

    def _create_custom_job(self, ask: v1.CreateCustomJobRequest) -> v1.CustomJob:
        checks.check_custom_job(ask.custom_job)
        job = v1.CustomJob(ask.custom_job)
        job.name, job.state = self._new(ask.parent, "customJobs"), v1.JobState.JOB_STATE_PENDING
        self.custom_jobs[job.name] = job
        return job

    def _create_tuning_job(self, ask: v1.CreateHyperparameterTuningJobRequest) -> v1.HyperparameterTuningJob:
        job = v1.HyperparameterTuningJob(ask.hyperparameter_tuning_job)
        checks.check_tuning_job(job)
        job.name = self._new(ask.parent, "hyperparameterTuningJobs")
        job.state = v1.JobState.JOB_STATE_PENDING
        self.tuning_jobs[job.name] = job
        return job

    def _get_tuning_job(self, ask: v1.GetHyperparameterTuningJobRequest) -> v1.HyperparameterTuningJob:
        job = self._job_goes_on(self.tuning_jobs, ask.name)
        if job.state == v1.JobState.JOB_STATE_SUCCEEDED and not job.trials:
            for number in range(job.max_trial_count):
                job.trials.append(self._trial(job.study_spec, number))
        return job

    def _trial(self, study: v1.StudySpec, number: int) -> v1.Trial:
        """The next point of a walk through the search space, with its metric."""
        values = {spec.parameter_id: _value(spec, number) for spec in study.parameters}
        metric = v1.Measurement.Metric(metric_id=study.metrics[0].metric_id, value=self._script.objective(values))
        return v1.Trial(
            id=str(number + 1),
            state=v1.Trial.State.SUCCEEDED,
            parameters=[v1.Trial.Parameter(parameter_id=name, value=value) for name, value in values.items()],
            final_measurement=v1.Measurement(step_count=1, metrics=[metric]),
        )

    def _job_goes_on(self, kept: dict[str, Any], name: str) -> Any:
        job = kept[name]
        if job.state in JOB_ENDED or not self._script.goes_on(name):
            return job
        if job.state == v1.JobState.JOB_STATE_CANCELLING:
            job.state = v1.JobState.JOB_STATE_CANCELLED
        elif job.state == v1.JobState.JOB_STATE_PENDING:
            job.state = v1.JobState.JOB_STATE_RUNNING
        elif self._script.failing_jobs:
            job.state = v1.JobState.JOB_STATE_FAILED
            job.error = status_pb2.Status(code=code_pb2.INTERNAL, message=self._script.failing_jobs)
        else:
            job.state = v1.JobState.JOB_STATE_SUCCEEDED
        return job

    def _cancel(self, kept: dict[str, Any], name: str) -> Any:
        kept[name].state = v1.JobState.JOB_STATE_CANCELLING
        return v1.CustomJob()  # Empty on the wire

    def _create_batch_job(self, ask: v1.CreateBatchPredictionJobRequest) -> v1.BatchPredictionJob:
        job = v1.BatchPredictionJob(ask.batch_prediction_job)
        self._serving.model(job.model)
        wanted, kind = job.input_config.instances_format, v1.BatchPredictionJob.InputConfig.pb(job.input_config)
        source = "bigquery_source" if wanted == "bigquery" else "gcs_source"
        checks.require(kind.WhichOneof("source") == source, f"input_config.instances_format {wanted!r} needs {source}")
        known = ("jsonl", "csv", "bigquery", "tf-record", "tf-record-gzip", "file-list")
        checks.require(wanted in known, f"input_config.instances_format {wanted!r}, expected one of {known}")
        machine = job.dedicated_resources.machine_spec
        checks.require(checks.MACHINE.fullmatch(machine.machine_type), "dedicated_resources.machine_spec.machine_type")
        checks.check_accelerator(machine, "dedicated_resources")
        job.name, job.state = self._new(ask.parent, "batchPredictionJobs"), v1.JobState.JOB_STATE_PENDING
        self.batch_jobs[job.name] = job
        return job

    def _get_batch_job(self, ask: v1.GetBatchPredictionJobRequest) -> v1.BatchPredictionJob:
        job = self._job_goes_on(self.batch_jobs, ask.name)
        if job.state == v1.JobState.JOB_STATE_SUCCEEDED:
            job.completion_stats = v1.CompletionStats(successful_count=11, failed_count=1)
            prefix = job.output_config.gcs_destination.output_uri_prefix
            if prefix:
                job.output_info.gcs_output_directory = f"{prefix}/prediction-1"
            else:
                job.output_info.bigquery_output_dataset = job.output_config.bigquery_destination.output_uri
                job.output_info.bigquery_output_table = "predictions_1"
        return job


def _value(spec: Any, number: int) -> Any:
    """The value of one parameter in trial ``number``."""
    kind = v1.StudySpec.ParameterSpec.pb(spec).WhichOneof("parameter_value_spec")
    if kind in ("categorical_value_spec", "discrete_value_spec"):
        values = list(getattr(spec, kind).values)
        return values[number % len(values)]
    low, high = getattr(spec, kind).min_value, getattr(spec, kind).max_value
    value = low + (high - low) * ((number % 5) / 4)
    return float(round(value)) if kind == "integer_value_spec" else value
