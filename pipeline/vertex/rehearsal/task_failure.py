"""Turn the log of a failed task into one message, with what differs from a local run if that is the reason."""

import re
import signal
from pathlib import Path

from pipeline.settings.repository import REPOSITORY, shown

EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Failed|Interrupt))(?:: (.*))?$")
FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+), in (.+)$')
# Exceptions whose class adds nothing to the message.
OURS = ("pipeline.errors.UserError", "pipeline.vertex.jobs.launch.JobFailed")


def failure_message(log: Path, code: int, module: Path) -> str:
    """Return one message from the log of a task that ended with an exit code.

    Args:
        log: Output of the process.
        code: Its exit code; negative is the signal that ended it.
        module: The user's module file.
    """
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
    """Return what is different in a task, if that is the reason."""
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
