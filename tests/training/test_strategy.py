"""The choice of devices, with its reason. This machine has CPUs only."""

from __future__ import annotations

import pytest
import tensorflow as tf

from pipeline.training import strategy


def test_without_a_gpu_auto_trains_on_the_cpu_and_says_so():
    chosen, reason = strategy.choose("auto")
    assert isinstance(chosen, tf.distribute.OneDeviceStrategy)
    assert reason == "Training on 1 CPU: no GPU is visible."


def test_mirrored_with_nothing_to_mirror_is_fine():
    chosen, reason = strategy.choose("mirrored")
    assert isinstance(chosen, tf.distribute.MirroredStrategy)
    assert reason == "Training mirrored on 1 CPU devices: asked for."


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="no strategy 'tpu'; expected auto, one_device or mirrored"):
        strategy.choose("tpu")
