"""Run containers of tasks as processes on this machine, with nothing around them that Vertex AI has not."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.errors import UserError
from pipeline.settings.repository import REPOSITORY
from pipeline.vertex import REHEARSAL_VARIABLE, RUN_IN_IMAGE
from pipeline.vertex.rehearsal.task_failure import failure_message

# Variables of this shell that a task gets all the same: which GPUs there are and how they are reached.
KEPT_VARIABLES = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES")
# Takes this repository off the path, where it was installed in place; the image has pipeline/ and nothing else of it.
HIDES_THE_REPOSITORY = f"""\
import sys
sys.path[:] = [path for path in sys.path if path != {str(REPOSITORY)!r} and not path.startswith("__editable__")]
sys.meta_path[:] = [each for each in sys.meta_path if not getattr(each, "__module__", "").startswith("__editable__")]
"""


class LocalContainers:
    """Run the commands of containers that have this pipeline's image.

    Args:
        scratch: Folder for the working folders; the caller deletes it.
        logs: Folder for the log of each container.
        module: The user's module file, for messages.
    """

    def __init__(self, scratch: Path, logs: Path, module: Path):
        self._scratch = scratch
        self._logs = logs
        self._module = module
        self._image = scratch / "image"
        self._image.mkdir()
        # A copy: through a link the library would find the rest of the repository, which the image has not.
        shutil.copytree(REPOSITORY / "pipeline", self._image / "pipeline")
        shutil.copy(REPOSITORY / "requirements-image.lock", self._image)
        (self._image / "sitecustomize.py").write_text(HIDES_THE_REPOSITORY)

    def run(
        self,
        name: str,
        container: Mapping[str, Any],
        executor_input: Mapping[str, Any],
        placeholders: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Run a container's command, with its placeholders filled in.

        Args:
            name: Of the task.
            container: As in the spec.
            executor_input: Value of the placeholder "{{$}}".
            placeholders: Values of other placeholders.

        Raises:
            UserError: it failed; the message says why.
        """
        values = {**placeholders, "{{$}}": json.dumps(executor_input)}
        command = [values.get(word, word) for word in (*container.get("command", ()), *container.get("args", ()))]
        unknown = [word for word in command if "{{$" in word]
        if unknown or not container.get("command"):
            raise UserError(
                f"{name} runs the image {container.get('image')} with {unknown or 'its own command'}: only tasks with "
                "this pipeline's image can be rehearsed"
            )
        folder = self._scratch / name
        for part in ("work", "home", "tmp"):
            (folder / part).mkdir(parents=True)
        # What Vertex AI itself sets; the rest are the image's own.
        environment = {variable["name"]: variable["value"] for variable in container.get("env", ())}
        environment[REHEARSAL_VARIABLE] = str(self._logs)
        if RUN_IN_IMAGE in os.environ:
            command = [*shlex.split(os.environ[RUN_IN_IMAGE]), *command]
        else:
            environment |= self._instead_of_image(folder)
        log = self._logs / f"{name}.log"
        with log.open("wb") as file:
            # A session of its own, so that what it starts ends with it.
            process = subprocess.Popen(
                command,
                cwd=folder / "work",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait()
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
        if code:
            raise UserError(failure_message(log, code, self._module))

    def _instead_of_image(self, folder: Path) -> dict[str, str]:
        """Return variables that make this environment one with the library and nothing else of the repository."""
        return {
            **{variable: os.environ[variable] for variable in KEPT_VARIABLES if variable in os.environ},
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]),
            "PYTHONPATH": str(self._image),
            "PYTHONUNBUFFERED": "1",
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            "LANG": "C.UTF-8",
        }
