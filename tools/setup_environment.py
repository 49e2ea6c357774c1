"""Make a virtual environment hold exactly the packages of requirements.lock, byte-compiled.

`make setup` gets here through tools/setup.sh, which picks the interpreter. A stamp, written last, says what the
environment was made from: the same inputs need no work, a new lock only its differences, and everything else (another
Python, a moved folder, an interrupted set-up) a new environment. Standard library only: nothing is installed yet.
"""

import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
SCRATCH = "setup-scratch"  # in the environment, while it is made
INPUTS = (LOCK, *(ROOT / "tools" / name for name in ("setup_environment.py", "older_glibc.py", "older_glibc.json")))

# What the log of a failed installation says -> what to do about it.
REMEDIES = (
    (
        r"No space left",
        "The disk is full: the environment takes about 3.5 GB and uv's cache about as much.",
    ),
    (
        r"(?i)no matching distribution|failed to fetch|error sending request|connection refused|timed out|dns error",
        "Is the package index reachable? Check the network and HTTPS_PROXY; for an index of your own set both "
        "PIP_INDEX_URL and UV_DEFAULT_INDEX (uv does not read pip's settings).",
    ),
    (
        r"(?i)failed to build",
        "On macOS pyfarmhash is compiled, which needs a C++ compiler: xcode-select --install.",
    ),
)


class SetupError(Exception):
    """The environment could not be made; the message says why and what to do."""


def main() -> int:
    """Makes the environment named on the command line, unless its stamp says that nothing has changed."""
    venv = Path(sys.argv[1]).absolute()
    stamp = venv / ".setup-stamp"
    made_from = _made_from(venv)
    try:
        if _read(stamp) == made_from:
            return 0
        with LOCK.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two terminals, one environment
            previous = _read(stamp)  # the other terminal may have made it meanwhile
            if previous != made_from:
                stamp.unlink(missing_ok=True)
                _make(venv, new=previous.splitlines()[:1] != made_from.splitlines()[:1])
                stamp.write_text(made_from)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted, the next make setup starts again.", file=sys.stderr)
        return 130
    return 0


def why_unsupported(system: str, machine: str, libc: tuple[str, str]) -> str | None:
    """Return why no wheels exist for this machine, None where they do. Takes what the `platform` module says."""
    name, version = libc
    if (system, machine) == ("Darwin", "arm64"):
        return None
    if (system, machine, name) == ("Linux", "x86_64", "glibc"):
        if tuple(int(part) for part in version.split(".")[:2]) >= (2, 34):
            return None
    if (system, machine) == ("Darwin", "x86_64"):
        found, remedy = "a Python for Intel Macs", "On Apple silicon install an arm64 Python, on an Intel Mac work in"
    elif system == "Linux":
        found, remedy = f"Linux {machine} with {f'{name} {version}' if name else 'no glibc (musl?)'}", "Work in"
    else:
        found, remedy = f"{system} {machine}", "Work in"
    return (
        f"this is {found}, and TensorFlow Data Validation and ml-metadata have wheels only for Linux x86-64 with "
        f"glibc 2.34 or newer and for macOS on Apple silicon. {remedy} a container: docker run --platform linux/amd64 "
        "python:3.12"
    )


def _make(venv: Path, *, new: bool) -> None:
    if problem := why_unsupported(platform.system(), platform.machine(), platform.libc_ver()):
        raise SetupError(problem)
    python, uv, log = venv / "bin/python", venv / "bin/uv", venv / "setup.log"
    started = time.monotonic()
    size = "about 3.5 GB, 1 to 2 minutes and the download" if new else "only what has changed"
    print(f"setup: installing {venv} with Python {platform.python_version()}: {size}. Log: {log}", flush=True)
    if new:
        _make_venv(venv)
    log.unlink(missing_ok=True)
    # pip installs nothing but uv.
    # fmt: off
    pip_install: list[str | Path] = [
        python, "-m", "pip", "install", "--require-hashes", "--no-deps", "-r", "/dev/stdin",
    ]
    uv_sync: list[str | Path] = [
        uv, "pip", "sync", LOCK, "--python", python, "--require-hashes",
        "--build-constraints", LOCK,  # some packages have no wheel: what builds them is pinned too
        "--compile-bytecode",  # `from tfx import v1` takes 7 s with byte code and 16 to 19 s without
    ]
    # fmt: on
    _run(pip_install, log, stdin=_entry_of("uv"))
    if platform.system() == "Linux":
        # Two packages have wheels for glibc 2.39 only; older_glibc.py makes them load on an older one.
        uv_sync += ["--python-platform", "x86_64-manylinux_2_39"]
    _run(uv_sync, log)
    # So that `import pipeline` works from every script and folder.
    _run([uv, "pip", "install", "--python", python, "--no-deps", "--no-build-isolation", "--editable", ROOT], log)
    if platform.system() == "Linux":
        _run([python, ROOT / "tools/older_glibc.py"], log)
    shutil.rmtree(venv / SCRATCH, ignore_errors=True)
    activate = shlex.quote(f"{venv}/bin/activate")
    print(f"setup: ready after {time.monotonic() - started:.0f} s. To use it in this shell: source {activate}")


def _make_venv(venv: Path) -> None:
    if venv.exists() and not (venv / "pyvenv.cfg").exists() and any(venv.iterdir()):
        raise SetupError(f"{venv} is there and is not a virtual environment; remove it or choose another VENV=path.")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if importlib.util.find_spec("ensurepip") is None:
        raise SetupError(
            f"{sys.executable} cannot make virtual environments (no module ensurepip). Install it, on Debian and "
            f"Ubuntu: apt install python{version}-venv; or name another Python: make setup PYTHON=/path/to/python"
        )
    # Not sys.executable: that may lie in the very environment to be cleared.
    command = [f"{sys.base_prefix}/bin/python{version}", "-m", "venv", "--clear", str(venv)]
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_environment())
    if made.returncode:
        raise SetupError(f"{' '.join(command)} failed: {made.stdout.strip()}")


def _run(command: Sequence[str | Path], log: Path, stdin: str = "") -> None:
    """Runs a command with its output in the log.

    Raises:
        SetupError: it failed; the message says what it said and what to do.
    """
    with log.open("ab") as stream:
        stream.write(f"$ {' '.join(map(str, command))}\n".encode())
        stream.flush()
        start = stream.tell()
        code = subprocess.run(
            command,
            input=stdin.encode(),
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=_environment(log.parent),
            cwd=ROOT,
        ).returncode
    if code:
        output = log.read_bytes()[start:].decode(errors="replace")
        lines = [line.strip().rstrip(".") for line in output.splitlines() if line.strip()]
        said = next(
            (line for line in lines if line.lower().startswith("error")), lines[-1] if lines else f"code {code}"
        )
        remedy = next((remedy for pattern, remedy in REMEDIES if re.search(pattern, output)), "")
        raise SetupError(" ".join(filter(None, ("installing failed.", f"{said}.", remedy, f"The whole log: {log}"))))


def _made_from(venv: Path) -> str:
    """One line that stays the same as long as the environment can be kept, one for what is installed in it."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in INPUTS)).hexdigest()
    return f"{venv} {os.path.realpath(sys.base_prefix)} {platform.python_version()}\n{digest}\n"


def _entry_of(package: str) -> str:
    """The lines of one package in the lock: version and hashes."""
    entry = re.search(rf"^{package}==.*\n(?:\s.*\n)*", LOCK.read_text(), re.MULTILINE)
    if entry is None:
        raise SetupError(f"{LOCK} does not list {package}; restore it (git checkout {LOCK.name}) or run make lock.")
    return entry.group()


def _environment(venv: Path | None = None) -> dict[str, str]:
    """Return our variables without the one that keeps byte code from being written.

    Args:
        venv: Environment in which temporary files are made, and uv's cache if there is no home folder for it: the
            system's folder for temporary files may be small. None: it is not there yet.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if venv:
        environment["TMPDIR"] = str(venv / SCRATCH)
        (venv / SCRATCH).mkdir(exist_ok=True)
        if not os.access(os.path.expanduser("~"), os.W_OK):
            environment = {"UV_CACHE_DIR": str(venv / SCRATCH), "PIP_NO_CACHE_DIR": "1", **environment}
    return environment


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
