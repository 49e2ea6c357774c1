"""WHERE the pipeline runs: roots, metadata store, push destination, Beam options.

Frozen, standard library only. The graph is the same for every target; WHAT it does is ``pipeline.config``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import UserError


@dataclass(frozen=True)
class Target:
    """One place to run.

    Attributes:
        pipeline_root: Folder of all artifacts.
        push_to: Folder that receives pushed models as ``<version>/``, as TensorFlow Serving expects them.
        metadata: SQLite file of ML Metadata, which remembers every run and makes steps cacheable.
        beam_args: Options of the Beam runner for the data steps.
    """

    pipeline_root: str
    push_to: str
    metadata: str
    beam_args: tuple[str, ...] = ()

    @classmethod
    def local(cls, output: Path, name: str) -> Target:
        """This machine, everything below one folder; ``name`` is the model's name below ``output/serving``."""
        return cls(
            pipeline_root=str(output / "artifacts"),
            push_to=str(output / "serving" / name),
            metadata=str(output / "metadata.sqlite"),
            # One Beam worker in this process: two processes were slower (57 s against 35 s for Transform), because each
            # imports TensorFlow again.
            # Not DirectRunner: Beam 2.77 would first download another engine (Prism) from GitHub and run on that, and
            # only without a network on this one.
            beam_args=("--runner=FnApiRunner", "--direct_running_mode=in_memory", "--direct_num_workers=1"),
        )


@dataclass(frozen=True)
class Dataflow:
    """Google Cloud Dataflow as the engine of the data steps, for data past one machine: ``Target.beam_args`` from it.

    Attributes:
        project: Google Cloud project that runs and pays the jobs.
        region: Such as "europe-west4"; near the data.
        temp_location: Folder gs://... for what is in passing.
        image: Container image of the workers, with this repository's packages in it; the image of the Vertex tasks will
            do.
        machine_type: Of a worker.
        max_workers: Most workers; Dataflow takes as many as the work at hand keeps busy.
        service_account: E-mail address the workers act as; None: the project's default.
    """

    project: str
    region: str
    temp_location: str
    image: str
    machine_type: str = "n2-standard-4"
    max_workers: int = 10
    service_account: str | None = None

    def __post_init__(self) -> None:
        expected = {
            "project": (r"[a-z][a-z0-9.:-]+", "a project id, such as my-project"),
            "region": (r"[a-z]+-[a-z]+\d+", "a region, such as europe-west4"),
            "temp_location": (r"gs://[a-z0-9][^/]+(/.*)?", "a folder gs://bucket/folder"),
            "image": (
                r"[^/\s]+/.*\S[:@]\S+",
                "an image with its tag or digest, such as REGION-docker.pkg.dev/p/r/i:tag",
            ),
            "machine_type": (r"[a-z0-9]+-[a-z0-9-]+", "a machine type, such as n2-standard-4"),
        }
        for name, (pattern, example) in expected.items():
            value = getattr(self, name)
            if not isinstance(value, str) or not re.fullmatch(pattern, value):
                raise UserError(f"dataflow.{name} must be {example}, got {value!r}")
        if not isinstance(self.max_workers, int) or isinstance(self.max_workers, bool) or self.max_workers < 1:
            raise UserError(f"dataflow.max_workers must be a whole number of 1 or more, got {self.max_workers!r}")

    @property
    def beam_args(self) -> tuple[str, ...]:
        """The options of Beam that say so."""
        arguments = [
            "--runner=DataflowRunner",
            f"--project={self.project}",
            f"--region={self.region}",
            f"--temp_location={self.temp_location}",
            f"--sdk_container_image={self.image}",
            # The image has everything; without this Dataflow would install Beam once more on every worker.
            "--sdk_location=container",
            f"--machine_type={self.machine_type}",
            "--autoscaling_algorithm=THROUGHPUT_BASED",
            f"--max_num_workers={self.max_workers}",
        ]
        if self.service_account:
            arguments.append(f"--service_account_email={self.service_account}")
        return tuple(arguments)


@contextlib.contextmanager
def only_run_in(output: Path) -> Iterator[None]:
    """Holds a folder for one run; two at once would write over each other's metadata.

    Raises:
        UserError: the folder cannot be written, or another run holds it.
    """
    lock = output / ".lock"
    try:
        output.mkdir(parents=True, exist_ok=True)
        # Append: opening must not wipe the number of the process that holds it.
        file = lock.open("a+", encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"cannot write to the output folder {output}: {error.strerror}; choose another with --output"
        ) from error
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
