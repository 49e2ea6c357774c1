"""Training, tuning and batch jobs of the fake Vertex AI: they train nothing, and go a step on when asked for."""

import datetime
import itertools
import re
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from google.cloud import aiplatform_v1 as v1
from google.rpc import code_pb2, status_pb2

from tests.fakes import batch_rows, checks
from tests.fakes.checks import require
from tests.fakes.resources import Ids, Methods, check_account, check_new, with_numbers
from tests.fakes.script import Script
from tests.fakes.serving import FakeServing

State = v1.JobState
JOB_ENDED = (State.JOB_STATE_SUCCEEDED, State.JOB_STATE_FAILED, State.JOB_STATE_CANCELLED)
# "JOB_STATE_QUEUED: The job has been just created or resumed and processing has not yet begun" (JobState).
NEXT = {State.JOB_STATE_QUEUED: State.JOB_STATE_PENDING, State.JOB_STATE_PENDING: State.JOB_STATE_RUNNING}
# Topologies of one host, which a TPU of v5e needs: cloud.google.com/vertex-ai/docs/training/configure-compute#tpu.
TOPOLOGIES = {"ct5lp-hightpu-1t": "1x1", "ct5lp-hightpu-4t": "2x2", "ct5lp-hightpu-8t": "2x4"}
HYPERDISK_ONLY = ("a3-ultragpu", "a4-")
LONGEST = 7 * 24 * 3600  # "The maximum job running time. The default is 7 days" (Scheduling.timeout)


class FakeJobs:
    """The state and its methods.

    Attributes:
        custom_jobs, tuning_jobs, batch_jobs: What was made, by resource name with the project's id.
        rows: What batch jobs read: rows of a table by "bq://...", contents of files by "gs://...",
            of a list of files with these, (content, {uri: content}).
        containers: Answers the body of a request as the model's container does, by the name of the version.
        answered: What batch jobs got from the containers, by the name of the job.
    """

    def __init__(self, new: Callable[[str, str], str], script: Script, serving: FakeServing):
        self._new = new
        self._script = script
        self._serving = serving
        self._ids = Ids()
        self.custom_jobs: dict[str, v1.CustomJob] = {}
        self.tuning_jobs: dict[str, v1.HyperparameterTuningJob] = {}
        self.batch_jobs: dict[str, v1.BatchPredictionJob] = {}
        self.rows: dict[str, Any] = {}
        self.containers: dict[str, batch_rows.Container] = {}
        self.answered: dict[str, batch_rows.Answered] = {}

    def services(self) -> dict[str, Methods]:
        """Request type and answer, by method, by service."""
        methods: Methods = {
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
        }
        return with_numbers({"JobService": methods}, self._serving.projects, lambda: None)

    def _add(self, kept: dict[str, Any], job: Any, parent: str, kind: str) -> Any:
        job.name = f"{self._new(parent, kind).rpartition('/')[0]}/{self._ids.new()}"
        job.state, job.create_time = State.JOB_STATE_QUEUED, _now()
        kept[job.name] = job
        return job

    def _create_custom_job(self, ask: v1.CreateCustomJobRequest) -> v1.CustomJob:
        job = check_custom_job(ask.custom_job, ask.parent)
        return self._add(self.custom_jobs, job, ask.parent, "customJobs")

    def _create_tuning_job(self, ask: v1.CreateHyperparameterTuningJobRequest) -> v1.HyperparameterTuningJob:
        job = check_tuning_job(ask.hyperparameter_tuning_job, ask.parent)
        return self._add(self.tuning_jobs, job, ask.parent, "hyperparameterTuningJobs")

    def _get_tuning_job(self, ask: v1.GetHyperparameterTuningJobRequest) -> v1.HyperparameterTuningJob:
        job = self._job_goes_on(self.tuning_jobs, ask.name)
        if job.state in (State.JOB_STATE_RUNNING, State.JOB_STATE_SUCCEEDED):
            # One has ended when somebody looks while it runs, and in the end all have.
            ended = len(job.trials) + 1 if job.state == State.JOB_STATE_RUNNING else job.max_trial_count
            for number in range(len(job.trials), min(ended, job.max_trial_count)):
                if self._is_over(job.study_spec.study_stopping_config, number * self._script.trial_seconds, job.trials):
                    break
                job.trials.append(self._trial(job.study_spec, number, job.trials))
        return job

    @staticmethod
    def _is_over(limit: v1.StudySpec.StudyStoppingConfig, seconds: float, trials: Sequence[v1.Trial]) -> bool:
        """Return whether the study stops; "if there are fewer than min_num_trials COMPLETED trials, do not stop"."""
        longest = limit.maximum_runtime_constraint.max_duration
        completed = [trial.state for trial in trials].count(v1.Trial.State.SUCCEEDED)
        return bool(longest) and seconds >= longest.total_seconds() and completed >= (limit.min_num_trials or 0)

    def _trial(self, study: v1.StudySpec, number: int, before: Sequence[v1.Trial]) -> v1.Trial:
        """The next point of a walk through the search space, with its metric; without one where that fails."""
        values = {spec.parameter_id: _value(spec, number) for spec in study.parameters}
        parameters = [v1.Trial.Parameter(parameter_id=name, value=value) for name, value in values.items()]
        try:
            measured = self._script.objective(values)
        except ArithmeticError as error:
            # "INFEASIBLE when it's done but missing the final_measurement" (Trial.State).
            state = v1.Trial.State.INFEASIBLE
            return v1.Trial(id=str(number + 1), state=state, parameters=parameters, infeasible_reason=str(error))
        (metric,) = study.metrics
        upwards = -1 if metric.goal == v1.StudySpec.MetricSpec.GoalType.MINIMIZE else 1
        measurements: list[v1.Measurement] = []
        for step, value in enumerate(measured if isinstance(measured, list) else [measured], 1):
            metrics = [v1.Measurement.Metric(metric_id=metric.metric_id, value=value)]
            measurements.append(v1.Measurement(step_count=step, metrics=metrics))
            if v1.StudySpec.pb(study).WhichOneof("automated_stopping_spec") == "median_automated_stopping_spec":
                # "strictly below the median 'performance' of all completed Trials reported up to the Trial's last
                # measurement ... the running average" (MedianAutomatedStoppingSpec).
                averages = [
                    statistics.mean(upwards * one.metrics[0].value for one in trial.measurements[:step])
                    for trial in before
                    if trial.measurements
                ]
                best = max(upwards * one.metrics[0].value for one in measurements)
                if averages and best < statistics.median(averages):
                    break
        # "UNSPECIFIED: Will be treated as LAST_MEASUREMENT" (MeasurementSelectionType).
        final = measurements[-1]
        if study.measurement_selection_type == v1.StudySpec.MeasurementSelectionType.BEST_MEASUREMENT:
            final = max(measurements, key=lambda one: upwards * one.metrics[0].value)
        return v1.Trial(
            id=str(number + 1),
            state=v1.Trial.State.SUCCEEDED,
            parameters=parameters,
            final_measurement=final,
            measurements=measurements,
        )

    def _job_goes_on(self, kept: dict[str, Any], name: str) -> Any:
        job = kept[name]
        if job.state in JOB_ENDED or not self._script.goes_on(name):
            return job
        if job.state == State.JOB_STATE_CANCELLING:
            job.state = State.JOB_STATE_CANCELLED
        elif job.state in NEXT:
            job.state = NEXT[job.state]
            if job.state == State.JOB_STATE_RUNNING:
                job.start_time = _now()  # "for the first time entered the JOB_STATE_RUNNING state" (CustomJob)
        elif self._script.failing_jobs:
            job.state = State.JOB_STATE_FAILED
            job.error = status_pb2.Status(code=code_pb2.INTERNAL, message=self._script.failing_jobs)
        else:
            job.state = State.JOB_STATE_SUCCEEDED
        if job.state in JOB_ENDED:
            job.end_time = _now()
        return job

    def _cancel(self, kept: dict[str, Any], name: str) -> Any:
        # "Starts asynchronous cancellation ... best effort" (JobService.CancelCustomJob).
        if kept[name].state not in JOB_ENDED:
            kept[name].state = State.JOB_STATE_CANCELLING
        return v1.CustomJob()  # Empty on the wire

    # Batch prediction.

    def _create_batch_job(self, ask: v1.CreateBatchPredictionJobRequest) -> v1.BatchPredictionJob:
        job = check_new(ask.batch_prediction_job, ask.parent, "batch_prediction_job")
        model = self._serving.model(job.model)
        # "must share the same ancestor Location" (BatchPredictionJob.model).
        require(model.name.startswith(f"{ask.parent}/"), "the model is of another location")
        formats = list(model.supported_input_storage_formats)
        wanted, kind = job.input_config.instances_format, v1.BatchPredictionJob.InputConfig.pb(job.input_config)
        require(wanted in formats, f"input_config.instances_format {wanted!r}, expected one of {formats}")
        source = "bigquery_source" if wanted == "bigquery" else "gcs_source"
        require(kind.WhichOneof("source") == source, f"input_config.instances_format {wanted!r} needs {source}")
        batch_rows.check_instance_config(job)
        _check_destination(job.output_config, list(model.supported_output_storage_formats))
        # Required where the model does not support AUTOMATIC_RESOURCES (BatchPredictionJob.dedicated_resources), and so
        # is the type of the machine (MachineSpec.machine_type).
        resources = job.dedicated_resources
        require(checks.MACHINE.fullmatch(resources.machine_spec.machine_type), "dedicated_resources.machine_spec")
        checks.check_accelerator(resources.machine_spec, "dedicated_resources")
        # "not greater than max_replica_count", whose default is 10 (BatchDedicatedResources).
        require(resources.starting_replica_count <= (resources.max_replica_count or 10), "starting_replica_count")
        check_account(job.service_account, "batch_prediction_job")
        checks.check_labels(job.labels)
        return self._add(self.batch_jobs, job, ask.parent, "batchPredictionJobs")

    def _get_batch_job(self, ask: v1.GetBatchPredictionJobRequest) -> v1.BatchPredictionJob:
        job = self._job_goes_on(self.batch_jobs, ask.name)
        if job.state == State.JOB_STATE_SUCCEEDED and job.name not in self.answered:
            job.completion_stats = v1.CompletionStats(successful_count=11, failed_count=1)
            address = batch_rows.address_of(job)
            if address in self.rows:
                model = self._serving.model(job.model)
                container = self.containers[f"{model.name}@{model.version_id}"]
                at_once = job.manual_batch_tuning_parameters.batch_size
                answered = batch_rows.answer(batch_rows.instances_of(job, self.rows[address]), container, at_once)
                self.answered[job.name] = answered
                # "-1 if the number is unknown" (CompletionStats.incomplete_count).
                job.completion_stats = v1.CompletionStats(
                    successful_count=len(answered.predictions), failed_count=len(answered.errors), incomplete_count=-1
                )
            prefix = job.output_config.gcs_destination.output_uri_prefix
            if prefix:
                job.output_info.gcs_output_directory = f"{prefix}/prediction-1"
            else:
                job.output_info.bigquery_output_dataset = job.output_config.bigquery_destination.output_uri
                job.output_info.bigquery_output_table = "predictions_1"
        return job


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def check_custom_job(job: v1.CustomJob, parent: str) -> v1.CustomJob:
    """Check a CustomJob; return it without output-only fields."""
    new = check_new(job, parent, "custom_job")
    checks.check_custom_job(new)
    _check_job_spec(new.job_spec, "job_spec")
    return new  # type: ignore[no-any-return]


def check_tuning_job(job: v1.HyperparameterTuningJob, parent: str) -> v1.HyperparameterTuningJob:
    """Check a HyperparameterTuningJob; return it without output-only fields."""
    new = check_new(job, parent, "hyperparameter_tuning_job")
    checks.check_tuning_job(new)
    _check_job_spec(new.trial_job_spec, "trial_job_spec")
    study = new.study_spec
    for kind in ([one.metric_id for one in study.metrics], [one.parameter_id for one in study.parameters]):
        # "Must not contain whitespaces and must be unique" (MetricSpec.metric_id, ParameterSpec.parameter_id).
        require(len(set(kind)) == len(kind) and not any(re.search(r"\s", name) for name in kind), f"study_spec: {kind}")
    # "Currently only supported by the Vertex AI Vizier service. Not supported by HyperparameterTuningJob".
    require(not study.observation_noise, "study_spec.observation_noise is not supported")
    for spec in study.parameters:
        at = f"study_spec.parameters[{spec.parameter_id!r}]"
        kind_of_values = v1.StudySpec.ParameterSpec.pb(spec).WhichOneof("parameter_value_spec")
        values = getattr(spec, kind_of_values)
        require(not type(values).pb(values).HasField("default_value"), f"{at}: default_value is not supported")
        if kind_of_values == "categorical_value_spec":
            require(not spec.scale_type, f"{at}: leave scale_type unset for CATEGORICAL parameters")
        elif kind_of_values == "discrete_value_spec":
            steps = itertools.pairwise(values.values)
            # "in increasing order and at least 1e-10 apart ... not more than 1,000 values" (DiscreteValueSpec.values).
            require(all(later - earlier >= 1e-10 for earlier, later in steps), f"{at}: values too close")
            require(len(values.values) <= 1000, f"{at}: {len(values.values)} values, at most 1,000")
    return new  # type: ignore[no-any-return]


def _check_job_spec(spec: v1.CustomJobSpec, at: str) -> None:
    pools, scheduling = spec.worker_pool_specs, spec.scheduling
    for number, pool in enumerate(pools):
        machine, disk = pool.machine_spec, pool.disk_spec.boot_disk_type
        topology = TOPOLOGIES.get(machine.machine_type, "")
        require(machine.tpu_topology == topology, f"{at}: tpu_topology {machine.tpu_topology!r}, not {topology!r}")
        # DiskSpec.boot_disk_type; machines without Persistent Disk: cloud.google.com/compute/docs/gpus.
        hyper = machine.machine_type.startswith(HYPERDISK_ONLY)
        require(not hyper or disk in ("", "hyperdisk-balanced"), f"{at}: {machine.machine_type} takes no {disk}")
        if "reductionserver" in pool.container_spec.image_uri:
            # cloud.google.com/vertex-ai/docs/training/distributed-training#reduce_training_time_with_reduction_server
            require(number == 2, f"{at}: Reduction Servers are the third worker pool")
            require(not machine.accelerator_count, f"{at}: Reduction Servers have no GPUs")
            require(all(one.machine_spec.accelerator_count for one in pools[:2]), f"{at}: the workers need GPUs")
            require(not pool.container_spec.command, f"{at}: the image of Reduction Servers has its own command")
    # "If true, overrides Scheduling.restart_job_on_worker_restart to false" (Scheduling.disable_retries).
    require(not (scheduling.disable_retries and scheduling.restart_job_on_worker_restart), f"{at}.scheduling: both")
    require(scheduling.timeout.total_seconds() <= LONGEST, f"{at}.scheduling.timeout is above 7 days")
    # "if the scheduling strategy is set to DWS_FLEX_START" (Scheduling.max_wait_duration).
    flexible = scheduling.strategy == v1.Scheduling.Strategy.FLEX_START
    require(flexible or not scheduling.max_wait_duration.total_seconds(), f"{at}.scheduling.max_wait_duration")
    # "{project} is a project number, as in 12345" (CustomJobSpec.network).
    require(re.fullmatch(r"(projects/\d+/global/networks/[^/]+)?", spec.network), f"{at}.network {spec.network!r}")
    board = r"(projects/[^/]+/locations/[^/]+/tensorboards/[^/]+)?"
    require(re.fullmatch(board, spec.tensorboard), f"{at}.tensorboard {spec.tensorboard!r}")
    check_account(spec.service_account, at)


def _check_destination(config: v1.BatchPredictionJob.OutputConfig, formats: list[str]) -> None:
    require(config.predictions_format in formats, f"output_config.predictions_format {config.predictions_format!r}")
    if config.predictions_format == "bigquery":
        # "bq://projectId or bq://projectId.bqDatasetId or bq://projectId.bqDatasetId.bqTableId" (BigQueryDestination).
        table = config.bigquery_destination.output_uri
        require(re.fullmatch(r"bq://[^.\s/]+(\.[^.\s/]+){0,2}", table), f"output_config.bigquery_destination {table!r}")
    else:
        require(config.gcs_destination.output_uri_prefix.startswith("gs://"), "output_config.gcs_destination")


def _value(spec: Any, number: int) -> Any:
    """The value of one parameter in trial ``number``."""
    kind = v1.StudySpec.ParameterSpec.pb(spec).WhichOneof("parameter_value_spec")
    if kind in ("categorical_value_spec", "discrete_value_spec"):
        values = list(getattr(spec, kind).values)
        return values[number % len(values)]
    low, high = getattr(spec, kind).min_value, getattr(spec, kind).max_value
    value = low + (high - low) * ((number % 5) / 4)
    return float(round(value)) if kind == "integer_value_spec" else value
