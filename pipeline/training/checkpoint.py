"""Keep the state of a training on disk: killed at any moment, it resumes from there."""

import io
import json
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.errors import first_line
from pipeline.training.errors import TrainingError
from pipeline.training.strategy import Distribution


class Checkpoints:
    """Saves and restores variables and plain values, whole or not at all.

    Every worker must save at the same step, for some variables are read over the network. All read the chief's copy
    from ``folder``.
    """

    def __init__(self, folder: str, variables: Sequence[tf.Variable], distribution: Distribution):
        self.folder = folder
        own = folder if distribution.is_chief else f"{folder}-worker-{distribution.worker}"
        self._own = own
        self._values = _Values()
        self._checkpoint = tf.train.Checkpoint(variables=list(variables), values=self._values)
        self._manager = tf.train.CheckpointManager(self._checkpoint, own, max_to_keep=1)

    def save(self, values: dict[str, Any]) -> None:
        """Save the variables and ``values``: numbers, text, lists and dictionaries of such, and numpy arrays."""
        self._values.values = values
        self._manager.save()

    def restore(self) -> dict[str, Any] | None:
        """Restore the variables and return the values; None, and nothing is changed, if there is no checkpoint.

        Raises:
            TrainingError: it is of another model.
        """
        try:
            latest = tf.train.latest_checkpoint(self.folder)
            if latest is None:
                return None
            self._checkpoint.restore(latest).assert_existing_objects_matched()
        except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise TrainingError(
                f"the checkpoint in {self.folder} is of another model than build_model makes now "
                f"({first_line(error)[:200]}): delete that folder, and the training starts anew"
            ) from error
        return self._values.values

    def delete(self) -> None:
        """Remove the checkpoints of this process."""
        if tf.io.gfile.exists(self._own):
            tf.io.gfile.rmtree(self._own)


class _Values(tf.train.experimental.PythonState):
    """Plain values inside a checkpoint: JSON and the arrays."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def serialize(self) -> bytes:
        arrays: list[np.ndarray] = []

        def without_arrays(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                arrays.append(value)
                return {"__array__": len(arrays) - 1}
            if isinstance(value, np.generic):
                return value.item()
            raise TypeError(f"a checkpoint cannot hold {type(value).__name__}")

        text = json.dumps(self.values, default=without_arrays)
        stream = io.BytesIO()
        np.savez(stream, *arrays, json=np.frombuffer(text.encode(), np.uint8))
        return stream.getvalue()

    def deserialize(self, string_value: bytes) -> None:
        with np.load(io.BytesIO(string_value)) as stored:
            arrays = [stored[f"arr_{index}"] for index in range(len(stored.files) - 1)]
            self.values = json.loads(
                stored["json"].tobytes(),
                object_hook=lambda value: arrays[value["__array__"]] if "__array__" in value else value,
            )


def variables_of(model: keras.Model) -> list[tf.Variable]:
    """Return all variables that training changes: weights, random states, metrics, optimizer."""
    variables = [*model.variables, *model.metrics_variables, *model.optimizer.variables]
    return list({id(variable): variable.value for variable in variables}.values())


def state_of(callback: keras.callbacks.Callback, at_start: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a callback's attributes that are numbers, arrays, or lists or dictionaries of such.

    The new process sets text itself: metrics to watch and folders to write to. With ``at_start``, attributes that have
    not changed since are left out too: settings.
    """
    state = {name: value for name, value in vars(callback).items() if _is_plain(value) and name != "params"}
    at_start = at_start or {}
    return {
        name: value
        for name, value in state.items()
        if name not in at_start or not (value is at_start[name] or (np.isscalar(value) and value == at_start[name]))
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, np.ndarray, np.number))


def redirect_output(callbacks: Sequence[Any], folder: str) -> None:
    """Make the callbacks of a worker that is not the chief write to a folder that is deleted."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.TensorBoard):
            callback.log_dir = folder
        elif isinstance(callback, keras.callbacks.ModelCheckpoint):
            callback.filepath = f"{folder}/{callback.filepath.rsplit('/', 1)[-1]}"
        elif isinstance(callback, keras.callbacks.CSVLogger):
            callback.filename = f"{folder}/log.csv"
