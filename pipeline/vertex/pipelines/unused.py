"""Find what a pipeline pays for on Google Cloud and does not use; nothing is deleted or changed."""

import datetime
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1

from pipeline.costs.prices import HOURS_A_MONTH, Prices
from pipeline.errors import UserError
from pipeline.settings.config import PipelineConfig
from pipeline.settings.target import Vertex
from pipeline.vertex.cloud import ENDED_STATES, RETRY, Cloud, first_line
from pipeline.vertex.endpoints.endpoint import DUE, deployed_id, push_of
from pipeline.vertex.endpoints.registry import LIVE, PREVIOUS, RUN, Registry, as_label
from pipeline.vertex.pipelines.submit import list_schedules
from pipeline.vertex.pipelines.watch import pushed_to

GIB = float(1 << 30)
RUNS = 3  # of a schedule in a row without a push; the gates may well reject one model
# Folder of a run: pipeline, number of the project, job. Later runs look up the newest blessing and search in these.
FOLDER = re.compile(r"([^/]+/artifacts/[0-9]+/[a-z][a-z0-9-]*)/")
LOOKED_UP = (re.compile(r"/blessing/BLESSED$"), re.compile(r"/best_hyperparameters/"))


class Unused(NamedTuple):
    """A resource that is paid for and not used."""

    what: str  # kind and name, and the evidence that it is not used
    price: float | None  # US dollars a month
    command: str  # ends it


@dataclass(frozen=True)
class Scope:
    """One pipeline and the place of its resources."""

    cloud: Cloud
    config: PipelineConfig
    vertex: Vertex
    prices: Prices
    since: datetime.datetime  # start of the days without use

    def jobs(self) -> list[v1.PipelineJob]:
        """Return all jobs in the region without their tasks, the newest first."""
        jobs = self.cloud.client(v1.PipelineServiceClient).list_pipeline_jobs(parent=self.cloud.parent, retry=RETRY)
        return sorted(jobs, key=lambda job: job.create_time, reverse=True)

    def job(self, key: str) -> v1.PipelineJob:
        """Return a job with its tasks."""
        name = f"{self.cloud.parent}/pipelineJobs/{key}"
        return self.cloud.client(v1.PipelineServiceClient).get_pipeline_job(name=name, retry=RETRY)

    def command(self, *words: str) -> str:
        """Return a command for a resource of the project and region, quoted for a shell."""
        return shlex.join([*words, f"--region={self.cloud.region}", f"--project={self.cloud.project}"])


def search(scope: Scope, starts: Callable[[str], None]) -> Iterator[Unused | str]:
    """Yield what is not used, and lines about what could not be checked; ``starts`` receives the name of each place."""
    places = {"endpoints": _models, "TensorBoards": _tensorboards, "schedules": _schedules, "artifacts": _artifacts}
    for place, look in places.items():
        starts(place)
        try:
            yield from look(scope)
        except (exceptions.NotFound, exceptions.BadRequest) as error:
            yield f"not checked: {place}: {first_line(error)}"
        except exceptions.Forbidden as error:  # from Vertex AI over gRPC, from Cloud Storage over REST
            role = "aiplatform.viewer" if isinstance(error, exceptions.PermissionDenied) else "storage.objectViewer"
            yield f"not checked: {place}: {first_line(error)}; it needs roles/{role}"


def _models(scope: Scope) -> Iterator[Unused]:
    """Yield the deployed models without traffic.

    An endpoint that a push changes is in use, and so is a model in its grace period. The live version always is, the
    previous version until its grace period has ended.
    """
    registry = Registry(scope.cloud, scope.config.name)
    for endpoint in scope.cloud.client(v1.EndpointServiceClient).list_endpoints(parent=scope.cloud.parent, retry=RETRY):
        push = push_of(endpoint)
        for model in endpoint.deployed_models if not push or push.until <= time.time() else ():
            replicas, machine = model.dedicated_resources.min_replica_count, model.dedicated_resources.machine_spec
            is_ours = last_part(model.model.partition("@")[0]) == scope.config.name
            is_used = endpoint.traffic_split.get(model.id) or model.create_time >= scope.since
            due = endpoint.labels.get(f"{DUE}{model.id}")
            if not is_ours or is_used or not replicas or float(due or 0) > time.time():
                continue
            versions = filter(None, map(registry.with_alias, [LIVE] if due else [LIVE, PREVIOUS]))
            if model.id in {deployed_id(endpoint, version) for version in versions}:
                continue
            accelerator = v1.AcceleratorType(machine.accelerator_type).name if machine.accelerator_type else None
            which = (machine.machine_type, accelerator, machine.accelerator_count)
            machines = f"{replicas} x {which[0]}" + (f" with {which[2]} {accelerator}" if accelerator else "")
            words = ("undeploy-model", last_part(endpoint.name), f"--deployed-model-id={model.id}")
            place = {"region": scope.cloud.region, "spot": model.dedicated_resources.spot, "use": "prediction"}
            what = f"{model.display_name or model.id} on the endpoint {endpoint.display_name}: no traffic, {machines}"
            price = _price(replicas * HOURS_A_MONTH, scope.prices.per_hour, *which, **place)
            yield Unused(what, price, scope.command("gcloud", "ai", "endpoints", *words))


def _tensorboards(scope: Scope) -> Iterator[Unused]:
    client, machines = scope.cloud.client(v1.TensorboardServiceClient), scope.vertex.machines
    ours = {last_part(job.tensorboard) for job in (machines.training, machines.tuning) if job and job.tensorboard}
    boards = client.list_tensorboards(parent=scope.cloud.parent, retry=RETRY)
    for board in (board for board in boards if last_part(board.name) in ours):
        experiments = list(client.list_tensorboard_experiments(parent=board.name, retry=RETRY))
        runs = [run for one in experiments for run in client.list_tensorboard_runs(parent=one.name, retry=RETRY)]
        last = max([board.create_time, *(one.update_time for one in (*experiments, *runs))])
        size = client.read_tensorboard_size(tensorboard=board.name, retry=RETRY).storage_size_byte
        if size and last < scope.since:
            what = f"TensorBoard {board.display_name}: {size / GIB:,.2f} GiB, all of it older than {last:%Y-%m-%d}"
            price = _price(size / GIB, scope.prices.price, "tensorboard", scope.cloud.region)
            yield Unused(what, price, scope.command("gcloud", "ai", "tensorboards", "delete", last_part(board.name)))


def _schedules(scope: Scope) -> Iterator[Unused]:
    for schedule in list_schedules(scope.cloud):
        if schedule.display_name == scope.config.name and schedule.state == v1.Schedule.State.ACTIVE:
            key = last_part(schedule.name)
            runs = [job for job in scope.jobs() if last_part(job.schedule_name) == key and job.state in ENDED_STATES]
            if len(runs) >= RUNS and not any(pushed_to(scope.job(last_part(job.name))) for job in runs[:RUNS]):
                what = f"schedule {schedule.display_name}: its last {RUNS} runs pushed no model"
                yield Unused(what, None, scope.command("python", "vertex_runner.py", "pause", key))


def _artifacts(scope: Scope) -> Iterator[Unused | str]:
    """Yield the folders of old runs that nothing needs, if Vertex AI lists their jobs here.

    A bucket may hold runs of other regions and projects, whose live models are not visible from here.
    """
    start = f"{scope.config.name}/artifacts/"
    folders: dict[str, list[Any]] = {}
    for blob in scope.cloud.storage().list_blobs(scope.vertex.bucket, prefix=start):
        if found := FOLDER.match(blob.name):
            folders.setdefault(found[1], []).append(blob)
    written = {folder: max(blob.updated for blob in blobs) for folder, blobs in folders.items()}
    # Vertex AI names jobs by the number of the project, as the folders do.
    jobs = {f"{start}{job.name.split('/')[1]}/{last_part(job.name)}": job for job in scope.jobs()}
    old = [folder for folder in jobs if written.get(folder, scope.since) < scope.since]
    needed = _needed(folders, jobs, scope) if old else set()
    unused = [folder for folder in old if last_part(folder) not in needed]
    for folder in unused:
        size = sum(blob.size for blob in folders[folder]) / GIB
        is_standard = all(blob.storage_class in (None, "STANDARD") for blob in folders[folder])
        price = _price(size, scope.prices.price, "storage", scope.cloud.region) if is_standard else None
        what = f"artifacts of the run {last_part(folder)}: {size:,.2f} GiB, the newest of {written[folder]:%Y-%m-%d}"
        command = shlex.join(["gcloud", "storage", "rm", "--recursive", f"gs://{scope.vertex.bucket}/{folder}/"])
        yield Unused(what, price, command)
    if unused:
        yield "after you delete artifacts, run once with --caching off: the cache still names them"


def _needed(folders: Mapping[str, Sequence[Any]], jobs: Mapping[str, v1.PipelineJob], scope: Scope) -> set[str]:
    """Return the ids of the jobs that are needed, or of which an artifact is."""
    versions = filter(None, map(Registry(scope.cloud, scope.config.name).with_alias, (LIVE, PREVIOUS)))
    labels = {version.labels[RUN] for version in versions if RUN in version.labels}
    label_of = {last_part(folder): as_label(last_part(folder)) for folder in jobs}
    needed = {key for key, label in label_of.items() if label in labels} | (labels - set(label_of.values()))
    for pattern in LOOKED_UP:
        found = [(blob.updated, name) for name, blobs in folders.items() for blob in blobs if pattern.search(blob.name)]
        needed.update(last_part(folder) for _, folder in sorted(found)[-1:])
    needed.update(map(last_part, [folder for folder in jobs if folder in folders][:1]))  # the newest run
    for folder, job in jobs.items():
        if job.state not in ENDED_STATES or (job.end_time or job.create_time) >= scope.since:
            needed.add(last_part(folder))
    # Settings, schedules and jobs name what they read; a job also names what a cached step took from an older run.
    texts = [repr(scope.config), *(v1.Schedule.to_json(schedule) for schedule in list_schedules(scope.cloud))]
    texts += [v1.PipelineJob.to_json(scope.job(key)) for key in needed]
    place = re.escape(f"{scope.vertex.bucket}/{scope.config.name}/artifacts/")
    return needed.union(*(re.findall(rf"{place}[0-9]+/([a-z][a-z0-9-]*)", text) for text in texts))


def last_part(name: str) -> str:
    """Return the id in a resource name; projects come back by their number, so that whole names may differ."""
    return name.rpartition("/")[2]


def _price(amount: float, rate: Callable[..., float], *of: Any, **settings: Any) -> float | None:
    try:
        return amount * rate(*of, **settings)
    except UserError:
        return None
