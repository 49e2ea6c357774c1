"""Measure the training of a module file in a process of its own: python -m pipeline.runs.probe_process JOB.json.

The module file is called as the Trainer calls it, and ``pipeline.training`` sees the setting that it is to measure. A
module file with a loop of its own would train instead, for hours maybe: it is stopped at the first thing that only such
a loop needs.
"""

import contextlib
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from pipeline.packaging.wheels import importable

# Exit codes.
MEASURED, OWN_LOOP = 0, 3
# Of the examples that are measured: enough to be out of the processor's caches, and read in seconds.
MOST_BYTES = 48 << 20


class OwnLoopError(Exception):
    """The module file trains in a loop of its own."""


class ProbeArguments(SimpleNamespace):
    """Arguments of ``run_fn``, without those that only a loop needs: data_accessor, train_steps and their like."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise OwnLoopError(f"fn_args.{name}")


def main(job: dict[str, Any]) -> int:
    """Call ``run_fn``; return the exit code.

    Args:
        job: "module_path": as TFX writes it; "arguments": of ``run_fn``; "to": file to be written.
    """
    with importable(job["module_path"]) as module, tempfile.TemporaryDirectory() as scratch, _without_own_loop():
        arguments = ProbeArguments(**job["arguments"])
        for name in ("train_files", "eval_files"):
            setattr(arguments, name, _part(getattr(arguments, name), f"{scratch}/{name}"))
        arguments.serving_model_dir = arguments.model_run_dir = scratch
        arguments.custom_config["probe"] = job["to"]
        try:
            importlib.import_module(module).run_fn(arguments)
        except OwnLoopError:
            return OWN_LOOP
    return MEASURED if os.path.exists(job["to"]) else OWN_LOOP


@contextlib.contextmanager
def _without_own_loop() -> Iterator[None]:
    """Let Keras' own loop raise an OwnLoopError."""
    import keras

    with mock.patch.object(keras.Model, "fit", side_effect=OwnLoopError("Model.fit")):
        yield


def _part(patterns: Sequence[str], folder: str) -> list[str]:
    """Return files of a split, or a copy of the first records, with no more than ``MOST_BYTES``."""
    import tensorflow as tf

    from pipeline.training.cache import gzipped

    files = sorted(file for pattern in patterns for file in tf.io.gfile.glob(pattern))
    if sum(tf.io.gfile.stat(file).length for file in files) <= MOST_BYTES:
        return files
    compression = "GZIP" if gzipped(files) else ""
    to = f"{folder}/part-00000{'.gz' if compression else '.tfrecord'}"
    Path(folder).mkdir()
    written = 0
    with tf.io.TFRecordWriter(to, compression) as writer:
        for record in tf.data.TFRecordDataset(files, compression).as_numpy_iterator():
            writer.write(record)
            written += len(record)
            if written > MOST_BYTES:
                break
    return [to]


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
