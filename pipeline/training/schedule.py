"""Learning rate of every step, as a multiple of the model's own."""

import math

import tensorflow as tf

from pipeline.settings.training import Training

# Where a cosine schedule ends, as a share of its peak.
LAST_SHARE = 0.05


def rate_multiple(settings: Training, replicas: int, step: tf.Tensor, steps_per_epoch: tf.Tensor) -> tf.Tensor:
    """Return the factor of the model's learning rate in a step; float32 [].

    The global batch grows with the replicas, and so may the step (Goyal et al. 2017, "Accurate, Large Minibatch SGD",
    linear scaling with gradual warm-up).

    Args:
        settings: By "cosine" the rate rises from 0 to the peak and falls to ``LAST_SHARE`` of it at the last step; by
            "constant" it rises from the model's own to the peak, which with one replica is the same. After the epochs
            of the head alone it is lower by ``fine_tuning_rate``.
        replicas: The peak, as a multiple of the model's own rate, if it is scaled.
        step: From 0.
        steps_per_epoch: As a number or a tensor.
    """
    peak = replicas if settings.scale_learning_rate else 1
    step, steps_per_epoch = tf.cast(step, tf.float32), tf.cast(steps_per_epoch, tf.float32)
    warmup, last = settings.warmup_epochs * steps_per_epoch, settings.epochs * steps_per_epoch
    if settings.head_epochs:
        in_head = step < settings.head_epochs * steps_per_epoch
        peak = peak * tf.where(in_head, 1.0, settings.fine_tuning_rate)
    risen = tf.minimum(1.0, (step + 1.0) / tf.maximum(warmup, 1.0))
    if settings.schedule == "constant":
        return 1.0 + (peak - 1.0) * risen
    progress = tf.clip_by_value((step - warmup) / tf.maximum(1.0, last - warmup), 0.0, 1.0)
    fallen = LAST_SHARE + (1.0 - LAST_SHARE) * (1.0 + tf.cos(math.pi * progress)) / 2.0
    return peak * tf.where(step < warmup, risen, fallen)
