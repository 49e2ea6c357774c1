"""A Vertex AI that runs nothing: the services we call, over loopback TLS, for the real google-cloud-aiplatform client.

Requests are checked as Vertex AI checks them (``tests.fakes.checks`` and ``rules``). A job goes one step on each time
it is asked for (``tests.fakes.engine``). Tests inject faults.
"""

import datetime
import itertools
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import proto
from google.cloud import aiplatform_v1 as v1
from google.longrunning import operations_pb2
from google.protobuf import any_pb2, empty_pb2
from google.rpc import code_pb2, status_pb2
from grpc_status import rpc_status

from tests.fakes import checks, rules
from tests.fakes.checks import require
from tests.fakes.engine import ENDED, Engine
from tests.fakes.jobs import FakeJobs
from tests.fakes.operations import Busy, FakeOperations
from tests.fakes.script import Fault, Script
from tests.fakes.serving import Conflict, FakeServing
from tests.fakes.standing import FakeStanding

PACKAGE = "google.cloud.aiplatform.v1"
# In this form the SDK looks for what validations have found (aiplatform/pipeline_jobs.py, submit).
PREFLIGHT = "type.googleapis.com/CreatePipelineJobApiErrorDetail"


class PreflightFailed(checks.InvalidArgument):
    """A refusal with details."""


class FakeVertex:
    """The server; a context manager.

    Attributes:
        script: What will happen.
        calls: The methods called so far, in their order.
        requests: The same with what was asked, as it came.
        pipeline_jobs, schedules, stores, contexts: What was made, by resource name, which has the project's number.
        operations: Long-running operations.
        jobs: Training, tuning and batch jobs.
        serving: Models, endpoints and predictions.
        standing: TensorBoards.
        children: Contexts in a context.
    """

    def __init__(self, certificate: Path, key: Path, projects: Mapping[str, str]):
        """``projects`` are the numbers of those that are there, by their ids."""
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
        self.requests: list[tuple[str, Any]] = []
        self.pipeline_jobs: dict[str, v1.PipelineJob] = {}
        self.operations = FakeOperations(self.script, self._numbers)
        self.serving = FakeServing(self._parent, self._numbers, self.operations, self.script, self._projects)
        self.jobs = FakeJobs(self._new, self.script, self.serving)
        self.standing = FakeStanding(self._canonical, self.script)
        self.schedules: dict[str, v1.Schedule] = {}
        self.stores: dict[str, v1.MetadataStore] = {}
        self.contexts: dict[str, v1.Context] = {}
        self.children: dict[str, list[str]] = {}

    @property
    def endpoint(self) -> str:
        """Host and port."""
        return f"localhost:{self._port}"

    def __enter__(self) -> "FakeVertex":
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None)

    def count(self, method: str) -> int:
        """Return how often a method was called."""
        return sum(call.endswith(f".{method}") for call in self.calls)

    # The services: request type, answer, by method.

    def _services(self) -> dict[str, dict[str, tuple[Any, Callable[[Any], Any]]]]:
        ours = {
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
                "ListSchedules": (v1.ListSchedulesRequest, self._list_schedules),
                "PauseSchedule": (v1.PauseScheduleRequest, lambda ask: self._set_schedule(ask.name, "PAUSED")),
                "ResumeSchedule": (v1.ResumeScheduleRequest, lambda ask: self._set_schedule(ask.name, "ACTIVE")),
                "DeleteSchedule": (v1.DeleteScheduleRequest, self._delete_schedule),
            },
            f"{PACKAGE}.MetadataService": {
                "GetMetadataStore": (v1.GetMetadataStoreRequest, lambda ask: self._found(self.stores, ask.name)),
                "CreateMetadataStore": (v1.CreateMetadataStoreRequest, self._create_store),
                "GetContext": (v1.GetContextRequest, lambda ask: self._found(self.contexts, ask.name)),
                "CreateContext": (v1.CreateContextRequest, self._create_context),
                "AddContextChildren": (v1.AddContextChildrenRequest, self._add_context_children),
            },
        }
        return {
            **{
                service: {name: (kind, self._with_number(answer)) for name, (kind, answer) in methods.items()}
                for service, methods in ours.items()
            },
            "google.longrunning.Operations": {
                "GetOperation": (operations_pb2.GetOperationRequest, lambda ask: self.operations.get(ask)),
            },
            **{
                f"{PACKAGE}.{service}": {
                    name: (request, self._of(part, service, name)) for name, (request, _) in methods.items()
                }
                for part in ("serving", "jobs", "standing")
                for service, methods in getattr(self, part).services().items()
            },
        }

    def _with_number(self, answer: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda ask: answer(self._of_project(ask))

    def _of(self, part: str, service: str, method: str) -> Callable[[Any], Any]:
        """By way of the attribute, which is another one after ``empty``."""
        return lambda ask: getattr(self, part).services()[service][method][1](ask)

    def _handler(self, name: str, request: Any, answer: Callable[[Any], Any]) -> grpc.RpcMethodHandler:
        method = name.rpartition(".")[2]

        def answered(ask: Any, context: grpc.ServicerContext) -> Any:
            with self._lock:
                self.calls.append(name)
                self.requests.append((method, type(ask)(ask) if isinstance(ask, proto.Message) else ask))
                fault = self._fault_of(method)
                if fault and not fault.once_done:
                    context.abort(fault.code, fault.message)
                try:
                    result = answer(ask)
                except PreflightFailed as error:
                    found = [f"code=INVALID_ARGUMENT, message={text}, cause=null".encode() for text in error.args]
                    details = [any_pb2.Any(type_url=PREFLIGHT, value=value) for value in found]
                    status = status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message="Bad job.", details=details)
                    context.abort_with_status(rpc_status.to_status(status))
                except checks.InvalidArgument as error:
                    context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
                except KeyError as error:
                    context.abort(grpc.StatusCode.NOT_FOUND, f"{error.args[0]} does not exist")
                except (Conflict, Busy) as error:
                    context.abort(getattr(error, "code", grpc.StatusCode.ABORTED), str(error))
                except ConnectionError as error:
                    context.abort(grpc.StatusCode.INTERNAL, str(error))
                except FileExistsError as error:
                    context.abort(grpc.StatusCode.ALREADY_EXISTS, f"{error} already exists")
                if fault:
                    context.abort(fault.code, fault.message)
                return _serialized(result)  # here, while no other call can change it

        read = request.deserialize if issubclass(request, proto.Message) else request.FromString
        return grpc.unary_unary_rpc_method_handler(answered, read)

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
        if parts[1] not in {*self._projects, *self._projects.values()}:
            raise KeyError(f"project {parts[1]}")
        return parent

    def _new(self, parent: str, kind: str) -> str:
        return f"{self._parent(parent)}/{kind}/{next(self._numbers)}"

    @staticmethod
    def _found(kept: dict[str, Any], name: str) -> Any:
        return kept[name]

    # Names.

    def _canonical(self, name: str) -> str:
        """A name with the project's number, as Vertex AI answers; a client may give the id or the number.

        "projects/<project_number>/locations/...": ListContextsRequest; the SDK knows both (base.py, _project_tuple).
        """
        kind, project, *rest = [*name.split("/"), ""]
        return "/".join([kind, self._projects.get(project, project), *rest]).rstrip("/")

    def _of_project(self, ask: Any) -> Any:
        """A request whose names have the project's number."""
        for field in ("parent", "name", "context"):
            if field in type(ask).meta.fields and isinstance(getattr(ask, field), str):
                setattr(ask, field, self._canonical(getattr(ask, field)))
        return ask

    # Pipelines.

    def _create_pipeline_job(self, ask: v1.CreatePipelineJobRequest) -> v1.PipelineJob:
        # "If not provided, an ID will be automatically generated": nobody says of what shape.
        job_id = ask.pipeline_job_id or f"{next(self._numbers)}7264018855321"
        name = f"{self._parent(ask.parent)}/pipelineJobs/{job_id}"
        require(not ask.pipeline_job_id or rules.JOB_ID.fullmatch(job_id), f"bad pipeline_job_id {job_id!r}")
        job = rules.as_new(ask.pipeline_job)
        rules.check_display_name(job.display_name, "pipeline_job")
        checks.check_pipeline_job(job)
        if job.preflight_validations and self.script.preflight:
            raise PreflightFailed(*self.script.preflight)
        if name in self.pipeline_jobs:
            raise FileExistsError(name)
        job.name, job.state = name, v1.PipelineState.PIPELINE_STATE_PENDING
        job.create_time = self._now()
        self.pipeline_jobs[name] = job
        if self.script.starts_at_once:
            self._pipeline_goes_on(job)
        return job

    def _now(self) -> datetime.datetime:
        """A time after all times before."""
        return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=next(self._numbers))

    def _list_pipeline_jobs(self, ask: v1.ListPipelineJobsRequest) -> v1.ListPipelineJobsResponse:
        found = rules.matching(rules.newest_first(self.pipeline_jobs, ask), ask)
        jobs, token = rules.page(found, ask, self.script.page_size)
        jobs = [v1.PipelineJob(job) for job in jobs]
        for job in jobs:
            v1.PipelineJob.pb(job).ClearField("job_detail")  # "Not available in the list view"
        return v1.ListPipelineJobsResponse(pipeline_jobs=jobs, next_page_token=token)

    def _get_pipeline_job(self, ask: v1.GetPipelineJobRequest) -> v1.PipelineJob:
        job = self.pipeline_jobs[ask.name]
        if job.state not in ENDED and self.script.goes_on(ask.name):
            self._pipeline_goes_on(job)
        return job

    def _cancel_pipeline_job(self, ask: v1.CancelPipelineJobRequest) -> Any:
        job = self.pipeline_jobs[ask.name]
        if job.state not in ENDED:  # "best effort": the pipeline may have "completed despite cancellation"
            job.state = v1.PipelineState.PIPELINE_STATE_CANCELLING
        return v1.PipelineJob()  # Empty on the wire

    def _pipeline_goes_on(self, job: v1.PipelineJob) -> None:
        """The context of the run is made when the job starts, and the metadata store with the first of all."""
        parent, _, job_id = job.name.partition("/pipelineJobs/")
        store = f"{parent}/metadataStores/default"
        if job.state == v1.PipelineState.PIPELINE_STATE_PENDING:
            self.stores.setdefault(store, v1.MetadataStore(name=store))
            context = v1.Context(name=f"{store}/contexts/{job_id}", schema_title="system.PipelineRun")
            self.contexts[context.name] = job.job_detail.pipeline_run_context = context
        Engine(job, self.script, lambda: next(self._numbers)).step()

    # Schedules.

    def run_schedule(self, name: str) -> v1.PipelineJob | None:
        """Do what happens at a time of the cron line; return the job that is started, None for a run that is skipped.

        max_concurrent_run_count "is the limit for starting the scheduled requests and not the execution", and
        max_concurrent_active_run_count "limits the number of runs that can be in a non-terminal state" (Schedule).
        """
        schedule = self.schedules[name]
        active = [job for job in self.pipeline_jobs.values() if job.schedule_name == name and job.state not in ENDED]
        most = schedule.max_concurrent_active_run_count
        if schedule.state != v1.Schedule.State.ACTIVE or (most and len(active) >= most):
            return None
        job = self._create_pipeline_job(self._of_project(schedule.create_pipeline_job_request))
        job.schedule_name = name
        schedule.started_run_count += 1
        return job

    def _create_schedule(self, ask: v1.CreateScheduleRequest) -> v1.Schedule:
        schedule = rules.as_new(ask.schedule)
        self._check_schedule(schedule)
        schedule.name = self._new(ask.parent, "schedules")
        schedule.create_time, schedule.next_run_time = self._now(), "2026-01-05T03:00:00Z"
        schedule.state = v1.Schedule.State.ACTIVE
        self.schedules[schedule.name] = schedule
        return schedule

    def _list_schedules(self, ask: v1.ListSchedulesRequest) -> v1.ListSchedulesResponse:
        require(not ask.filter, f"filter {ask.filter!r} is not understood")
        schedules, token = rules.page(rules.newest_first(self.schedules, ask), ask, self.script.page_size)
        return v1.ListSchedulesResponse(schedules=schedules, next_page_token=token)

    def _update_schedule(self, ask: v1.UpdateScheduleRequest) -> v1.Schedule:
        """Rule: "updates an active or paused Schedule" (ScheduleService.UpdateSchedule)."""
        name = self._canonical(ask.schedule.name)
        require(self.schedules[name].state != v1.Schedule.State.COMPLETED, "the schedule is COMPLETED")
        schedule = rules.changed(self.schedules[name], ask.schedule, list(ask.update_mask.paths))
        self._check_schedule(schedule)
        self.schedules[name] = schedule
        return schedule

    def _check_schedule(self, schedule: v1.Schedule) -> None:
        rules.check_required(schedule, "schedule")
        rules.check_display_name(schedule.display_name, "schedule")
        fields = [part for part in schedule.cron.split() if not part.startswith(("TZ=", "CRON_TZ="))]
        require(len(fields) == 5, f"schedule.cron {schedule.cron!r} has not five fields")
        require(
            schedule.max_concurrent_run_count > 0 <= schedule.max_concurrent_active_run_count,
            "schedule: the numbers of runs must be above 0",
        )
        request = schedule.create_pipeline_job_request
        require(not request.pipeline_job_id, "pipeline_job_id must not be set in a schedule")
        require(request.parent, "create_pipeline_job_request.parent is required")  # comment of that field in Schedule
        self._parent(request.parent)
        checks.check_pipeline_job(request.pipeline_job)

    def _set_schedule(self, name: str, state: str) -> v1.Schedule:
        """Rules: "only paused Schedule can be resumed", in completed state neither (ResumeSchedule, Schedule.State)."""
        schedule = self.schedules[name]
        before = "PAUSED" if state == "ACTIVE" else "ACTIVE"
        require(schedule.state.name == before, f"the schedule is {schedule.state.name}")
        schedule.state = v1.Schedule.State[state]
        return schedule

    def _delete_schedule(self, ask: v1.DeleteScheduleRequest) -> operations_pb2.Operation:
        def delete() -> empty_pb2.Empty:
            self.schedules.pop(ask.name)
            return empty_pb2.Empty()

        self._found(self.schedules, ask.name)
        return self.operations.start("DeleteSchedule", ask.name, delete)

    # Experiments.

    def _create_store(self, ask: v1.CreateMetadataStoreRequest) -> operations_pb2.Operation:
        require(rules.METADATA_ID.fullmatch(ask.metadata_store_id), f"bad metadata_store_id {ask.metadata_store_id!r}")
        name = f"{self._parent(ask.parent)}/metadataStores/{ask.metadata_store_id}"
        if name in self.stores:
            raise FileExistsError(name)

        def create() -> Any:
            store = rules.as_new(ask.metadata_store)
            store.name = name
            self.stores[name] = store
            return v1.MetadataStore.pb(store)

        return self.operations.start("CreateMetadataStore", name, create)

    def _create_context(self, ask: v1.CreateContextRequest) -> v1.Context:
        self._found(self.stores, ask.parent)
        require(rules.METADATA_ID.fullmatch(ask.context_id), f"bad context_id {ask.context_id!r}")
        rules.check_display_name(ask.context.display_name, "context")
        name = f"{ask.parent}/contexts/{ask.context_id}"
        if name in self.contexts:
            raise FileExistsError(name)
        context = rules.as_new(ask.context)
        context.name = name
        self.contexts[name] = context
        return context

    def _add_context_children(self, ask: v1.AddContextChildrenRequest) -> v1.AddContextChildrenResponse:
        """Rules: children that are there "are simply skipped", no cycle, at most 10 parents (AddContextChildren)."""
        for child in map(self._canonical, ask.child_contexts):
            self._found(self.contexts, ask.context), self._found(self.contexts, child)
            require(child != ask.context and ask.context not in self.children.get(child, []), "a cycle of contexts")
            children = self.children.setdefault(ask.context, [])
            if child not in children:
                require(sum(child in of for of in self.children.values()) < 10, f"{child} has 10 parents")
                children.append(child)
        return v1.AddContextChildrenResponse()


def _serialized(answer: Any) -> bytes:
    if isinstance(answer, operations_pb2.Operation):
        return answer.SerializeToString()
    return bytes(type(answer).serialize(answer))
