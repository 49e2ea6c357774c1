"""Jobs that were watched to their end are there for the next estimate and for the list of runs."""

from pathlib import Path

from pipeline.costs.estimate import Bill, Line
from pipeline.runs.watched_jobs import FOLDER, WatchedJob, keep, read_all


def test_watched_jobs_are_read_in_their_order_and_damaged_files_passed_over(tmp_path: Path) -> None:
    bill = Bill((Line("Transform", "task", "m", 60.0, 0.1),), 0.03, (), "2026-01-01")
    jobs = [
        WatchedJob(f"projects/p/locations/r/pipelineJobs/{name}", "succeeded", started, 90.0, bill)
        for name, started in (("a", "2026-02-01T00:00:00"), ("b", "2026-01-01T00:00:00"))
    ]
    for job in jobs:
        keep(tmp_path, job)
        keep(tmp_path, job)
    for name, content in (("c", "{"), ("d", "[]"), ("e", '{"name": 1}')):
        (tmp_path / FOLDER / f"{name}.json").write_text(content)
    assert read_all(tmp_path) == [jobs[1], jobs[0]]


def test_without_a_folder_there_are_none(tmp_path: Path) -> None:
    assert read_all(tmp_path / "nothing") == []
