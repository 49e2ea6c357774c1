"""Errors of a training that cannot go on."""


class TrainingError(ValueError):
    """A setting, the data or the model makes training impossible; says what was found and what to do."""


class NonFiniteLossError(TrainingError):
    """The loss or a gradient became infinite or not a number; the weights are those before that step."""


class OutOfMemoryError(TrainingError):
    """Not even one example per replica and step fits into the device's memory."""
