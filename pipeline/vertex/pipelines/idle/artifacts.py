"""Old artifacts in the bucket, by the run that wrote them."""

import collections
import datetime
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from google.cloud import aiplatform_v1 as v1

from pipeline.vertex.cloud import RETRY
from pipeline.vertex.endpoints.registry import LIVE, PREVIOUS, RUN, Registry, as_label
from pipeline.vertex.pipelines.idle import rates
from pipeline.vertex.pipelines.idle.finding import GIB, Idle, Note, Scope, size_of

# A part of a name, without what gcloud storage takes for a pattern: a run named "*" would delete all others.
_PART = r"[^/*?\[\]{}]"
# <pipeline>/artifacts/<number of the project>/<run>/..., and copies of the data that was on a machine.
FOLDER = re.compile(
    rf"(?P<pipeline>{_PART}+)/artifacts/(?P<of>_data/{_PART}+|(?!_){_PART}+/(?P<run>{_PART}+))/.+", re.DOTALL
)
# What the Evaluator leaves; the newest is what the next run is compared with.
BLESSED = re.compile(r".*/blessing/BLESSED")
# Runs that get a line of their own: the largest, of a GiB or more.
MOST_LINES = 10
FIELDS = "items(name,size,updated,storageClass),nextPageToken"


@dataclass
class Folder:
    """The objects of one run, or one copy of data.

    Attributes:
        pipeline: Name of the pipeline.
        prefix: Its name in the bucket, with a slash behind it.
        run: Id of the run; None: a copy of data.
        written: When the newest was written.
        sizes: Bytes by storage class.
        blessed: Whether a model of it was blessed.
    """

    pipeline: str
    prefix: str
    run: str | None
    written: datetime.datetime
    sizes: collections.Counter[str] = field(default_factory=collections.Counter)
    blessed: bool = False

    @property
    def size(self) -> int:
        """Return the bytes of all."""
        return self.sizes.total()


def look(scope: Scope) -> Iterator[Idle | Note]:
    """Yield the artifacts of runs that nothing needs and that are older than the days, and the sizes by age.

    Kept are those of the versions that are live or were before, of the newest blessed model, and whatever a run of
    these days has read or written: a cached step names the artifacts of an old run.

    Raises:
        GoogleAPICallError: the bucket, the registry or the jobs may not be read.
    """
    folders = _folders(scope)
    if not folders:
        return
    yield Note(_by_age(folders, scope))
    old = [folder for folder in folders if folder.written < scope.since]
    kept = _kept(folders, scope) if old else set()
    idle = sorted((folder for folder in old if folder.prefix not in kept), key=lambda folder: -folder.size)
    large = [folder for folder in idle if folder.size >= GIB][:MOST_LINES]
    for group in filter(None, (*([folder] for folder in large), idle[len(large) :])):
        yield _as_idle(group, scope)
    if idle:
        yield Note("after artifacts were deleted, run once with --caching off: the cache still names them")


def _as_idle(group: Sequence[Folder], scope: Scope) -> Idle:
    first, newest = group[0], max(folder.written for folder in group)
    of = f"run {first.run}" if first.run else "a copy of its data"
    what = f"artifacts of {first.pipeline}, {of}" if len(group) == 1 else f"artifacts of {len(group)} runs"
    sizes = sum((folder.sizes for folder in group), collections.Counter[str]())
    ages = sorted({round(scope.age(newest)), round(scope.age(min(folder.written for folder in group)))})
    why = f"{size_of(sizes.total())}, written {' to '.join(map(str, ages))} days ago"
    addresses = [f"gs://{scope.bucket}/{folder.prefix}" for folder in group]
    command = shlex.join(["gcloud", "storage", "rm", "--recursive", *addresses])
    return Idle(what, why, rates.of_storage(sizes, scope), command)


def _folders(scope: Scope) -> list[Folder]:
    """Return the folders of runs and copies of data in the bucket."""
    prefix = None if scope.whole else f"{scope.pipeline}/artifacts/"
    folders: dict[str, Folder] = {}
    for blob in scope.cloud.storage().list_blobs(scope.bucket, prefix=prefix, fields=FIELDS):
        found = FOLDER.fullmatch(blob.name)
        if found:
            name = f"{found['pipeline']}/artifacts/{found['of']}/"
            folder = folders.setdefault(name, Folder(found["pipeline"], name, found["run"], blob.updated))
            folder.sizes[blob.storage_class or "STANDARD"] += blob.size
            folder.written = max(folder.written, blob.updated)
            folder.blessed |= bool(BLESSED.fullmatch(blob.name))
    return list(folders.values())


def _kept(folders: Iterable[Folder], scope: Scope) -> set[str]:
    """Return the prefixes of the folders that something needs."""
    kept = _named_by_jobs(folders, scope)
    by_pipeline = collections.defaultdict[str, list[Folder]](list)
    for folder in folders:
        by_pipeline[folder.pipeline].append(folder)
    for pipeline, own in by_pipeline.items():
        registry = Registry(scope.cloud, pipeline)
        versions = filter(None, (registry.with_alias(alias) for alias in (LIVE, PREVIOUS)))
        runs = {version.labels.get(RUN) for version in versions}
        kept |= {folder.prefix for folder in own if folder.run and as_label(folder.run) in runs}
        for newest in ([f for f in own if f.blessed], [f for f in own if not f.run]):
            kept |= {max(newest, key=lambda folder: folder.written).prefix} if newest else set()
    return kept


def _named_by_jobs(folders: Iterable[Folder], scope: Scope) -> set[str]:
    """Return the prefixes of the folders with artifacts that a job of these days names."""
    client = scope.cloud.client(v1.PipelineServiceClient)
    roots = {f"gs://{scope.bucket}/{folder.pipeline}/artifacts" for folder in folders}
    prefixes = {folder.prefix for folder in folders}
    recent = v1.ListPipelineJobsRequest(
        parent=scope.cloud.parent, filter=f'create_time>"{scope.since:%Y-%m-%dT%H:%M:%SZ}"'
    )
    named = set[str]()
    for listed in client.list_pipeline_jobs(recent, retry=RETRY):
        if listed.runtime_config.gcs_output_directory in roots:
            job = client.get_pipeline_job(name=listed.name, retry=RETRY)  # the list is without the tasks
            named |= {prefix for uri in _uris(job) if (prefix := _prefix_of(uri, scope)) in prefixes}
    return named


def _uris(job: v1.PipelineJob) -> Iterator[str]:
    for task in job.job_detail.task_details:
        for lists in (task.inputs, task.outputs):
            for artifacts in lists.values():
                yield from (artifact.uri for artifact in artifacts.artifacts)


def _prefix_of(uri: str, scope: Scope) -> str:
    found = FOLDER.fullmatch(f"{uri.removeprefix(f'gs://{scope.bucket}/')}/")
    return f"{found['pipeline']}/artifacts/{found['of']}/" if found else ""


def _by_age(folders: Iterable[Folder], scope: Scope) -> str:
    """Return how much there is, by age."""
    edges = (scope.days, 3 * scope.days)
    sizes = collections.Counter[int]()
    for folder in folders:
        sizes[sum(scope.age(folder.written) >= edge for edge in edges)] += folder.size
    young, middle, old = (size_of(sizes[place]) for place in range(3))
    return (
        f"artifacts in gs://{scope.bucket}: {size_of(sizes.total())}, of which {young} were written in the last "
        f"{edges[0]} days, {middle} in the {edges[1] - edges[0]} before, {old} earlier"
    )
