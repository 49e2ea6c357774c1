"""A Vertex AI that runs nothing: the services we call, over loopback TLS, for the real google-cloud-aiplatform client.

Requests are checked as Vertex AI checks them (``tests.fakes.checks``). A job goes one step on each time it is asked
for: tasks start when those they wait for have succeeded, then run, then succeed. Tests inject faults.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from google.cloud import aiplatform_v1 as v1
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2, json_format, struct_pb2
from google.rpc import code_pb2, status_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

from tests.fakes import checks
from tests.fakes.jobs import FakeJobs
from tests.fakes.script import Fault, Script
from tests.fakes.serving import Conflict, FakeServing, done

# A task that starts when those it waits for have ended, however that was.
WHATEVER = pipeline_spec_pb2.PipelineTaskSpec.TriggerPolicy.ALL_UPSTREAM_TASKS_COMPLETED
PACKAGE = "google.cloud.aiplatform.v1"
Task = v1.PipelineTaskDetail.State
PIPELINE_ENDED = (
    v1.PipelineState.PIPELINE_STATE_SUCCEEDED,
    v1.PipelineState.PIPELINE_STATE_FAILED,
    v1.PipelineState.PIPELINE_STATE_CANCELLED,
)


class FakeVertex:
    """The server; a context manager.

    Attributes:
        script: What will happen.
        calls: The methods called so far, in their order.
        pipeline_jobs, schedules, contexts: What was made, by resource name.
        jobs: Training, tuning and batch jobs.
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
        self.serving = FakeServing(self._parent, self._numbers)
        self.jobs = FakeJobs(self._new, self.script, self.serving)
        self.schedules: dict[str, v1.Schedule] = {}
        self.contexts: dict[str, v1.Context] = {}
        self.children: dict[str, list[str]] = {}

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
                    name: (request, self._of(part, service, name)) for name, (request, _) in methods.items()
                }
                for part in ("serving", "jobs")
                for service, methods in getattr(self, part).services().items()
            },
        }

    def _of(self, part: str, service: str, method: str) -> Callable[[Any], Any]:
        """By way of the attribute, which is another one after ``empty``."""
        return lambda ask: getattr(self, part).services()[service][method][1](ask)

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
        if job.state not in PIPELINE_ENDED and self.script.goes_on(ask.name):
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

    # Schedules.

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


def _serialized(answer: Any) -> bytes:
    if isinstance(answer, operations_pb2.Operation):
        return answer.SerializeToString()
    return bytes(type(answer).serialize(answer))
