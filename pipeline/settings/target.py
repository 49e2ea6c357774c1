"""WHERE the pipeline runs; WHAT it does is ``pipeline.settings.config``. The graph is the same for every target."""

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from pipeline.errors import UserError
from pipeline.settings.checks import Count, check_settings, number, problems_of, text
from pipeline.settings.endpoint import IMAGE_NAME, Endpoint
from pipeline.settings.engine import beam_args
from pipeline.settings.machines import Machines, MachineType, ServiceAccount

FailurePolicy = Literal["fast", "slow"]
EngineName = Literal["fast", "stock"]
KEEP_VERSIONS = 5
# One Beam worker in this process: each further process imports TensorFlow again. Not DirectRunner, which downloads
# another engine (Prism). The image is not read: where none is named, TFX packs itself for workers elsewhere.
IN_PROCESS = (
    "--runner=FnApiRunner",
    "--direct_running_mode=in_memory",
    "--direct_num_workers=1",
    "--sdk_container_image=none",
)
# Names of Google Cloud.
Project = Annotated[str, text("a project id, such as my-project", r"[a-z][a-z0-9.:-]+|\d+")]
Region = Annotated[str, text("a region, such as europe-west4", r"[a-z]+-[a-z]+\d+")]
Bucket = Annotated[
    str, text("the name of a bucket without gs://, such as my-bucket", r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
]
Image = Annotated[str, text("an image with its tag or digest, such as REGION-docker.pkg.dev/p/r/i:tag", IMAGE_NAME)]
Network = Annotated[
    str, text("projects/PROJECT_NUMBER/global/networks/NAME", r"projects/\d+/global/networks/[a-z0-9-]+")
]
Subnetwork = Annotated[
    str,
    text("regions/REGION/subnetworks/NAME", r"(https://\S+/)?(projects/[^/]+/)?regions/[^/]+/subnetworks/[a-z0-9-]+"),
]
EncryptionKey = Annotated[
    str,
    text(
        "projects/PROJECT/locations/REGION/keyRings/RING/cryptoKeys/KEY",
        r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+",
    ),
]
SecretVersion = Annotated[
    str,
    text(
        "a version of a secret in Secret Manager, projects/PROJECT/secrets/NAME/versions/latest; to make one: gcloud "
        "secrets create NAME --data-file=FILE",
        r"projects/[^/]+/secrets/[\w-]+/versions/(\d+|latest)",
    ),
]
# "Must be 4-128 characters in length. Valid characters are /[a-z][0-9]-/": CreateContextRequest.context_id.
Experiment = Annotated[str, text("4 to 128 lower-case letters, digits and -", r"[a-z0-9-]{4,128}")]
Folder = Annotated[str, text("a folder gs://bucket/folder", r"gs://[a-z0-9][^/]+(/.*)?")]
Versions = Annotated[
    int,
    number(
        "a whole number of 2 or more, for a rollback to have something to go back to", lambda value: value >= 2, (int,)
    ),
]


@dataclass(frozen=True)
class Target:
    """One place to run.

    Attributes:
        pipeline_root: Folder of all artifacts, here or gs://bucket/folder.
        push_to: Folder that receives pushed models as ``<version>/``, as TensorFlow Serving expects them.
        keep_versions: The newest pushed versions that stay there; a rollback needs two.
        metadata: SQLite file of ML Metadata, which remembers every run and makes steps cacheable; None: Vertex AI does.
        beam_args: Options of the Beam runner for the data steps.
        staging: Folder here for what steps read below ``pipeline_root`` (the user's code, the schema), to be uploaded
            before the run; None: ``pipeline_root`` itself.
        caching: Whether a step whose inputs have not changed is skipped.
        vertex: Where on Vertex AI; None: this machine.
        engine: "fast": with the accelerators of ``pipeline.fast``; "stock": the executors and the launcher of TFX.
    """

    pipeline_root: str
    push_to: str
    metadata: str | None
    beam_args: tuple[str, ...] = ()
    staging: str | None = None
    caching: bool = True
    vertex: "Vertex | None" = None
    keep_versions: Versions = KEEP_VERSIONS
    engine: EngineName = "fast"

    def __post_init__(self) -> None:
        check_settings("", self)

    @classmethod
    def local(cls, output: Path, name: str, keep_versions: int = KEEP_VERSIONS) -> "Target":
        """Return this machine, everything below one folder; ``name`` is the model's name below ``output/serving``."""
        return cls(
            pipeline_root=str(output / "artifacts"),
            push_to=str(output / "serving" / name),
            metadata=str(output / "metadata.sqlite"),
            beam_args=IN_PROCESS,
            keep_versions=keep_versions,
        )

    @classmethod
    def beam(
        cls, output: Path, name: str, runner: str, options: Mapping[str, str], keep_versions: int = KEEP_VERSIONS
    ) -> "Target":
        """Return this machine with an engine of Beam for the data steps, whose workers see ``output`` by the same path.

        The options are of Beam and the runner, by name; "" for one that takes no value.
        """
        return replace(cls.local(output, name, keep_versions), beam_args=beam_args(runner, options))

    @classmethod
    def on_vertex(cls, vertex: "Vertex", name: str, staging: Path) -> "Target":
        """Return Vertex AI, everything below ``gs://<bucket>/<name>``; ``staging`` is a folder here."""
        root = f"gs://{vertex.bucket}/{name}"
        # BigQuery asks for the first two, whatever engine Beam runs on.
        beam_args = (*IN_PROCESS, f"--project={vertex.project}", f"--temp_location={root}/temp")
        return cls(
            pipeline_root=f"{root}/artifacts",
            push_to=f"{root}/serving",
            metadata=None,
            beam_args=vertex.dataflow.beam_args if vertex.dataflow else beam_args,
            staging=str(staging),
            caching=vertex.caching,
            vertex=vertex,
        )

    @property
    def files(self) -> Path:
        """Return the folder here in which the steps' inputs below ``pipeline_root`` are written."""
        return Path(self.staging or self.pipeline_root)

    def address(self, file: Path) -> str:
        """Return where the steps find a file that lies below ``files`` here."""
        return f"{self.pipeline_root}/{file.relative_to(self.files).as_posix()}"


@dataclass(frozen=True)
class Vertex:
    """Vertex AI Pipelines: where its jobs run, and with which account.

    Attributes:
        image: Container image of every task, as ``make image`` builds it.
        root_image: The same image with user root, for Vizier's trials; None: ``image`` with "-root" after its tag.
        service_account: E-mail address of the tasks' account; None: the project's default, with nearly all permissions.
        labels: Labels of the job and of everything it starts, for billing and search.
        webhook_url: Secret with the address that gets the outcome of a run, which ``webhook_secret`` signs.
        failure_policy: After a failed task, "slow" runs all tasks that do not depend on it, then reports; "fast" starts
            no further task, and the command that waits for the job reports.
        dataflow: Settings to run the data steps in Dataflow; None: they run in their tasks.
        endpoint: Where a pushed model is deployed; None: the model is pushed to the bucket only.
    """

    project: Project
    region: Region
    bucket: Bucket
    image: Image
    root_image: Image | None = None
    service_account: ServiceAccount | None = None
    network: Network | None = None
    encryption_key: EncryptionKey | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    caching: bool = True
    experiment: Experiment | None = None
    webhook_url: SecretVersion | None = None
    webhook_secret: SecretVersion | None = None
    failure_policy: FailurePolicy = "slow"
    dataflow: "Dataflow | None" = None
    machines: Machines = field(default_factory=Machines)
    endpoint: Endpoint | None = None

    @property
    def image_as_root(self) -> str:
        """Return the image whose user is root."""
        return self.root_image or as_root(self.image)

    def __post_init__(self) -> None:
        problems = [*problems_of("vertex.", self), *self._other_problems()]
        if problems:
            raise UserError("\n".join(problems))

    def _other_problems(self) -> Iterator[str]:
        if (self.webhook_url is None) != (self.webhook_secret is None):
            yield "vertex.webhook_url and vertex.webhook_secret need each other: give both or neither"
        for key, value in self.labels.items():
            # https://cloud.google.com/resource-manager/docs/labels-overview
            if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key) or not re.fullmatch(r"[a-z0-9_-]{0,63}", value):
                yield (
                    f"vertex.labels must be lower-case letters, digits, _ and -, at most 63 of each, "
                    f"such as team=flights, got {key}={value}"
                )
        place = self.endpoint.name if self.endpoint and self.endpoint.is_resource_name else ""
        if place and f"/locations/{self.region}/" not in place:
            yield (
                f"endpoint.name is {place} and the pipeline runs in {self.region}; take an endpoint there, or --region "
                f"{place.split('/')[3]}"
            )
        if self.encryption_key and f"/locations/{self.region}/" not in self.encryption_key:
            yield f"vertex.encryption_key must be in the region {self.region}, got {self.encryption_key!r}"


@dataclass(frozen=True)
class Dataflow:
    """Google Cloud Dataflow as the engine of the data steps; its image is ``Vertex.image_as_root``."""

    project: Project
    region: Region
    temp_location: Folder
    image: Image
    machine_type: MachineType = "n2-standard-4"
    max_workers: Count = 10
    service_account: ServiceAccount | None = None
    encryption_key: EncryptionKey | None = None
    subnetwork: Subnetwork | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_settings("dataflow.", self)

    @property
    def beam_args(self) -> tuple[str, ...]:
        """Return the options for Beam."""
        given = {
            "project": self.project,
            "region": self.region,
            "temp_location": self.temp_location,
            "sdk_container_image": self.image,
            # The image has everything; without this Dataflow would install Beam once more on every worker.
            "sdk_location": "container",
            "machine_type": self.machine_type,
            "autoscaling_algorithm": "THROUGHPUT_BASED",
            "max_num_workers": self.max_workers,
            "service_account_email": self.service_account,
            "dataflow_kms_key": self.encryption_key,
            "subnetwork": self.subnetwork,
        }
        options = [f"--{name}={value}" for name, value in given.items() if value]
        public = ["--no_use_public_ips"] if self.subnetwork else []
        labels = [f"--labels={key}={value}" for key, value in self.labels.items()]
        return ("--runner=DataflowRunner", *options, *public, *labels)


def as_root(image: str) -> str:
    """Return the name that ``make image`` gives to an image with root as its user."""
    return f"{image}-root"


@contextlib.contextmanager
def only_run_in(output: Path) -> Iterator[None]:
    """Lock a folder for one run; raise UserError where it cannot be written, or another run holds it."""
    if odd := re.search(r"[*?\[\]\\]", str(output)):
        raise UserError(
            f"the output folder {output} has {odd[0]} in its path, which TensorFlow takes for a pattern when it loads "
            "a model; choose another with --output"
        )
    lock = output / ".lock"
    try:
        output.mkdir(parents=True, exist_ok=True)
        if lock.is_dir():
            _check_place(lock, is_folder=False)
        # Append: opening must not wipe the number of the process that holds it.
        file = lock.open("a+", encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"cannot write to the output folder {output}: {error.strerror}; choose another with --output"
        ) from error
    for name in ("artifacts", "logs", "runs", "serving", "metadata.sqlite", "verdict.json"):
        _check_place(output / name, is_folder="." not in name)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise UserError(
                f"another run (process {file.read().strip() or 'unknown'}) is using {output}; "
                "wait until it has ended or choose another folder with --output"
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _check_place(path: Path, is_folder: bool) -> None:
    if not path.exists():
        return
    if path.is_dir() != is_folder:
        found, expected = ("file", "folder") if is_folder else ("folder", "file")
        raise UserError(
            f"{path} is a {found}, and a run has a {expected} there; move it away or choose another output folder with "
            "--output"
        )
    if not os.access(path, os.W_OK):
        raise UserError(
            f"{path} cannot be written; change its permissions or choose another output folder with --output"
        )
