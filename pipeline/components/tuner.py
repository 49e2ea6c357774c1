"""TFX's Tuner, for modules that call ``pipeline.training`` and for those of stock TFX."""

import contextlib
import json
import logging
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras_tuner
import tensorflow as tf
from tfx import components as tfx_components
from tfx.components.trainer import fn_args_utils
from tfx.components.util import udf_utils
from tfx.dsl.components.base import executor_spec
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.types import artifact_utils
from tfx.utils import io_utils

from pipeline import filesystem
from pipeline.components.base import Artifacts, UserCodeComponent, user_code
from pipeline.components.trainer import FnArgs, reject_infinite_data
from pipeline.errors import UserError
from pipeline.processes import Processes, ask, processes
from pipeline.training.control_groups import usable_cores
from pipeline.training.tuning import DefaultsFirst, Search, completed_trials

# Files of the artifacts, as TFX's Tuner names them.
BEST_HYPERPARAMETERS, TUNER_RESULTS = "best_hyperparameters.txt", "tuner_results.json"
logger = logging.getLogger("pipeline.training")


class TunerExecutor(BaseExecutor):
    """Search with the steps of one pass, and refuse trials on a dataset that repeats for ever."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Write "best_hyperparameters" and "tuner_results" as TFX's does."""
        # TFX's folder is in the bucket where the artifacts are, and nothing on Vertex AI removes it.
        # A process that has read from a bucket may have threads, and must not be forked.
        remote = filesystem.is_remote(artifact_utils.get_single_uri(input_dict["transform_graph"]))
        beside = contextlib.nullcontext() if remote else processes()
        with user_code(exec_properties) as properties, tempfile.TemporaryDirectory() as folder, beside as workers:
            tuner = search(input_dict, properties, folder, workers=workers)
            write_results(tuner, output_dict)


def write_results(tuner: keras_tuner.engine.base_tuner.BaseTuner, output_dict: Artifacts) -> None:
    """Write the best values and the trials as TFX's Tuner does, and, of our oracle, why trials were stopped early.

    TFX's own function needs ``max_trials``, which Hyperband and GridSearch do not have.
    """
    trials = completed_trials(tuner.oracle)
    rows = [{"trial_id": trial.trial_id, "score": trial.score, **trial.hyperparameters.values} for trial in trials]
    if isinstance(tuner.oracle, DefaultsFirst):
        rows = [{**row, "stopped": tuner.oracle.stopped.get(row["trial_id"])} for row in rows]
    write_files(trials[0].hyperparameters, rows, output_dict)


def write_files(best: keras_tuner.HyperParameters, rows: list[dict[str, Any]], output_dict: Artifacts) -> None:
    """Write the best values and the rows of all trials, from best to worst."""
    contents = {
        "best_hyperparameters": (BEST_HYPERPARAMETERS, best.get_config()),
        "tuner_results": (TUNER_RESULTS, rows),
    }
    for output, (name, content) in contents.items():
        file = os.path.join(artifact_utils.get_single_uri(output_dict[output]), name)
        io_utils.write_string_file(file, json.dumps(content))


def prepare(
    input_dict: Artifacts, exec_properties: dict[str, Any], working_dir: str
) -> tuple[keras_tuner.engine.base_tuner.BaseTuner, dict[str, Any]]:
    """Return the tuner and the ``fit_kwargs`` of the module's ``tuner_fn``."""
    fn_args = FnArgs.of(fn_args_utils.get_common_fn_args(input_dict, exec_properties, working_dir))
    prepared = udf_utils.get_fn(exec_properties, "tuner_fn")(fn_args)
    return prepared.tuner, prepared.fit_kwargs


def search(
    input_dict: Artifacts,
    exec_properties: dict[str, Any],
    working_dir: str,
    workers: Processes | None = None,
) -> keras_tuner.engine.base_tuner.BaseTuner:
    """Search as TFX's ``search`` does; trials of ``training.tune`` are trained side by side, if there are workers."""
    tuner, fit_kwargs = prepare(input_dict, exec_properties, working_dir)
    at_once = tuner.at_once if workers and isinstance(tuner, Search) else 1
    if workers and at_once > 1:
        _search_side_by_side(tuner, workers, at_once, input_dict, exec_properties, working_dir)
    else:
        with reject_infinite_data(tuner):
            tuner.search(**fit_kwargs)
    return tuner


def _search_side_by_side(
    tuner: Search,
    workers: Processes,
    at_once: int,
    input_dict: Artifacts,
    exec_properties: dict[str, Any],
    working_dir: str,
) -> None:
    """Hand trials out to ``at_once`` processes on this machine, one at a time to each."""
    cores = int(usable_cores())
    threads = max(1, cores // at_once)
    logger.info("Trials are trained %d at a time, each with %d of %d cores.", at_once, threads, cores)
    with ThreadPoolExecutor(at_once) as pool:
        ended = [
            pool.submit(
                workers.run,
                _train_trials,
                number,
                threads,
                input_dict,
                exec_properties,
                os.path.join(working_dir, str(number)),
                name=f"trials {number}",
                answer=tuner.answer,
            )
            for number in range(at_once)
        ]
        for number, one in enumerate(ended):
            try:
                one.result()
            except UserError as error:
                tuner.give_up(number, error)
    tuner.conclude()


def _train_trials(
    number: int, threads: int, input_dict: Artifacts, exec_properties: dict[str, Any], working_dir: str
) -> None:
    """Train trials that another process hands out."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tuner, _ = prepare(input_dict, exec_properties, working_dir)
    tuner.train_for(number, ask)


class Tuner(UserCodeComponent, tfx_components.Tuner):
    """TFX's Tuner with our executor."""

    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(TunerExecutor)
