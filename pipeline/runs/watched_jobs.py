"""Keep state, time and cost of the jobs on Vertex AI that were watched from this machine until they ended."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from pipeline import filesystem
from pipeline.costs.estimate import Bill, from_dict, to_dict

FOLDER = "vertex/jobs"  # below the output folder of a pipeline


@dataclass(frozen=True)
class WatchedJob:
    """A job that has ended."""

    name: str  # resource name
    state: str  # "succeeded", "failed" or "cancelled"
    started: str  # UTC, ISO 8601
    seconds: float
    bill: Bill

    @property
    def id(self) -> str:
        """Return the last part of the name."""
        return self.name.rpartition("/")[2]


def keep(output: Path, job: WatchedJob) -> None:
    """Write a job below the output folder of its pipeline."""
    content = {**dataclasses.asdict(job), "bill": to_dict(job.bill)}
    filesystem.write(output / FOLDER / f"{job.id}.json", json.dumps(content, indent=1) + "\n")


def read_all(output: Path) -> list[WatchedJob]:
    """Return the jobs, the oldest first; damaged files are ignored."""
    jobs = []
    for file in (output / FOLDER).glob("*.json"):
        try:
            read = json.loads(file.read_text(encoding="utf-8"))
            jobs.append(WatchedJob(**{**read, "bill": from_dict(read["bill"])}))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return sorted(jobs, key=lambda job: (job.started, job.name))
