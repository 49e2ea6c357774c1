"""A Vertex AI that runs nothing: the services we call, over loopback TLS, for the real google-cloud-aiplatform client.

Requests are checked as Vertex AI checks them (``tests.fakes.checks``). A job goes one step on each time it is asked
for: tasks start when those they wait for have succeeded, then run, then succeed. Tests inject faults.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.cloud import aiplatform_v1 as v1
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2, json_format, struct_pb2
from google.rpc import code_pb2, status_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

from tests.fakes import checks
from tests.fakes.serving import Conflict, FakeServing, done

# A task that starts when those it waits for have ended, however that was.
WHATEVER = pipeline_spec_pb2.PipelineTaskSpec.TriggerPolicy.ALL_UPSTREAM_TASKS_COMPLETED
PACKAGE = "google.cloud.aiplatform.v1"
Task = v1.PipelineTaskDetail.State
JOB_ENDED = (v1.JobState.JOB_STATE_SUCCEEDED, v1.JobState.JOB_STATE_FAILED, v1.JobState.JOB_STATE_CANCELLED)
PIPELINE_ENDED = (
    v1.PipelineState.PIPELINE_STATE_SUCCEEDED,
    v1.PipelineState.PIPELINE_STATE_FAILED,
    v1.PipelineState.PIPELINE_STATE_CANCELLED,
)


@dataclass
class Fault:
    """Calls of one method that fail: ``times`` of them, after ``after`` that do not."""

    method: str
    code: grpc.StatusCode
    message: str
    times: int = 1
    after: int = 0
    once_done: bool = False  # the work is done and the answer is lost


@dataclass
class Script:
    """What will happen; tests change it before or while jobs run.

    Attributes:
        faults: Calls that fail.
        failing_tasks: Message by name of the tasks that fail.
        cached_tasks: Names of tasks whose outputs come from the cache.
        outputs: By task and output name, the metadata of the one artifact; its "uri" is the artifact's.
        failing_jobs: Message of the error that custom and tuning jobs end with; None: they succeed.
        stuck: Jobs stay in the state they are in.
        starts_at_once: Pipeline jobs start when they are made, not when they are first looked at.
        slow: Times a job must be asked for until it goes one step on.
        objective: The metric of a trial from its parameters, for tuning jobs.
    """

    faults: list[Fault] = field(default_factory=list)
    failing_tasks: dict[str, str] = field(default_factory=dict)
    cached_tasks: set[str] = field(default_factory=set)
    outputs: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    failing_jobs: str | None = None
    stuck: bool = False
    starts_at_once: bool = False
    slow: int = 1
    objective: Callable[[Mapping[str, Any]], float] = lambda parameters: 0.5


class FakeVertex:
    """The server; a context manager.

    Attributes:
        script: What will happen.
        calls: The methods called so far, in their order.
        pipeline_jobs, custom_jobs, tuning_jobs, batch_jobs, schedules, contexts: What was made, by resource name.
        serving: Models, endpoints and predictions.
        children: Contexts in a context.
    """

    def __init__(self, certificate: Path, key: Path, projects: tuple[str, ...] = ("demo",)):
        self._projects = projects
        self._numbers = itertools.count(1)
        self.empty()
        self._lock = threading.RLock()
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
        self._port = self._server.add_secure_port("localhost:0", credentials)
        for service, methods in self._services().items():
            handlers = {name: self._handler(f"{service}.{name}", *method) for name, method in methods.items()}
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    def empty(self) -> None:
        """Forgets every job and fault."""
        self.script = Script()
        self.calls: list[str] = []
        self.pipeline_jobs: dict[str, v1.PipelineJob] = {}
        self.custom_jobs: dict[str, v1.CustomJob] = {}
        self.tuning_jobs: dict[str, v1.HyperparameterTuningJob] = {}
        self.serving = FakeServing(self._parent, self._numbers)
        self.schedules: dict[str, v1.Schedule] = {}
        self.batch_jobs: dict[str, v1.BatchPredictionJob] = {}
        self.contexts: dict[str, v1.Context] = {}
        self.children: dict[str, list[str]] = {}
        self._asked: dict[str, int] = {}

    @property
    def endpoint(self) -> str:
        """Host and port."""
        return f"localhost:{self._port}"

    def __enter__(self) -> FakeVertex:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None)

    def count(self, method: str) -> int:
        """How often a method was called."""
        return sum(call.endswith(f".{method}") for call in self.calls)

    # The services: request type, answer, by method.

    def _services(self) -> dict[str, dict[str, tuple[Any, Callable[[Any], Any]]]]:
        return {
            f"{PACKAGE}.PipelineService": {
                "CreatePipelineJob": (v1.CreatePipelineJobRequest, self._create_pipeline_job),
                "GetPipelineJob": (v1.GetPipelineJobRequest, self._get_pipeline_job),
                "ListPipelineJobs": (v1.ListPipelineJobsRequest, self._list_pipeline_jobs),
                "CancelPipelineJob": (v1.CancelPipelineJobRequest, self._cancel_pipeline_job),
            },
            f"{PACKAGE}.JobService": {
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
            f"{PACKAGE}.ScheduleService": {
                "CreateSchedule": (v1.CreateScheduleRequest, self._create_schedule),
                "UpdateSchedule": (v1.UpdateScheduleRequest, self._update_schedule),
                "GetSchedule": (v1.GetScheduleRequest, lambda ask: self._found(self.schedules, ask.name)),
                "ListSchedules": (
                    v1.ListSchedulesRequest,
                    lambda ask: v1.ListSchedulesResponse(schedules=list(self.schedules.values())),
                ),
                "PauseSchedule": (v1.PauseScheduleRequest, lambda ask: self._set_schedule(ask.name, "PAUSED")),
                "ResumeSchedule": (v1.ResumeScheduleRequest, lambda ask: self._set_schedule(ask.name, "ACTIVE")),
                "DeleteSchedule": (v1.DeleteScheduleRequest, self._delete_schedule),
            },
            f"{PACKAGE}.MetadataService": {
                "GetMetadataStore": (v1.GetMetadataStoreRequest, lambda ask: v1.MetadataStore(name=ask.name)),
                "GetContext": (v1.GetContextRequest, lambda ask: self._found(self.contexts, ask.name)),
                "CreateContext": (v1.CreateContextRequest, self._create_context),
                "AddContextChildren": (v1.AddContextChildrenRequest, self._add_context_children),
            },
            **{
                f"{PACKAGE}.{service}": {
                    name: (request, self._of_serving(service, name)) for name, (request, _) in methods.items()
                }
                for service, methods in self.serving.services().items()
            },
        }

    def _of_serving(self, service: str, method: str) -> Callable[[Any], Any]:
        """By way of the attribute, which is another one after ``empty``."""
        return lambda ask: self.serving.services()[service][method][1](ask)

    def _handler(self, name: str, request: Any, answer: Callable[[Any], Any]) -> grpc.RpcMethodHandler:
        method = name.rpartition(".")[2]

        def answered(ask: Any, context: grpc.ServicerContext) -> Any:
            with self._lock:
                self.calls.append(name)
                fault = self._fault_of(method)
                if fault and not fault.once_done:
                    context.abort(fault.code, fault.message)
                try:
                    result = answer(ask)
                except checks.InvalidArgument as error:
                    context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
                except KeyError as error:
                    context.abort(grpc.StatusCode.NOT_FOUND, f"{error.args[0]} does not exist")
                except Conflict as error:
                    context.abort(grpc.StatusCode.ABORTED, str(error))
                except ConnectionError as error:
                    context.abort(grpc.StatusCode.INTERNAL, str(error))
                except FileExistsError as error:
                    context.abort(grpc.StatusCode.ALREADY_EXISTS, f"{error} already exists")
                if fault:
                    context.abort(fault.code, fault.message)
                return _serialized(result)  # here, while no other call can change it

        return grpc.unary_unary_rpc_method_handler(answered, request.deserialize)

    def _fault_of(self, method: str) -> Fault | None:
        for fault in self.script.faults:
            if fault.method == method and fault.times:
                if fault.after:
                    fault.after -= 1
                    continue
                fault.times -= 1
                return fault
        return None

    def _parent(self, parent: str) -> str:
        parts = parent.split("/")
        checks.require(len(parts) == 4 and parts[0] == "projects" and parts[2] == "locations", f"bad parent {parent!r}")
        if parts[1] not in self._projects:
            raise KeyError(f"project {parts[1]}")
        return parent

    def _new(self, parent: str, kind: str) -> str:
        return f"{self._parent(parent)}/{kind}/{next(self._numbers)}"

    @staticmethod
    def _found(kept: dict[str, Any], name: str) -> Any:
        return kept[name]

    def _goes_on(self, name: str) -> bool:
        """Whether the job takes a step, now that it is asked for."""
        self._asked[name] = self._asked.get(name, 0) + 1
        return not self.script.stuck and self._asked[name] % self.script.slow == 0

    # Pipelines.

    def _create_pipeline_job(self, ask: v1.CreatePipelineJobRequest) -> v1.PipelineJob:
        name = f"{self._parent(ask.parent)}/pipelineJobs/{ask.pipeline_job_id}"
        checks.require(
            checks.re.fullmatch(r"[a-z][-a-z0-9]{0,127}", ask.pipeline_job_id), f"bad id {ask.pipeline_job_id!r}"
        )
        checks.check_pipeline_job(ask.pipeline_job)
        if name in self.pipeline_jobs:
            raise FileExistsError(name)
        job = v1.PipelineJob(ask.pipeline_job)
        job.name, job.state = name, v1.PipelineState.PIPELINE_STATE_PENDING
        job.create_time = f"2026-01-01T00:00:{len(self.pipeline_jobs) % 60:02d}Z"
        self.pipeline_jobs[name] = job
        if self.script.starts_at_once:
            self._pipeline_goes_on(job)
        return job

    def _list_pipeline_jobs(self, ask: v1.ListPipelineJobsRequest) -> v1.ListPipelineJobsResponse:
        wanted = checks.re.fullmatch(r'labels\.([\w-]+)="([\w-]*)"', ask.filter)
        checks.require(wanted or not ask.filter, f"filter {ask.filter!r} is not understood")
        jobs = [
            job
            for name, job in self.pipeline_jobs.items()
            if name.startswith(ask.parent) and (not wanted or job.labels.get(wanted[1]) == wanted[2])
        ]
        return v1.ListPipelineJobsResponse(pipeline_jobs=jobs[::-1])

    def _get_pipeline_job(self, ask: v1.GetPipelineJobRequest) -> v1.PipelineJob:
        job = self.pipeline_jobs[ask.name]
        if job.state not in PIPELINE_ENDED and self._goes_on(ask.name):
            self._pipeline_goes_on(job)
        return job

    def _cancel_pipeline_job(self, ask: v1.CancelPipelineJobRequest) -> Any:
        self.pipeline_jobs[ask.name].state = v1.PipelineState.PIPELINE_STATE_CANCELLING
        return v1.PipelineJob()  # Empty on the wire

    def _pipeline_goes_on(self, job: v1.PipelineJob) -> None:
        if job.state == v1.PipelineState.PIPELINE_STATE_CANCELLING:
            job.state = v1.PipelineState.PIPELINE_STATE_CANCELLED
            for task in job.job_detail.task_details:
                if task.state == Task.RUNNING:
                    task.state = Task.CANCELLED
            return
        job.state = v1.PipelineState.PIPELINE_STATE_RUNNING
        parent, _, job_id = job.name.partition("/pipelineJobs/")
        context = f"{parent}/metadataStores/default/contexts/{job_id}"
        self.contexts.setdefault(context, v1.Context(name=context, schema_title="system.PipelineRun"))
        spec = json_format.ParseDict(
            json_format.MessageToDict(v1.PipelineJob.pb(job).pipeline_spec), pipeline_spec_pb2.PipelineSpec()
        )
        graph = checks.graph_of(spec)
        tasks = {task.task_name: task for task in job.job_detail.task_details}
        done = {name for name, task in tasks.items() if task.state in (Task.SUCCEEDED, Task.SKIPPED)}
        for name, task in tasks.items():
            if task.state == Task.RUNNING:
                self._task_ends(name, task)
            elif task.state == Task.PENDING:
                task.state, task.start_time = Task.RUNNING, "2026-01-01T00:00:00Z"
        failed = any(task.state == Task.FAILED for task in tasks.values())
        running = any(task.state in (Task.PENDING, Task.RUNNING) for task in tasks.values())
        whatever_comes = [
            name for name, task in spec.root.dag.tasks.items() if task.trigger_policy.strategy == WHATEVER
        ]
        if failed and not running and not all(name in tasks for name in whatever_comes):
            for name in graph:
                state = Task.PENDING if name in whatever_comes else Task.NOT_TRIGGERED
                if name not in tasks:
                    job.job_detail.task_details.append(
                        v1.PipelineTaskDetail(task_id=next(self._numbers), task_name=name, state=state)
                    )
        elif failed and not running:
            job.state = v1.PipelineState.PIPELINE_STATE_FAILED
            job.error = status_pb2.Status(
                code=code_pb2.FAILED_PRECONDITION,
                message="The DAG failed because some tasks failed. The failed tasks are: "
                f"{[name for name, task in tasks.items() if task.state == Task.FAILED]}.",
            )
        elif len(done) == len(graph):
            job.state = v1.PipelineState.PIPELINE_STATE_SUCCEEDED
        elif not failed:
            for name in checks.in_order(graph):
                if name not in tasks and graph[name] <= done:
                    job.job_detail.task_details.append(
                        v1.PipelineTaskDetail(task_id=next(self._numbers), task_name=name, state=Task.PENDING)
                    )

    def _task_ends(self, name: str, task: v1.PipelineTaskDetail) -> None:
        task.end_time = "2026-01-01T00:01:30Z"
        if name in self.script.failing_tasks:
            task.state = Task.FAILED
            task.error = status_pb2.Status(code=code_pb2.INTERNAL, message=self.script.failing_tasks[name])
            return
        task.state = Task.SKIPPED if name in self.script.cached_tasks else Task.SUCCEEDED
        for output, metadata in self.script.outputs.get(name, {}).items():
            values = struct_pb2.Struct()
            values.update(metadata)
            task.outputs[output] = v1.PipelineTaskDetail.ArtifactList(
                artifacts=[v1.Artifact(name=output, uri=metadata.get("uri", ""), metadata=values)]
            )

    # Custom jobs and tuning jobs.

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
        metric = v1.Measurement.Metric(metric_id=study.metrics[0].metric_id, value=self.script.objective(values))
        return v1.Trial(
            id=str(number + 1),
            state=v1.Trial.State.SUCCEEDED,
            parameters=[v1.Trial.Parameter(parameter_id=name, value=value) for name, value in values.items()],
            final_measurement=v1.Measurement(step_count=1, metrics=[metric]),
        )

    def _job_goes_on(self, kept: dict[str, Any], name: str) -> Any:
        job = kept[name]
        if job.state in JOB_ENDED or not self._goes_on(name):
            return job
        if job.state == v1.JobState.JOB_STATE_CANCELLING:
            job.state = v1.JobState.JOB_STATE_CANCELLED
        elif job.state == v1.JobState.JOB_STATE_PENDING:
            job.state = v1.JobState.JOB_STATE_RUNNING
        elif self.script.failing_jobs:
            job.state = v1.JobState.JOB_STATE_FAILED
            job.error = status_pb2.Status(code=code_pb2.INTERNAL, message=self.script.failing_jobs)
        else:
            job.state = v1.JobState.JOB_STATE_SUCCEEDED
        return job

    def _cancel(self, kept: dict[str, Any], name: str) -> Any:
        kept[name].state = v1.JobState.JOB_STATE_CANCELLING
        return v1.CustomJob()  # Empty on the wire

    # Batch prediction and schedules.

    def _create_batch_job(self, ask: v1.CreateBatchPredictionJobRequest) -> v1.BatchPredictionJob:
        job = v1.BatchPredictionJob(ask.batch_prediction_job)
        self.serving.model(job.model)
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

    def _create_schedule(self, ask: v1.CreateScheduleRequest) -> v1.Schedule:
        schedule = v1.Schedule(ask.schedule)
        self._check_schedule(schedule)
        schedule.name = self._new(ask.parent, "schedules")
        schedule.next_run_time = "2026-01-05T03:00:00Z"
        self.schedules[schedule.name] = schedule
        return self._set_schedule(schedule.name, "ACTIVE")

    def _update_schedule(self, ask: v1.UpdateScheduleRequest) -> v1.Schedule:
        schedule = self.schedules[ask.schedule.name]
        for path in ask.update_mask.paths:
            setattr(schedule, path, getattr(ask.schedule, path))
        self._check_schedule(schedule)
        return schedule

    def _check_schedule(self, schedule: v1.Schedule) -> None:
        checks.require(schedule.display_name, "schedule.display_name is required")
        fields = [part for part in schedule.cron.split() if not part.startswith(("TZ=", "CRON_TZ="))]
        checks.require(len(fields) == 5, f"schedule.cron {schedule.cron!r} has not five fields")
        checks.require(schedule.max_concurrent_run_count > 0, "schedule.max_concurrent_run_count is required")
        request = schedule.create_pipeline_job_request
        checks.require(not request.pipeline_job_id, "pipeline_job_id must not be set in a schedule")
        self._parent(request.parent)
        checks.check_pipeline_job(request.pipeline_job)

    def _set_schedule(self, name: str, state: str) -> v1.Schedule:
        schedule = self.schedules[name]
        checks.require(schedule.state.name != state, f"the schedule is {state} already")
        schedule.state = v1.Schedule.State[state]
        return schedule

    def _delete_schedule(self, ask: v1.DeleteScheduleRequest) -> operations_pb2.Operation:
        del self.schedules[ask.name]
        return done(empty_pb2.Empty())

    # Experiments.

    def _create_context(self, ask: v1.CreateContextRequest) -> v1.Context:
        name = f"{ask.parent}/contexts/{ask.context_id}"
        if name in self.contexts:
            raise FileExistsError(name)
        context = v1.Context(ask.context)
        context.name = name
        self.contexts[name] = context
        return context

    def _add_context_children(self, ask: v1.AddContextChildrenRequest) -> v1.AddContextChildrenResponse:
        for name in (ask.context, *ask.child_contexts):
            self._found(self.contexts, name)
        self.children.setdefault(ask.context, []).extend(ask.child_contexts)
        return v1.AddContextChildrenResponse()


def _value(spec: Any, number: int) -> Any:
    """The value of one parameter in trial ``number``."""
    kind = v1.StudySpec.ParameterSpec.pb(spec).WhichOneof("parameter_value_spec")
    if kind in ("categorical_value_spec", "discrete_value_spec"):
        values = list(getattr(spec, kind).values)
        return values[number % len(values)]
    low, high = getattr(spec, kind).min_value, getattr(spec, kind).max_value
    value = low + (high - low) * ((number % 5) / 4)
    return float(round(value)) if kind == "integer_value_spec" else value


def _serialized(answer: Any) -> bytes:
    if isinstance(answer, operations_pb2.Operation):
        return answer.SerializeToString()
    return bytes(type(answer).serialize(answer))
