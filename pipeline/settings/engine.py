"""The engine of Beam that runs the data steps in place of this process: its name and options, checked before it starts.

Whatever only Beam or the engine itself can check, is checked in ``pipeline.runs.engine``.
"""

import difflib
from collections.abc import Iterator, Mapping

from pipeline.errors import UserError
from pipeline.settings.checks import listed

# Engines with a job server, and the options of which each needs one.
PORTABLE = {
    "FlinkRunner": ("flink_master", "job_endpoint"),
    "PortableRunner": ("job_endpoint",),
    "SparkRunner": ("spark_master_url", "spark_rest_url", "job_endpoint"),
}
IMAGE = "sdk_container_image"
# Flushes a buffer during a write and loses the rest of the data.
BY_THE_CLOCK = "data_buffer_time_limit_ms"


def beam_args(runner: str, options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command line for Beam with one of its runners; raise a UserError that lists every problem.

    Args:
        runner: A name in ``PORTABLE``.
        options: Options of Beam and the runner, by name without dashes; "" for a flag without a value.
    """
    problems = list(_problems(runner, options))
    if problems:
        raise UserError("\n".join(problems))
    given = dict(options)
    if IMAGE in given:
        given |= {"environment_type": "DOCKER", "environment_config": given[IMAGE]}
    # A placeholder: without an image, TFX packages itself for the workers.
    given.setdefault(IMAGE, "none")
    return (f"--runner={runner}", *(f"--{name}={value}" if value else f"--{name}" for name, value in given.items()))


def _problems(runner: str, options: Mapping[str, str]) -> Iterator[str]:
    if runner == "DataflowRunner":
        yield (
            "DataflowRunner: its workers see buckets only, and a run on this machine keeps its artifacts here; "
            "python vertex_runner.py --dataflow on runs the data steps there"
        )
        return
    if runner == "FnApiRunner":
        yield "FnApiRunner runs the data steps already, in this process; several of its workers lose rows"
        return
    if runner not in PORTABLE:
        near = difflib.get_close_matches(runner, PORTABLE, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        yield f"no Beam runner {runner!r}: {hint}expected one of {listed(PORTABLE)}"
        return
    for name in options:
        if name.startswith("-"):
            yield f"the Beam option {name!r} begins with a dash; write {name.lstrip('-')}"
    if "runner" in options:
        yield f"the Beam option runner is {options['runner']!r}, and the runner is chosen already: {runner}"
    if BY_THE_CLOCK in options.get("experiments", options.get("experiment", "")):
        yield f"the Beam experiment {BY_THE_CLOCK} makes workers lose rows (docs/decisions/0028); leave it out"
    addresses = PORTABLE[runner]
    found = [name for name in addresses if name in options]
    if not found:
        yield f"{runner} needs {' or '.join(addresses)}, where its jobs go: HOST:PORT"
    if len(found) > 1:
        yield f"the Beam options {' and '.join(found)} exclude each other: both say where jobs go; leave one out"
    kind = options.get("environment_type", "DOCKER" if IMAGE in options else "")
    if not kind:
        yield (
            f"{runner} needs {IMAGE}, which make image builds, for workers in containers, or "
            "environment_type: without either it would take Beam's own image, which has nothing of this pipeline"
        )
    elif IMAGE in options and (kind != "DOCKER" or "environment_config" in options):
        other = "environment_config" if kind == "DOCKER" else f"environment_type={kind}"
        yield f"the Beam options {IMAGE} and {other} exclude each other: both say what workers are; leave one out"
