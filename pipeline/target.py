"""WHERE the pipeline runs: roots, metadata store, push destination, Beam options.

Frozen, standard library only. The graph is the same for every target; WHAT it does is ``pipeline.config``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
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
            beam_args=("--runner=DirectRunner", "--direct_running_mode=in_memory", "--direct_num_workers=1"),
        )


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
