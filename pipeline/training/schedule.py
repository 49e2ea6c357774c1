"""The learning rate of every step, as a multiple of the model's own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import tensorflow as tf

# Where a cosine schedule ends, as a share of its peak.
LAST_SHARE = 0.05


@dataclass(frozen=True)
class Schedule:
    """Warm-up, then constant or falling along a cosine; with more replicas it peaks in proportion.

    The global batch grows with the replicas, and so may the step (Goyal et al. 2017, "Accurate, Large Minibatch SGD",
    linear scaling with gradual warm-up).

    Attributes:
        kind: "cosine" rises from 0 to the peak and falls to ``LAST_SHARE`` of it at the last step; "constant" rises
            from the model's own rate to the peak, which with one replica is the same.
        peak: Multiple of the model's own rate after the warm-up: the number of replicas.
        warmup_epochs: Length of the warm-up.
        epochs: Length of the whole training.
    """

    kind: str
    peak: float
    warmup_epochs: float
    epochs: int

    def multiple(self, step: tf.Tensor, steps_per_epoch: tf.Tensor) -> tf.Tensor:
        """Return the factor of the model's rate in a step, counted from 0; float32 []."""
        step, steps_per_epoch = tf.cast(step, tf.float32), tf.cast(steps_per_epoch, tf.float32)
        warmup, last = self.warmup_epochs * steps_per_epoch, self.epochs * steps_per_epoch
        risen = tf.minimum(1.0, (step + 1.0) / tf.maximum(warmup, 1.0))
        if self.kind == "constant":
            return 1.0 + (self.peak - 1.0) * risen
        progress = tf.clip_by_value((step - warmup) / tf.maximum(1.0, last - warmup), 0.0, 1.0)
        fallen = LAST_SHARE + (1.0 - LAST_SHARE) * (1.0 + tf.cos(math.pi * progress)) / 2.0
        return self.peak * tf.where(step < warmup, risen, fallen)
