"""Several workers that train together: the sum of their gradients, and who holds the others up."""

import logging
import statistics
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from pipeline.training.strategy import Distribution

logger = logging.getLogger("pipeline.training")

# A worker is slow that computes so many times as long as the others, and so many seconds longer in an epoch.
TIMES, SECONDS = 1.5, 2.0


def summed_over_replicas(values: Sequence[Any], waited: tf.Variable | None) -> list[Any]:
    """Return the sums of tensors or rows over all replicas; call it in a replica.

    Args:
        values: Of this replica.
        waited: Float64 [], to which the seconds are added from when the values were there to when their sums were: of
            the exchange, and of waiting for slower workers; None: they are not measured.
    """
    reduce = tf.distribute.get_replica_context().all_reduce
    if waited is None:
        return reduce(tf.distribute.ReduceOp.SUM, list(values))
    with tf.control_dependencies(tf.nest.flatten(values, expand_composites=True)):
        ready = tf.timestamp()
    sums = reduce(tf.distribute.ReduceOp.SUM, list(values))
    with tf.control_dependencies(tf.nest.flatten(sums, expand_composites=True)):
        waited.assign_add(tf.timestamp() - ready)
    return sums


def warn_of_slow_worker(distribution: Distribution, epoch: int, seconds: float) -> None:
    """Name the worker that all others wait for, in the log of the chief; every worker must call it.

    Args:
        distribution: Of the training.
        epoch: That has ended.
        seconds: That this worker took for its steps, without the sums over all workers.
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
