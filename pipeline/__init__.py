"""A production TFX pipeline: one definition, run on a workstation or on Vertex AI.

``config`` says what to run, ``target`` says where, ``pipeline.create_pipeline(config, target)`` is the graph, and
``training`` is what a module file's ``run_fn`` and ``tuner_fn`` call. Importing this package imports nothing else.
"""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    # By name, for a step's cache key covers all that its module imports, and every module imports this file.
    if name == "spin":
        return importlib.import_module("pipeline.notebook").spin
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
