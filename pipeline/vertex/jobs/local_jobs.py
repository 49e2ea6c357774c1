"""Run jobs of Vertex AI as processes on this machine, one a replica, with the environment that Vertex AI gives them.

For rehearsals: same command, same variables, an empty working folder. Machine types, accelerators, spot machines and
Reduction Servers have no part in it. Vizier's choice of values is random, and no trial is stopped early.
"""

import contextlib
import json
import math
import os
import random
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.vertex import REHEARSAL_VARIABLE

# Role of a pool in TF_CONFIG by its place; the third are Reduction Servers, which are images of Google's.
ROLES = ("chief", "worker")
MOST_LINES = 30
SECONDS_BETWEEN_LOOKS = 0.2
# In which the first replica may end well though another has failed: one that asks it while it ends, say. Vertex AI
# restarts a failed replica, so that it is the first that decides.
SECONDS_TO_END = 60.0


def run(name: str, job_spec: dict[str, Any], arguments: Sequence[str] = (), **variables: str) -> None:
    """Run the replicas of a CustomJobSpec until the first has ended; the others are ended then, as Vertex AI does it.

    cloud.google.com/vertex-ai/docs/training/understanding-training-service. A replica that fails does so for good here.
    """
    logs = Path(os.environ[REHEARSAL_VARIABLE])
    logs.mkdir(parents=True, exist_ok=True)
    processes: list[tuple[subprocess.Popen[bytes], Path]] = []
    with tempfile.TemporaryDirectory(prefix="job-") as folders:
        try:
            for number, (pool, index, environment) in enumerate(_replicas(job_spec)):
                container = job_spec["workerPoolSpecs"][pool]["containerSpec"]
                environment |= {variable["name"]: variable["value"] for variable in container.get("env", ())}
                # tensorflow_transform sets it where it is imported, and tf.keras would be Keras 2 in the job only.
                inherited = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
                folder = Path(folders) / str(number)
                (folder / "tmp").mkdir(parents=True)
                (folder / "work").mkdir()
                log = logs / f"{name}-workerpool{pool}-{index}.log"
                with log.open("wb") as file:
                    process = subprocess.Popen(
                        [*container["command"], *container.get("args", ()), *arguments],
                        cwd=folder / "work",
                        env={**inherited, **environment, **variables, "TMPDIR": str(folder / "tmp")},
                        stdout=file,
                        stderr=subprocess.STDOUT,
                    )
                processes.append((process, log))
            _wait(processes)
        finally:
            for process, _ in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()


def search(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a HyperparameterTuningJob with random values; return the trials that succeeded, see ``launch.run_search``.

    No trial starts after the study's time, if one has succeeded by then.
    """
    generator = random.Random(1)
    study, spec = job["studySpec"], job["trialJobSpec"]
    metric, goal = study["metrics"][0]["metricId"], study["metrics"][0]["goal"]
    prefix = spec["baseOutputDirectory"]["outputUriPrefix"].rstrip("/")
    suggestions = [
        {parameter["parameterId"]: _random_value(parameter, generator) for parameter in study["parameters"]}
        for _ in range(job["maxTrialCount"])
    ]
    limit = study.get("studyStoppingConfig", {}).get("maximumRuntimeConstraint", {}).get("maxDuration")
    end = time.monotonic() + float(limit.removesuffix("s")) if limit else math.inf
    failures: list[str] = []
    trials: list[dict[str, Any]] = []

    def run_trial(number: int) -> None:
        values, trial = suggestions[number - 1], str(number)
        if trials and time.monotonic() >= end:
            return
        with tempfile.TemporaryDirectory(prefix="trial-") as folder:
            file = Path(folder) / "hypertune" / "output.metrics"
            try:
                run(
                    f"{job['displayName']}-trial-{trial}",
                    {**spec, "baseOutputDirectory": {"outputUriPrefix": f"{prefix}/{trial}"}},
                    [f"--{name}={value}" for name, value in values.items()],
                    CLOUD_ML_TRIAL_ID=trial,
                    CLOUD_ML_HP_METRIC_TAG=metric,
                    CLOUD_ML_HP_METRIC_FILE=str(file),
                )
            except UserError as error:
                failures.append(str(error))
                return
            # As cloudml-hypertune writes it. A trial counts with its best measurement.
            curve = [float(json.loads(line)[metric]) for line in file.read_text().splitlines()]
        trials.append({"id": trial, "values": values, "measured": (min if goal == "MINIMIZE" else max)(curve)})

    with ThreadPoolExecutor(job["parallelTrialCount"]) as pool:
        list(pool.map(run_trial, range(1, job["maxTrialCount"] + 1)))
    if not trials and failures:
        raise UserError(failures[-1])
    return sorted(trials, key=lambda trial: int(trial["id"]))


def _replicas(job_spec: dict[str, Any]) -> list[tuple[int, int, dict[str, str]]]:
    """Return pool, number within it and environment of every replica that can run here.

    The variables are those of cloud.google.com/vertex-ai/docs/training/distributed-training#cluster-variables and
    .../code-requirements#environment-variables.
    """
    pools = job_spec["workerPoolSpecs"][: len(ROLES)]
    ports = iter(_free_ports(sum(pool["replicaCount"] for pool in pools)))
    addresses = [[f"localhost:{next(ports)}" for _ in range(pool["replicaCount"])] for pool in pools]
    folders = {}
    if "baseOutputDirectory" in job_spec:
        prefix = job_spec["baseOutputDirectory"]["outputUriPrefix"].rstrip("/")
        folders = {
            "AIP_MODEL_DIR": f"{prefix}/model/",
            "AIP_CHECKPOINT_DIR": f"{prefix}/checkpoints/",
            "AIP_TENSORBOARD_LOG_DIR": f"{prefix}/logs/",
        }
    # A job of one replica has no pools in its CLUSTER_SPEC.
    names = [f"workerpool{pool}" for pool in range(len(pools))] if len(pools) > 1 else ["chief"]
    replicas = []
    for pool, (name, role) in enumerate(zip(names, ROLES, strict=False)):
        for index in range(pools[pool]["replicaCount"]):
            cluster_spec = {
                "cluster": dict(zip(names, addresses, strict=True)),
                "environment": "cloud",
                "task": {"type": name, "index": index},
            }
            tf_config = {
                "cluster": dict(zip(ROLES, addresses, strict=False)),
                "environment": "cloud",
                "task": {"type": role, "index": index},
            }
            variables = {"CLUSTER_SPEC": json.dumps(cluster_spec), "TF_CONFIG": json.dumps(tf_config), **folders}
            replicas.append((pool, index, variables))
    return replicas


def _wait(processes: list[tuple[subprocess.Popen[bytes], Path]]) -> None:
    first, _ = processes[0]
    end = math.inf
    while first.poll() != 0:
        failed = [(process, log) for process, log in processes if process.poll()]
        if failed:
            end = min(end, time.monotonic() + (0 if first.poll() else SECONDS_TO_END))
        if time.monotonic() >= end:
            process, log = failed[0]
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-MOST_LINES:]
            raise UserError("\n".join([f"{log.stem} ended with exit code {process.returncode}.", *lines]))
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _random_value(parameter: dict[str, Any], generator: random.Random) -> Any:
    for kind in ("categoricalValueSpec", "discreteValueSpec"):
        if kind in parameter:
            return generator.choice(parameter[kind]["values"])
    if "integerValueSpec" in parameter:
        spec = parameter["integerValueSpec"]
        return generator.randint(spec["minValue"], spec["maxValue"])
    spec = parameter["doubleValueSpec"]
    least, most = spec["minValue"], spec["maxValue"]
    if parameter["scaleType"] == "UNIT_LOG_SCALE":
        return least * (most / least) ** generator.random()
    return generator.uniform(least, most)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("localhost", 0))
        return [sock.getsockname()[1] for sock in sockets]
