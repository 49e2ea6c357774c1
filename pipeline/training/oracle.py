"""Decide which trial of a search is next, which is stopped early, and when the search ends."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import keras_tuner

from pipeline.progress import Progress

Direction = Literal["min", "max"]
Trial: TypeAlias = Any  # KerasTuner's, for which it documents no name
# Ended trials that the median is taken of, at least: one of two says little.
ENOUGH_TRIALS = 3
# What a search asks its oracle, as KerasTuner's own client of one.
ASKED = ("create_trial", "end_trial", "get_best_trials", "get_space", "get_trial", "update_space", "update_trial")


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
