"""ExampleGen: read and write files in several processes, where TFX's ``FileBasedExampleGen`` has one Beam worker.

It uses no private API. It also stores the decoded rows next to the examples (``pipeline.data.blocks``), for the other
fast executors.

Gain: see docs/decisions/0035-the-fast-engine.md. Equality with Beam: tests/fast/test_example_gen.py.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pipeline import filesystem
from pipeline.components.arrow_example_gen import ExampleGenExecutor
from pipeline.data import shard_files, shards
from pipeline.fast import beam_options
from pipeline.processes import Processes, processes

Part = TypeVar("Part")
Result = TypeVar("Result")
# Most processes at the same time: each has the rows of a shard in memory.
MAX_PROCESSES = 4


class FastExampleGenExecutor(ExampleGenExecutor):
    """Write the shards of examples in several processes where data and examples are on this machine."""

    def write(self, job: shards.Job) -> None:
        """Do a job."""
        is_local = beam_options.in_process(self._beam_pipeline_args) and not filesystem.is_remote(job.uri)
        job = dataclasses.replace(job, blocks=is_local)
        # A process that reads from a bucket has threads and must not be forked; images are read in threads already.
        if not is_local or job.images or filesystem.is_remote(job.folder):
            super().write(job)
            return
        with processes() as workers:
            if workers:
                write_side_by_side(workers, job)
                return
        super().write(job)


def write_side_by_side(workers: Processes, job: shards.Job) -> None:
    """Do what ``write_examples`` does, in several processes on this machine."""
    scans = _each(workers, shards.scan, job.files, job)
    written = _each(workers, shard_files.write, list(shards.plan(job, scans)), job)
    shard_files.finish(job, scans, written)


def _each(
    workers: Processes, work: Callable[[Part, shards.Job], Result], parts: Sequence[Part], job: shards.Job
) -> list[Result]:
    """Return the results of the work for each part; a process does several parts, because starting one takes time."""
    at_once = min(len(os.sched_getaffinity(0)), MAX_PROCESSES, len(parts))
    results: dict[int, Result] = {}

    def run(number: int) -> None:
        of_process = workers.run(_all_of, work, parts[number::at_once], job, name=f"{work.__name__} {number}")
        results.update(zip(range(number, len(parts), at_once), of_process, strict=True))

    with ThreadPoolExecutor(max(1, at_once)) as pool:
        list(pool.map(run, range(at_once)))  # raises the first error
    return [results[place] for place in range(len(parts))]


def _all_of(work: Callable[[Part, shards.Job], Result], parts: Sequence[Part], job: shards.Job) -> list[Result]:
    return [work(part, job) for part in parts]
