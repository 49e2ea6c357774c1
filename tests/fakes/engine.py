"""Run the tasks of a PipelineJob as Vertex AI Pipelines does, as far as Google says it; one step at a time.

- PipelineFailurePolicy (aiplatform_v1): FAIL_FAST "will stop scheduling any new tasks when a task has failed. Any
  scheduled tasks will continue to completion"; no exception is written for exit handlers, so none is made here. The
  others run "until all possible tasks have been scheduled and completed".
- TriggerPolicy (pipeline_spec.proto of kubeflow/pipelines): ALL_UPSTREAM_TASKS_COMPLETED means "all upstream tasks in
  any final state", so not after a task that never came to be; the default means all succeeded; "job will not trigger
  new tasks when job is in CANCELLING state", of either kind.
- PipelineTaskDetail: the tasks of a component that is a DAG have its task as their parent, and it has a state too. The
  whole pipeline is a task with the job's id.
"""

from collections.abc import Callable, Iterator

from google.cloud import aiplatform_v1 as v1
from google.protobuf import json_format, struct_pb2
from google.rpc import code_pb2, status_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

from tests.fakes import checks
from tests.fakes.script import Script

COMPLETED = pipeline_spec_pb2.PipelineTaskSpec.TriggerPolicy.ALL_UPSTREAM_TASKS_COMPLETED
Task = v1.PipelineTaskDetail.State
SUCCEEDED = (Task.SUCCEEDED, Task.SKIPPED)
FINAL = (*SUCCEEDED, Task.FAILED, Task.CANCELLED, Task.NOT_TRIGGERED)
ENDED = (
    v1.PipelineState.PIPELINE_STATE_SUCCEEDED,
    v1.PipelineState.PIPELINE_STATE_FAILED,
    v1.PipelineState.PIPELINE_STATE_CANCELLED,
)


class Engine:
    """One job, looked at for one step."""

    def __init__(self, job: v1.PipelineJob, script: Script, new_id: Callable[[], int]):
        self._job, self._script, self._new_id = job, script, new_id
        as_dict = json_format.MessageToDict(v1.PipelineJob.pb(job).pipeline_spec)
        spec = json_format.ParseDict(as_dict, pipeline_spec_pb2.PipelineSpec())
        self._dags = dict(checks.dags_of(spec, job.name.rpartition("/")[2]))

    def step(self) -> None:
        """Takes every task a step on."""
        job = self._job
        if job.state == v1.PipelineState.PIPELINE_STATE_CANCELLING:
            self._cancel()
            return
        if job.state != v1.PipelineState.PIPELINE_STATE_RUNNING:
            job.state, job.start_time = v1.PipelineState.PIPELINE_STATE_RUNNING, "2026-01-01T00:00:00Z"
            self._add(next(iter(self._dags)), None)
        for name, task in self._tasks().items():
            if name not in self._dags:
                self._go_on(name, task)
        if self._start_tasks() or any(task.state not in FINAL for name, task in self._leaves()):
            return
        # Nothing runs and nothing more can start in the innermost DAG that has not ended: it ends.
        name = [name for name in self._dags if name in self._tasks() and self._tasks()[name].state == Task.RUNNING][-1]
        failed = [task for task in self._dags[name] if self._state(task) == Task.FAILED]
        self._end(name, Task.FAILED if failed else Task.SUCCEEDED)
        if name == next(iter(self._dags)):
            self._end_job()

    def _tasks(self) -> dict[str, v1.PipelineTaskDetail]:
        return {task.task_name: task for task in self._job.job_detail.task_details}

    def _leaves(self) -> Iterator[tuple[str, v1.PipelineTaskDetail]]:
        return ((name, task) for name, task in self._tasks().items() if name not in self._dags)

    def _state(self, name: str) -> Task | None:
        task = self._tasks().get(name)
        return task.state if task else None

    def _add(self, name: str, parent: str | None) -> None:
        self._job.job_detail.task_details.append(
            v1.PipelineTaskDetail(
                task_id=self._new_id(),
                task_name=name,
                parent_task_id=self._tasks()[parent].task_id if parent else 0,
                state=Task.RUNNING if name in self._dags else Task.PENDING,
                start_time="2026-01-01T00:00:00Z" if name in self._dags else None,
            )
        )

    def _start_tasks(self) -> bool:
        fast = v1.PipelineFailurePolicy.PIPELINE_FAILURE_POLICY_FAIL_FAST
        failed = any(task.state == Task.FAILED for _, task in self._leaves())
        if failed and self._job.runtime_config.failure_policy == fast:
            return False
        started = False
        for dag, tasks in self._dags.items():
            for name, task in tasks.items():
                if self._state(dag) == Task.RUNNING and self._state(name) is None and self._is_ready(task):
                    self._add(name, dag)
                    started = True
        return started

    def _is_ready(self, task: pipeline_spec_pb2.PipelineTaskSpec) -> bool:
        wanted = FINAL if task.trigger_policy.strategy == COMPLETED else SUCCEEDED
        return all(self._state(upstream) in wanted for upstream in checks.upstream_of(task))

    def _go_on(self, name: str, task: v1.PipelineTaskDetail) -> None:
        if task.state == Task.PENDING:
            task.state, task.start_time = Task.RUNNING, "2026-01-01T00:00:00Z"
        elif task.state == Task.RUNNING and name in self._script.failing_tasks:
            self._end(name, Task.FAILED)
            task.error = status_pb2.Status(code=code_pb2.INTERNAL, message=self._script.failing_tasks[name])
        elif task.state == Task.RUNNING:
            self._end(name, Task.SKIPPED if name in self._script.cached_tasks else Task.SUCCEEDED)
            for output, metadata in self._script.outputs.get(name, {}).items():
                values = struct_pb2.Struct()
                values.update(metadata)
                artifact = v1.Artifact(name=output, uri=metadata.get("uri", ""), metadata=values)
                task.outputs[output] = v1.PipelineTaskDetail.ArtifactList(artifacts=[artifact])

    def _end(self, name: str, state: Task) -> None:
        task = self._tasks()[name]
        task.state, task.end_time = state, "2026-01-01T00:01:30Z"

    def _cancel(self) -> None:
        """First the tasks are being cancelled, then they and the job are: PipelineService.CancelPipelineJob."""
        open_tasks = {name: task for name, task in self._tasks().items() if task.state not in FINAL}
        if any(task.state != Task.CANCELLING for task in open_tasks.values()):
            for task in open_tasks.values():
                task.state = Task.CANCELLING
            return
        for name in open_tasks:
            self._end(name, Task.CANCELLED)
        self._job.state = v1.PipelineState.PIPELINE_STATE_CANCELLED
        self._job.error = status_pb2.Status(code=code_pb2.CANCELLED, message="The PipelineJob was cancelled.")

    def _end_job(self) -> None:
        failed = [name for name, task in self._leaves() if task.state == Task.FAILED]
        self._job.state = v1.PipelineState.PIPELINE_STATE_SUCCEEDED
        if failed:
            self._job.state = v1.PipelineState.PIPELINE_STATE_FAILED
            message = f"The DAG failed because some tasks failed. The failed tasks are: {failed}."
            self._job.error = status_pb2.Status(code=code_pb2.FAILED_PRECONDITION, message=message)
