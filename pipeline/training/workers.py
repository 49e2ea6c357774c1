"""Several workers that train together: who reads what, the sum of their gradients, and who holds the others up."""

import logging
import statistics
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from pipeline.training.strategy import Distribution

logger = logging.getLogger("pipeline.training")

# A worker is slow that computes so many times as long as the others, and so many seconds longer in an epoch.
TIMES, SECONDS = 1.5, 2.0
# A worker with fewer examples than another sees them more often. So many times as many are still dealt out by file.
UNEVEN = 1.25


def deal_out(files: Sequence[str], examples: Sequence[int], workers: int) -> list[list[str]] | None:
    """Deal files out to workers, so that each gets about as many examples.

    The largest file is dealt first, and each to the worker with the fewest examples so far (Graham 1969, "Bounds on
    Multiprocessing Timing Anomalies").

    Args:
        files: Their names.
        examples: In each.
        workers: Their number.

    Returns:
        Files of each worker; None where one would have more than ``UNEVEN`` times the examples of another.
    """
    shares: list[list[str]] = [[] for _ in range(workers)]
    totals = [0] * workers
    for count, file in sorted(zip(examples, files, strict=True), key=lambda pair: -pair[0]):
        fewest = totals.index(min(totals))
        shares[fewest].append(file)
        totals[fewest] += count
    return shares if max(totals) <= UNEVEN * min(totals) else None


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
