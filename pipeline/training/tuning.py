"""Search for hyperparameters."""

import functools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import keras
import keras_tuner
import tensorflow as tf
import tensorflow_transform as tft

from pipeline.progress import Progress
from pipeline.settings.tasks import objective_direction
from pipeline.training import strategy
from pipeline.training.control_groups import free_memory, usable_cores
from pipeline.training.decoding import Augment, Decode
from pipeline.training.errors import TrainingError
from pipeline.training.features import Features
from pipeline.training.input_pipeline import Split, estimate, find
from pipeline.training.loop import Fit
from pipeline.training.run import CHECKPOINT_VARIABLE, BuildModel, decoder_of, logger, precision, seed_of, splits
from pipeline.training.settings import Settings

Direction = Literal["min", "max"]
Trial: TypeAlias = Any  # KerasTuner's, for which it documents no name
# Ended trials that the median is taken of, at least: one of two says little.
ENOUGH_TRIALS = 3
# What a search asks its oracle, as KerasTuner's own client of one.
ASKED = ("create_trial", "end_trial", "get_best_trials", "get_space", "get_trial", "update_space", "update_trial")
# Set in a Vertex AI job that is one trial of a HyperparameterTuningJob.
TRIAL_VARIABLE = "CLOUD_ML_TRIAL_ID"
# Trials at the same time on one machine, at most; the part of what memory is free that they may take; bytes of a
# process without its examples, and for how many bytes of examples a byte of their files stands.
MOST_AT_ONCE, SHARE_FOR_TRIALS, OF_PROCESS, UNPACKED = 4, 0.7, 1.5e9, 20
# Before the reason in the traceback of a trial that failed.
FAILED = "FailedTrialError: "


class OracleElsewhere:
    """The oracle of another process, for a search that trains the trials that it hands out.

    ``ask`` sends (method, arguments, named arguments), and returns the answer.
    """

    def __init__(self, oracle: keras_tuner.Oracle, ask: Callable[[Any], Any]):
        self.objective, self.max_trials = oracle.objective, oracle.max_trials
        self._ask = ask

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in ASKED:
            raise AttributeError(name)
        return lambda *arguments, **named: self._ask((name, arguments, named))

    def save(self, *_: Any) -> None:
        """Do nothing: the other process saves the state."""


class DefaultsFirst(keras_tuner.oracles.RandomSearchOracle):
    """Random search whose first trial takes the defaults, so that a search never ends below them by bad luck.

    Trials report the objective after every epoch, ``update_trial(id, {objective: value}, step=epoch from 1)``. The
    answer "STOPPED" stops a trial, also in another process; when it ends it counts with its best epoch. The first trial
    is never stopped.

    Args:
        epochs: Longest training of a trial; after the last epoch none is stopped.
        head_epochs: Epochs by which no trial is judged, for the whole model learns only afterwards.
        minutes: Time of the search from the start of the first trial; None: no limit. No trial starts that would end
            later, by the mean time of earlier trials, and a running one stops after its epoch.
        arguments: Of RandomSearchOracle.

    Attributes:
        stopped: Why a trial was stopped early, by its id.
    """

    def __init__(self, *, epochs: int = 1, head_epochs: int = 0, minutes: float | None = None, **arguments: Any):
        super().__init__(**arguments)
        self.stopped: dict[str, str] = {}
        self._epochs, self._head_epochs = epochs, head_epochs
        self._budget = math.inf if minutes is None else 60 * minutes
        self._started: dict[str, float] = {}
        self._seconds: list[float] = []  # of each trial that has ended

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Return the values of the next trial, or the end of the search."""
        if not self.start_order:
            values = {hp.name: hp.default for hp in self.get_space().space}
            return {"status": "RUNNING", "values": values}
        if self._elapsed() + (statistics.mean(self._seconds) if self._seconds else 0.0) >= self._budget:
            return {"status": "STOPPED", "values": None}
        return super().populate_space(trial_id)

    @keras_tuner.synchronized
    def create_trial(self, tuner_id: str) -> Trial:
        """Start the next trial and report the progress of the search."""
        trial = super().create_trial(tuner_id)
        if trial.status == "RUNNING":
            self._started.setdefault(trial.trial_id, time.monotonic())
            Progress("search").tell(f"trial {len(self.trials)} of {self.max_trials}{self.summary()}")
        return trial

    @keras_tuner.synchronized
    def update_trial(self, trial_id: str, metrics: dict[str, float], step: int = 0) -> Trial:
        """Record the objective after an epoch; return the trial, "STOPPED" when it is to stop."""
        trial = super().update_trial(trial_id, metrics, step)
        if trial_id != self.start_order[0] and step < self._epochs:
            if reason := self._reason_to_stop(trial):
                self.stopped[trial_id] = f"{reason} after epoch {step}"
                trial.status = "STOPPED"
        return trial

    @keras_tuner.synchronized
    def end_trial(self, trial: Trial) -> None:
        """Score the trial by its best epoch."""
        self._seconds.append(time.monotonic() - self._started[trial.trial_id])
        super().end_trial(trial)

    def summary(self) -> str:
        """Return the scores of the best trial and of the defaults, and the trials stopped: ", best auc so far 0.71"."""
        name = self.objective.name.removeprefix("val_")
        completed = self._completed()
        text = ""
        if completed:
            first, (best, *_) = self.trials[self.start_order[0]], self.get_best_trials(1)
            text = f", best {name} so far {best.score:.4f}"
            if first in completed:
                text += " (the defaults)" if first is best else f" (the defaults: {first.score:.4f})"
        if self.stopped:
            text += f", {len(self.stopped)} stopped early"
        if self._budget < math.inf:
            text += f", {self._elapsed() / 60:.1f} of {self._budget / 60:g} minutes"
        return text

    def _elapsed(self) -> float:
        return time.monotonic() - min(self._started.values(), default=time.monotonic())

    def _completed(self) -> list[Trial]:
        return [trial for trial in self.trials.values() if trial.status == "COMPLETED"]

    def _reason_to_stop(self, trial: Trial) -> str | None:
        def curve(trial: Trial) -> list[float]:
            observed = trial.metrics.get_history(self.objective.name)
            return [one.mean() for one in observed if one.step > self._head_epochs]

        if self._elapsed() >= self._budget:
            return "out of time"
        ended = map(curve, self._completed())
        return "below the median" if is_below_median(curve(trial), ended, self.objective.direction) else None


def is_below_median(curve: Sequence[float], ended: Iterable[Sequence[float]], direction: Direction) -> bool:
    """Return whether the median stopping rule stops a trial.

    It does when the best value of the trial is worse than the median of the running averages, up to the same epoch, of
    the trials that have ended (Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017, section
    3.2.2, and ``StudySpec.MedianAutomatedStoppingSpec`` of Vertex AI). The best trial of all is never one that was
    stopped: the running average of a trial is never better than its best value.

    Args:
        curve: The objective after each epoch of the trial.
        ended: The same of each trial that has ended, stopped or not.
        direction: "max" if a high objective is good.
    """
    upwards = [[value if direction == "max" else -value for value in values] for values in (curve, *ended)]
    now, *others = [[value for value in values[: len(curve)] if not math.isnan(value)] for values in upwards]
    averages = [statistics.mean(values) for values in others if values]
    return len(averages) >= ENOUGH_TRIALS and bool(now) and max(now) < statistics.median(averages)


class TunerFnResult(NamedTuple):
    """Result of a ``tuner_fn`` for TFX's Tuner, which calls ``tuner.search(**fit_kwargs)``."""

    tuner: keras_tuner.Tuner
    fit_kwargs: dict[str, Any]


class Search(keras_tuner.Tuner):
    """Trains every trial in the same loop as the final model.

    With KERASTUNER_TUNER_ID, KERASTUNER_ORACLE_IP and KERASTUNER_ORACLE_PORT set, the process with "chief" in its id
    hands the trials out and the others train them (keras.io/keras_tuner, "Distributed hyperparameter tuning"). No data
    is read before the first trial.
    """

    oracle: Any  # KerasTuner's, or that of another process

    def __init__(
        self,
        fn_args: Any,
        build_model: BuildModel,
        settings: Settings,
        decode: Decode | None = None,
        augment: Augment | None = None,
    ):
        self._settings = settings
        self._distribution = strategy.choose(settings.strategy, alone=True)
        logger.info(self._distribution.reason)
        self._seed = seed_of(settings, self._distribution)
        self._fn_args, self._augment = fn_args, augment
        transform_output = tft.TFTransformOutput(fn_args.transform_graph_path)
        self._decoder = decoder_of(transform_output, settings, decode)
        features = Features.of(transform_output, settings.label, self._decoder, settings.backbone_weights)
        super().__init__(
            oracle=DefaultsFirst(
                objective=keras_tuner.Objective(f"val_{settings.objective}", objective_direction(settings.objective)),
                max_trials=settings.trials,
                max_consecutive_failed_trials=settings.trials + 1,  # never: the others may still be good
                seed=self._seed,
                epochs=settings.epochs,
                head_epochs=settings.head_epochs,
                minutes=settings.minutes,
            ),
            hypermodel=lambda hp: build_model(hp, features),
            directory=fn_args.working_dir,
            project_name="search",
        )

    @functools.cached_property
    def _splits(self) -> tuple[Split, Split]:
        return splits(*self._files(), self._decoder, self._settings, self._distribution)

    def _files(self) -> tuple[Sequence[str], Sequence[str]]:
        return part_of(self._fn_args.train_files, self._fn_args.eval_files, self._settings.search_rows)

    def run_trial(self, trial: Trial, callbacks: Sequence[keras.callbacks.Callback] | None = None) -> dict[str, float]:
        """Train one model; return its best objective.

        Args:
            trial: With the values to try.
            callbacks: Of the training; None: one that reports every epoch to the oracle, which may stop the trial.

        Raises:
            FailedTrialError: the trial cannot be trained; the search records that and goes on.
        """

        def report(epoch: int, logs: dict[str, float]) -> None:
            # The first epoch is 1, for KerasTuner reports a result without a step as step 0.
            answer = self.oracle.update_trial(trial.trial_id, {objective: logs[objective]}, step=epoch + 1)
            if answer.status == "STOPPED":
                logger.info("Trial %s is stopped early, after epoch %d.", trial.trial_id, epoch + 1)
                model.stop_training = True

        objective = f"val_{self._settings.objective}"
        keras.backend.clear_session()
        keras.utils.set_random_seed(self._seed)
        try:
            with precision(self._settings, self._distribution), self._distribution.strategy.scope():
                model = self.hypermodel.build(trial.hyperparameters)
            history = Fit(
                model,
                *self._splits,
                self._settings,
                self._distribution,
                seed=self._seed,
                callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=report)] if callbacks is None else callbacks,
                augment=self._augment,
                checkpoints=_checkpoints_of(trial),
            ).run()
        except (TrainingError, tf.errors.ResourceExhaustedError) as error:
            failure = f"trial {trial.trial_id} with {trial.hyperparameters.values}: {error}"
            logger.warning("Failed: %s", failure)
            raise keras_tuner.errors.FailedTrialError(failure) from error
        best = {"min": min, "max": max}[self.oracle.objective.direction](history[objective])
        logger.info("Trial %s: %s %.4f, %s", trial.trial_id, objective, best, trial.hyperparameters.values)
        return {objective: best}

    @property
    def at_once(self) -> int:
        """Return how many trials may be trained at the same time on this machine, each in a process: 1 or more.

        A small network keeps no more than one or two cores busy; on accelerators a trial has all of them.
        """
        if not self._distribution.on_cpu or self._distribution.replicas > 1:
            return 1
        size = sum(tf.io.gfile.stat(file).length for patterns in self._files() for file in find(patterns))
        there_is_room_for = int(SHARE_FOR_TRIALS * free_memory() / (OF_PROCESS + UNPACKED * size))
        return max(1, min(int(usable_cores()), self._settings.trials, MOST_AT_ONCE, there_is_room_for))

    def train_for(self, number: int, ask: Callable[[Any], Any]) -> None:
        """Train the trials that the oracle of another process hands out, until there are no more."""
        self.tuner_id = f"tuner{number}"
        self.oracle = OracleElsewhere(self.oracle, ask)
        self.search()

    def answer(self, question: Any) -> Any:
        """Return the oracle's answer to a process that trains, asked by its ``OracleElsewhere``."""
        method, arguments, named = question
        return getattr(self.oracle, method)(*arguments, **named)

    def give_up(self, number: int, error: Exception) -> None:
        """Count the trial that a process had begun when it ended as failed."""
        trial = self.oracle.ongoing_trials.get(f"tuner{number}")
        if trial:
            trial.status, trial.message = "FAILED", f"{FAILED}trial {trial.trial_id}: {error}"
            logger.warning("Failed: trial %s: %s", trial.trial_id, error)
            self.oracle.end_trial(trial)

    def search(self, *args: Any, **kwargs: Any) -> None:
        """Search, or hand trials out, or train those handed out; raise TrainingError if no trial could be trained."""
        super().search(*args, **kwargs)
        if isinstance(self.oracle, keras_tuner.Oracle):  # else the process of the oracle does so
            self.conclude()

    def conclude(self) -> None:
        """Log the outcome of the search; raise TrainingError if no trial could be trained."""
        completed_trials(self.oracle)
        logger.info("The search has ended after trial %d%s.", len(self.oracle.trials), self.oracle.summary())


def completed_trials(oracle: keras_tuner.Oracle) -> list[Trial]:
    """Return the trials that have ended well, the best first; raise TrainingError if there are none."""
    # KerasTuner fills the list up with failed trials.
    trials = [trial for trial in oracle.get_best_trials(len(oracle.trials)) if trial.status == "COMPLETED"]
    if not trials:
        message = "".join(str(trial.message or "") for trial in [*oracle.trials.values()][-1:]).strip()
        reason = message.rpartition(FAILED if FAILED in message else "\n")[2]  # KerasTuner keeps the traceback
        raise TrainingError(f"every trial of the search failed. {reason or 'None has a number as its objective.'}")
    return trials


def part_of(
    train_files: Sequence[str], eval_files: Sequence[str], rows: int | None
) -> tuple[Sequence[str], Sequence[str]]:
    """Return files with about this many rows of the train split, and as large a part of the eval split.

    Whole files, taken evenly: each has rows from all over its split, or in a window from all over a span.
    """
    if rows is None:
        return train_files, eval_files
    train, evaluate = find(train_files), find(eval_files)
    there = estimate(train) if train else 0
    if there <= rows:
        return train_files, eval_files
    share = rows / there

    def evenly(files: Sequence[str]) -> list[str]:
        count = math.ceil(len(files) * share)
        return [files[place * len(files) // count] for place in range(count)]

    parts = evenly(train), evenly(evaluate)
    logger.info(
        "The search reads %d of %d files of the train split, tuning.rows=%d of about %d rows, and %d of %d of eval.",
        len(parts[0]),
        len(train),
        rows,
        there,
        len(parts[1]),
        len(evaluate),
    )
    return parts


def _checkpoints_of(trial: Trial) -> str | None:
    """Return the folder of a trial that is its own job, under Vertex AI Vizier: it outlives a lost machine."""
    folder = os.environ.get(CHECKPOINT_VARIABLE)
    if folder and os.environ.get(TRIAL_VARIABLE) == trial.trial_id:
        return os.path.join(folder, f"trial-{trial.trial_id}")
    return None


def tune(
    fn_args: Any, build_model: BuildModel, *, decode: Decode | None = None, augment: Augment | None = None
) -> TunerFnResult:
    """Prepare the search that TFX's Tuner runs: random values of every ``hp`` that ``build_model`` asks for.

    Args:
        fn_args: What TFX passes to ``tuner_fn``.
        build_model: Builds and compiles a model from hyperparameters and features; the same one as for ``run``.
        decode: See ``run``.
        augment: See ``run``.
    """
    return TunerFnResult(Search(fn_args, build_model, Settings.of(fn_args), decode, augment), {})
