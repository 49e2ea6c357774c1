"""Choose the devices that train, and give the reason for the choice."""

import json
import logging
import os
import statistics
from dataclasses import dataclass
from typing import get_args

import tensorflow as tf

from pipeline.errors import first_line
from pipeline.settings.training import StrategyName
from pipeline.training.errors import TrainingError

logger = logging.getLogger("pipeline.training")

# Set on Cloud TPU VMs, Vertex AI TPU workers and TPU nodes.
TPU_VARIABLES = ("TPU_NAME", "TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES", "COLAB_TPU_ADDR")
# A worker is slow if it computes this many times as long as the others, and this many seconds longer in an epoch.
TIMES, SECONDS = 1.5, 2.0


@dataclass(frozen=True)
class Part:
    """The part of every global batch that this process feeds; each of ``replicas`` gets its own batch in every step."""

    replicas: int = 1
    worker: int = 0
    workers: int = 1

    @property
    def local(self) -> int:
        """Return the number of copies of the model in this process."""
        return self.replicas // self.workers

    @property
    def first(self) -> int:
        """Return the place of this process's first replica among all."""
        return self.worker * self.local


@dataclass(frozen=True)
class Distribution:
    """The devices of a training and this process's place among them; process 0 is the chief.

    Attributes:
        reason: A sentence for the log.
        tpu: Whether it trains on TPU cores, which take static shapes only.
    """

    strategy: tf.distribute.Strategy
    reason: str
    worker: int = 0
    workers: int = 1
    tpu: bool = False

    @property
    def replicas(self) -> int:
        """Return the number of copies of the model that train together, in all processes."""
        return self.strategy.num_replicas_in_sync

    @property
    def part(self) -> Part:
        """Return the part of every global batch that this process feeds."""
        return Part(self.replicas, self.worker, self.workers)

    @property
    def on_cpu(self) -> bool:
        """Return whether the steps run on CPUs."""
        return all("CPU" in device for device in self.strategy.extended.worker_devices)

    @property
    def is_chief(self) -> bool:
        """Return whether this process writes the results."""
        return self.worker == 0

    def of_all(self, value: int) -> list[int]:
        """Return the number that each process gives, in their order; each must call it."""
        if self.workers == 1:
            return [value]

        def from_first_replica(context: tf.distribute.ReplicaContext) -> tf.Tensor:
            first = context.replica_id_in_sync_group % self.part.local == 0
            return tf.one_hot(self.worker, self.workers, value if first else 0, 0, dtype=tf.int64)

        per_replica = self.strategy.experimental_distribute_values_from_function(from_first_replica)
        values: list[int] = self.strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None).numpy().tolist()
        return values


def warn_of_slow_worker(distribution: Distribution, epoch: int, seconds: float) -> None:
    """Log, on the chief, the worker that all others wait for; every worker must call it.

    Args:
        distribution: Of the training.
        epoch: The epoch that has ended.
        seconds: Time of this worker's steps, without the sums over all workers.
    """
    of_workers = [milliseconds / 1e3 for milliseconds in distribution.of_all(int(1e3 * seconds))]
    slowest = max(range(len(of_workers)), key=of_workers.__getitem__)
    others = statistics.median(of_workers[:slowest] + of_workers[slowest + 1 :])
    if of_workers[slowest] < max(TIMES * others, others + SECONDS) or not distribution.is_chief:
        return
    spec = distribution.strategy.cluster_resolver.cluster_spec()
    addresses = [address for job in ("chief", "worker") if job in spec.jobs for address in spec.job_tasks(job)]
    logger.warning(
        "Worker %d (%s) is slow, and all others wait for it: its part of epoch %d took %.1f s, theirs %.1f s in the "
        "median. Look at what else runs on that machine, or start the training without it.",
        slowest,
        addresses[slowest],
        epoch,
        of_workers[slowest],
        others,
    )


def choose(name: str, *, alone: bool = False) -> Distribution:
    """Return the strategy for a setting. Call it before anything else of TensorFlow, which several workers require.

    Args:
        name: "one_device"; "mirrored": all visible GPUs, or the CPU; "multi_worker": the processes that TF_CONFIG
            names; "tpu"; "auto": the first that applies of multi_worker, tpu, mirrored from two GPUs on, one_device.
        alone: Train in this process only, whatever TF_CONFIG says, as the trials of a search do.

    Raises:
        TrainingError: the setting is unknown or does not fit the machine.
    """
    if name not in get_args(StrategyName):
        raise TrainingError(f"no strategy {name!r}; expected one of {', '.join(get_args(StrategyName))}")
    workers, index = (1, 0) if alone else cluster()
    if alone and name == "multi_worker":
        name = "auto"
    tpu_variable = next((variable for variable in TPU_VARIABLES if os.environ.get(variable)), None)
    if name == "multi_worker" or (name == "auto" and workers > 1):
        return _multi_worker(workers, index, "asked for" if name == "multi_worker" else f"TF_CONFIG names {workers}")
    if name == "tpu" or (name == "auto" and tpu_variable):
        return _tpu(tpu_variable, "asked for" if name == "tpu" else f"{tpu_variable} is set")
    return _one_machine(name)


def _one_machine(name: str) -> Distribution:
    gpus = tf.config.list_logical_devices("GPU")
    devices = gpus or tf.config.list_logical_devices("CPU")
    counted = f"{len(devices)} {devices[0].device_type}{'s' if len(devices) > 1 else ''}"
    if name == "mirrored" or (name == "auto" and len(gpus) > 1):
        strategy = tf.distribute.MirroredStrategy([device.name for device in devices])
        reason = "asked for" if name == "mirrored" else f"{len(gpus)} GPUs are visible"
        return Distribution(strategy, f"Training mirrored on {counted}: {reason}.")
    device, reason = ("GPU", "one GPU is visible") if gpus else ("CPU", "no GPU is visible")
    if name == "one_device":
        reason = f"the setting is one device, and {reason if len(gpus) < 2 else 'the first of several GPUs is taken'}"
    return Distribution(tf.distribute.OneDeviceStrategy(f"/{device}:0"), f"Training on 1 {device}: {reason}.")


def cluster() -> tuple[int, int]:
    """Return the number of workers in TF_CONFIG and the place of this one; (1, 0) without a cluster.

    On Vertex AI the Reduction Servers stand in TF_CONFIG as parameter servers. This removes them from the variable, for
    they take no part in the training.

    Raises:
        TrainingError: TF_CONFIG is not what tf.distribute expects, or names tasks other than workers.
    """
    text = os.environ.get("TF_CONFIG")
    if not text:
        return 1, 0
    expected = 'expected {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'
    try:
        config = json.loads(text)
        cluster = config.get("cluster") or {}
        if "CLUSTER_SPEC" in os.environ and cluster.pop("ps", None):
            os.environ["TF_CONFIG"] = json.dumps(config)
        addresses = [address for kind in ("chief", "worker") for address in cluster.get(kind, ())]
        if len(addresses) < 2:
            return 1, 0
        task = config["task"]
        kind, index = task["type"], int(task["index"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TrainingError(f"TF_CONFIG is not usable ({type(error).__name__}: {error}): {text}; {expected}") from error
    others = sorted(set(cluster) - {"chief", "worker"})
    if others or kind not in ("chief", "worker"):
        raise TrainingError(
            f"TF_CONFIG has tasks of the kind {', '.join(others) or kind}; expected chief and worker only: every task "
            "trains, and the chief evaluates"
        )
    place = index if kind == "chief" else index + len(cluster.get("chief", ()))
    if not 0 <= place < len(addresses):
        raise TrainingError(f"TF_CONFIG says this is {kind} {index}, but names only {', '.join(addresses)}; {expected}")
    return len(addresses), place


def _multi_worker(workers: int, index: int, reason: str) -> Distribution:
    if workers < 2:
        raise TrainingError(
            "strategy 'multi_worker' looked for two or more workers in the environment variable TF_CONFIG and found "
            f"{'none' if not os.environ.get('TF_CONFIG') else 'one'}; take strategy 'auto', or start every worker with "
            "a TF_CONFIG"
        )
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    except RuntimeError as error:
        raise TrainingError(
            f"strategy 'multi_worker' must be the first use of TensorFlow in its process ({error}); call training.run "
            "before anything else in run_fn"
        ) from error
    devices = f"{strategy.num_replicas_in_sync} devices"
    return Distribution(
        strategy, f"Training on {devices} of {workers} workers, this is {index}: {reason}.", index, workers
    )


def _tpu(variable: str | None, reason: str) -> Distribution:
    if variable is None:
        raise TrainingError(
            f"strategy 'tpu' looked for a TPU in the environment variables {', '.join(TPU_VARIABLES)} and none is set; "
            "run on a TPU machine or take strategy 'auto'"
        )
    # "local" is the TPU of this machine, as on TPU VMs and Vertex AI.
    name = os.environ.get("TPU_NAME") or "local"
    try:
        strategy = _connect_to_tpu(name)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
        raise TrainingError(
            f"strategy 'tpu' could not start the TPU {name!r}: {first_line(error)}; check TPU_NAME and that "
            "libtpu is installed, or take strategy 'auto'"
        ) from error
    return Distribution(strategy, f"Training on {strategy.num_replicas_in_sync} TPU cores: {reason}.", tpu=True)


def _connect_to_tpu(name: str) -> tf.distribute.Strategy:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
    if name != "local":
        tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)
