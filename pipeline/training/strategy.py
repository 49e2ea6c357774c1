"""Which devices train, and why."""

from __future__ import annotations

import tensorflow as tf


def choose(name: str) -> tuple[tf.distribute.Strategy, str]:
    """Makes the strategy for a setting.

    Args:
        name: "one_device", "mirrored" (all visible GPUs; without any, the CPU), or "auto": mirrored from two GPUs on.

    Returns:
        The strategy and a sentence that says what it trains on and why.

    Raises:
        ValueError: there is no strategy of that name.
    """
    gpus = tf.config.list_logical_devices("GPU")
    if name == "mirrored" or (name == "auto" and len(gpus) > 1):
        strategy = tf.distribute.MirroredStrategy()
        devices = f"{len(gpus)} GPUs" if gpus else f"{strategy.num_replicas_in_sync} CPU devices"
        reason = "asked for" if name == "mirrored" else f"{len(gpus)} GPUs are visible"
        return strategy, f"Training mirrored on {devices}: {reason}."
    if name in ("auto", "one_device"):
        device, reason = ("GPU", "one GPU is visible") if gpus else ("CPU", "no GPU is visible")
        if name == "one_device":
            reason = f"one device was asked for and {reason if len(gpus) < 2 else 'the first of several GPUs is taken'}"
        return tf.distribute.OneDeviceStrategy(f"/{device}:0"), f"Training on 1 {device}: {reason}."
    raise ValueError(f"no strategy {name!r}; expected auto, one_device or mirrored")
