"""Run containers of tasks as processes on this machine, with nothing around them that Vertex AI has not.

The log of a failed task becomes one message, with what differs from a local run if that is the reason.
"""

import json
import os
import re
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
from pipeline.settings.repository import REPOSITORY, shown
from pipeline.vertex import REHEARSAL_VARIABLE, RUN_IN_IMAGE

# Variables of this shell that a task gets all the same: which GPUs there are and how they are reached.
KEPT_VARIABLES = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES")
# Takes this repository off the path, where it was installed in place; the image has pipeline/ and nothing else of it.
HIDES_THE_REPOSITORY = f"""\
import sys
sys.path[:] = [path for path in sys.path if path != {str(REPOSITORY)!r} and not path.startswith("__editable__")]
sys.meta_path[:] = [each for each in sys.meta_path if not getattr(each, "__module__", "").startswith("__editable__")]
"""
EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Failed|Interrupt))(?:: (.*))?$")
FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+), in (.+)$')
# Exceptions whose class adds nothing to the message.
OURS = ("pipeline.errors.UserError", "pipeline.vertex.jobs.launch.JobFailed")


class LocalContainers:
    """Run the commands of containers that have this pipeline's image; the caller deletes ``scratch``."""

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
        """Run the command of a task's container with its placeholders filled in; "{{$}}" is ``executor_input``."""
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
            # A new session, so that what it starts ends with it.
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


def failure_message(log: Path, code: int, module: Path) -> str:
    """Return one message from the log of a task that ended with an exit code."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [match for match in map(EXCEPTION.match, lines) if match]
    if errors:
        kind, text = errors[-1][1], errors[-1][2] or ""
        message = text if kind in OURS else f"{kind.rsplit('.', 1)[-1]}: {text}"
    elif code < 0:
        name = signal.Signals(-code).name
        message = f"ended by {name}" + (", which is how a machine without memory left ends it" if code == -9 else "")
        kind = text = ""
    else:
        message, kind, text = f"ended with exit code {code}", "", ""
    parts = [message, *_place(lines, module), *_reason(kind, text, module), f"  its log {shown(log)}"]
    return "\n".join(parts)


def _place(lines: list[str], module: Path) -> list[str]:
    """Return where in the user's code the error arose; the wheel keeps its line numbers."""
    own = {module.name, *(path.name for path in module.parent.glob("*.py"))}
    for number in range(len(lines) - 1, -1, -1):
        frame = FRAME.match(lines[number])
        if frame and Path(frame[1]).name in own and "site-packages" not in frame[1] and "/pipeline/" not in frame[1]:
            source = lines[number + 1].strip() if number + 1 < len(lines) else ""
            return [f"  at {shown(module.parent / Path(frame[1]).name)}, line {frame[2]}, in {frame[3]}: {source}"]
    return []


def _reason(kind: str, text: str, module: Path) -> list[str]:
    missing = re.match(r"No module named '([\w.]+)'", text)
    if kind == "ModuleNotFoundError" and missing:
        package = missing[1].split(".")[0]
        if (REPOSITORY / package).exists() or (module.parent / package).is_dir() or module.parent.name == package:
            return [
                f"  {package}/ is in this repository but not in the image of the tasks, which has the installed "
                f"packages and pipeline/. Of your code, {module.name} travels with the run, with the modules beside it "
                f'that it imports by their plain name: write "import x" in place of "from {package} import x"'
            ]
    if kind == "FileNotFoundError":
        return [
            "  a task runs on a machine of its own, in an empty folder: read files from the artifacts and the data, or "
            "put what is in them into the module file"
        ]
    return []
