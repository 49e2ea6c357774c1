"""Starts training processes and reads what they leave behind."""

import csv
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.preloaded import Preloaded

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Data:
    """Real transformed flights."""

    train_files: list[str]
    eval_files: list[str]
    transform_graph_path: str


def start(data: Data, folder: Path, environment: dict[str, str] | None = None, **job: Any) -> Preloaded:
    """Starts one process on a job; its output goes to a file in ``folder``."""
    name = f"{len(list(folder.parent.glob('*.json')))}-{folder.name}"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder.parent / f"{name}.json"
    file.write_text(json.dumps({**vars(data), "folder": str(folder), "weights": str(folder / "weights.npz"), **job}))
    variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1", "CUDA_VISIBLE_DEVICES": "-1", **(environment or {})}
    log = folder.parent / f"{name}.log"
    return Preloaded("tests.training.worker", [str(file)], ROOT, variables, log)


def finish(*processes: Preloaded, timeout: int = 600) -> list[int]:
    """Waits for processes; returns their exit codes."""
    return [process.wait(timeout) for process in processes]


def run(data: Data, folder: Path, **job: Any) -> str:
    """Runs one process to its end; returns what it said."""
    process = start(data, folder, **job)
    (code,) = finish(process)
    said = logs(folder)
    assert code == 0, said
    return said


def logs(folder: Path) -> str:
    """Return what the processes that worked in ``folder`` said."""
    return "\n".join(file.read_text() for file in sorted(folder.parent.glob(f"*-{folder.name}.log")))


def cluster(workers: int) -> list[dict[str, str]]:
    """The environment of each of several workers on this machine."""
    addresses = [f"localhost:{port}" for port in free_ports(workers)]
    return [
        {"TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})}
        for index in range(workers)
    ]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def losses(folder: Path, execution: int = 7) -> np.ndarray:
    """The loss of every step."""
    with (folder / f"Trainer/model_run/{execution}/steps.csv").open() as file:
        return np.array([float(row["loss"]) for row in csv.DictReader(file)])


def weights(folder: Path) -> list[np.ndarray]:
    """The final weights."""
    with np.load(folder / "weights.npz") as stored:
        return [stored[name] for name in stored.files]
