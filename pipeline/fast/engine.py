"""Decide whether the accelerators are used, and put them into a graph."""

import functools
import importlib
import importlib.metadata
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.packaging.fingerprints import fingerprint_of

if TYPE_CHECKING:
    from tfx.dsl.components.base.base_node import BaseNode

    from pipeline.settings.target import EngineName

# Library versions that the accelerators were tested with.
TESTED = {
    "apache-beam": "2.77.0",
    "tensorflow-data-validation": "1.21.0",
    "tensorflow-model-analysis": "0.52.0",
    "tensorflow-transform": "1.21.0",
    "tfx": "1.21.0",
    "tfx-bsl": "1.21.0",
}
# Executor in this package by the executor that it replaces.
REPLACED = {
    "pipeline.components.arrow_example_gen.ExampleGenExecutor": "pipeline.fast.example_gen.FastExampleGenExecutor",
    "tfx.components.statistics_gen.executor.Executor": "pipeline.fast.statistics_gen.FastStatisticsGenExecutor",
    "pipeline.components.transform.TransformExecutor": "pipeline.fast.transform.FastTransformExecutor",
    "pipeline.components.evaluator.EvaluatorExecutor": "pipeline.fast.evaluator.FastEvaluatorExecutor",
}
# Modules that a run on this machine needs.
MODULES = (*(path.rpartition(".")[0] for path in REPLACED.values()), "pipeline.fast.side_by_side")
logger = logging.getLogger("pipeline.fast")


@functools.cache
def usable(engine: "EngineName") -> bool:
    """Return whether an engine is the fast one and can be used; warn once if library versions prevent it."""
    if engine == "stock":
        return False
    installed = {name: _installed(name) for name in TESTED}
    untested = [
        f"{name} {installed[name]} (tested: {TESTED[name]})" for name in TESTED if installed[name] != TESTED[name]
    ]
    if untested:
        logger.warning("the fast engine is not tested with %s: the run uses the stock engine", ", ".join(untested))
    return not untested


def accelerate(nodes: Iterable["BaseNode"]) -> None:
    """Replace the executors of nodes of a graph where this package has a faster one."""
    for node in nodes:
        spec = getattr(node, "executor_spec", None)
        replaced = getattr(spec, "executor_class", None)
        path = replaced and REPLACED.get(f"{replaced.__module__}.{replaced.__qualname__}")
        if not path:
            continue
        module, _, name = path.rpartition(".")
        loaded = importlib.import_module(module)
        node.executor_spec = type(spec)(getattr(loaded, name))  # type: ignore[misc]
        node.exec_properties["code"] = fingerprint_of(Path(str(loaded.__file__)))


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:  # a build under another name
        return "of an unknown version"
