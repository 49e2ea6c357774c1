"""Check before a run that an engine of Beam answers, and that its workers see the artifacts and have this library."""

import contextlib
import difflib
import io
import json
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline import filesystem
from pipeline.errors import UserError, first_line
from pipeline.packaging.fingerprints import library_fingerprint
from pipeline.settings.target import IN_PROCESS, Target

# Options with the address of a server.
ADDRESSES = ("job_endpoint", "flink_master", "spark_master_url", "spark_rest_url")
SECONDS_TO_ANSWER = 10
# Files in the artifacts' folder: from this machine for a worker, and from a worker for this machine.
PROBE, ANSWER = "asked", "answered.json"


def check(target: Target) -> None:
    """Check a target's engine with a small job, unless it is this process; raise a UserError if it is unusable."""
    if target.beam_args == IN_PROCESS:
        return
    runner = target.beam_args[0].removeprefix("--runner=")
    options = _parsed(target.beam_args)
    for name in ADDRESSES:
        _check_answers(name, options.get(name))
    folder = Path(target.pipeline_root)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="_engine-", dir=folder) as place:
        Path(place, PROBE).touch()
        try:
            with beam.Pipeline(options=PipelineOptions(list(target.beam_args))) as pipeline:
                _ = pipeline | beam.Create([place]) | beam.Map(answer)
        except Exception as error:
            raise UserError(
                f"{runner} has not done a first small job: {_last_line(error)}. Are the workers' Python, Beam and this "
                "pipeline's library those of this machine (make image)? The log has more"
            ) from error
        file = Path(place, ANSWER)
        if not file.exists():
            raise UserError(
                f"the workers of {runner} do not see {folder}, where the artifacts are; expected a drive that this "
                "machine and all workers have under the same path: choose one with --output"
            )
        theirs, ours = json.loads(file.read_text(encoding="utf-8"))["library"], library_fingerprint()
    if theirs != ours:
        raise UserError(
            f"the workers of {runner} have the library {theirs}, this machine has {ours}: results would be of neither; "
            "build their image from this code (make image)"
        )


def answer(folder: str) -> None:
    """Write the fingerprint of a worker's library into a folder, if the worker sees this machine's file there."""
    if filesystem.exists(f"{folder}/{PROBE}"):
        filesystem.write(f"{folder}/{ANSWER}", json.dumps({"library": library_fingerprint()}))


def _parsed(flags: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the options that Beam knows; an engine may know more."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            known = PipelineOptions(list(flags)).get_all_options()
            all_names = PipelineOptions(list(flags)).get_all_options(retain_unknown_options=True)
    except SystemExit as error:
        raise UserError(
            f"Beam does not take its options: {said.getvalue().strip().rpartition('error: ')[2]}"
        ) from error
    for name in all_names.keys() - known.keys():
        if near := difflib.get_close_matches(name, known, 1, cutoff=0.8):
            raise UserError(f"Beam has no option {name!r}; did you mean {near[0]}?")
    return known


def _check_answers(name: str, address: str | None) -> None:
    """Raise a UserError if no server answers at the HOST:PORT or URL of an option; words such as "[local]" pass."""
    address = address or ""
    try:
        parts = urlsplit(address if "//" in address else f"//{address}")
        if not parts.port:
            return
    except ValueError:
        return
    try:
        socket.create_connection((parts.hostname, parts.port), SECONDS_TO_ANSWER).close()
    except OSError as error:
        raise UserError(
            f"no server answers at {address}, the Beam option {name}: {error.strerror or error}; start the server, or "
            "correct the address"
        ) from error


def _last_line(error: Exception) -> str:
    """Return the last line of a job's error, which is often a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else first_line(error)
