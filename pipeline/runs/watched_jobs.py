"""Keep the jobs on Vertex AI whose end was seen from this machine: how they ended, what they took and cost."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from pipeline import filesystem
from pipeline.costs.bill import Bill, from_dict, to_dict

FOLDER = "vertex/jobs"  # below the output folder of a pipeline


@dataclass(frozen=True)
class WatchedJob:
    """A job that has ended.

    Attributes:
        name: Its resource name.
        state: "succeeded", "failed" or "cancelled".
        started: UTC, ISO 8601.
        seconds: From start to end.
        bill: What it has cost.
    """

    name: str
    state: str
    started: str
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
    """Return the jobs, the oldest first; a file that is not as it was written is passed over."""
    jobs = []
    for file in (output / FOLDER).glob("*.json"):
        try:
            read = json.loads(file.read_text(encoding="utf-8"))
            jobs.append(WatchedJob(**{**read, "bill": from_dict(read["bill"])}))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return sorted(jobs, key=lambda job: (job.started, job.name))
