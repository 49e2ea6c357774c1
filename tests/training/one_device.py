"""The one device that tests in this process train on; its own module, because it starts TensorFlow's devices."""

from pipeline.training import strategy

ONE_DEVICE = strategy.choose("one_device")
