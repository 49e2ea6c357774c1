"""The search's oracle: which trials are stopped early, by how they do and by time, here and in other processes."""

import math
import threading
from types import SimpleNamespace
from typing import Any

import keras_tuner
import pytest
from keras_tuner.src.distribute import oracle_chief, oracle_client

from pipeline.training import tuning
from pipeline.training.tuning import DefaultsFirst, is_below_median
from tests.training.processes import free_ports

GOOD = [0.6, 0.7, 0.8]  # running averages 0.6, 0.65, 0.7


@pytest.mark.parametrize(
    ("curve", "ended", "stops"),
    [
        ([0.59], [GOOD, GOOD, GOOD], True),
        ([0.6], [GOOD, GOOD, GOOD], False),  # as good is not worse
        ([0.5, 0.66], [GOOD, GOOD, GOOD], False),  # its best counts, against the averages of the others
        ([0.66, 0.5, 0.5], [GOOD, GOOD, GOOD], True),
        ([0.1], [GOOD, GOOD], False),  # two are not enough
        ([0.5], [GOOD, [0.4], [0.3, 0.9]], False),  # the median is 0.4; what comes after this epoch has no part in it
        ([0.5, 0.5], [GOOD, [0.4], [0.3, 0.9]], True),  # now it is 0.6
        ([math.nan], [GOOD, GOOD, GOOD], False),
        ([0.59], [GOOD, GOOD, [math.nan]], False),
    ],
)
def test_a_trial_is_stopped_when_its_best_is_worse_than_the_median_of_running_averages(curve, ended, stops):
    assert is_below_median(curve, ended, "max") is stops
    losses = [[-value for value in values] for values in ended]
    assert is_below_median([-value for value in curve], losses, "min") is stops


def oracle_of(trials: int, **settings: Any) -> DefaultsFirst:
    space = keras_tuner.HyperParameters()
    space.Float("rate", 0.0, 1.0, default=0.5)
    objective = keras_tuner.Objective("val_auc", "max")
    return DefaultsFirst(objective=objective, max_trials=trials, hyperparameters=space, seed=1, **settings)


@pytest.fixture
def in_folder(tmp_path):
    def made(trials: int, **settings: Any) -> DefaultsFirst:
        oracle = oracle_of(trials, **settings)
        oracle._set_project_dir(tmp_path, "search")
        return oracle

    return made


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in place of the system's."""
    now = [100.0]
    monkeypatch.setattr(tuning, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def report(oracle, trial, *values: float) -> int:
    """Reports epochs until the trial is to stop, ends it as a Tuner does, and returns how many it had."""
    epochs = 0
    for value in values:
        epochs += 1
        if oracle.update_trial(trial.trial_id, {"val_auc": value}, step=epochs).status == "STOPPED":
            break
    trial.status = "COMPLETED"
    oracle.end_trial(trial)
    return epochs


def test_the_first_trial_takes_the_defaults_and_the_second_searches(in_folder):
    oracle = in_folder(trials=3)
    first, second, third = (oracle.create_trial(f"tuner{number}").hyperparameters.values for number in range(3))
    assert first == {"rate": 0.5}
    assert len({0.5, second["rate"], third["rate"]}) == 3


def test_a_bad_trial_is_stopped_and_is_not_the_best_and_the_first_three_are_not_stopped(in_folder):
    oracle = in_folder(trials=6, epochs=3)
    scores = ([0.6, 0.7, 0.8], [0.5, 0.6, 0.7], [0.1, 0.1, 0.1], [0.4, 0.9, 0.9], [0.46, 0.47, 0.99], [0.5, 0.7, 0.9])
    epochs = [report(oracle, oracle.create_trial("tuner"), *values) for values in scores]
    assert epochs == [3, 3, 3, 1, 2, 3]
    assert oracle.stopped == {"3": "below the median after epoch 1", "4": "below the median after epoch 2"}
    assert [trial.score for trial in oracle.get_best_trials(6)] == [0.9, 0.8, 0.7, 0.47, 0.4, 0.1]
    assert oracle.get_best_trials(1)[0].trial_id == "5"
    assert oracle.summary() == ", best auc so far 0.9000 (the defaults: 0.8000), 2 stopped early"


def test_epochs_of_the_head_alone_do_not_stop_a_trial_and_neither_does_the_last(in_folder):
    oracle = in_folder(trials=5, epochs=3, head_epochs=1)
    for _ in range(3):
        report(oracle, oracle.create_trial("tuner"), 0.6, 0.7, 0.8)
    assert report(oracle, oracle.create_trial("tuner"), 0.1, 0.9, 0.1) == 3
    assert report(oracle, oracle.create_trial("tuner"), 0.9, 0.69, 0.9) == 2
    assert set(oracle.stopped) == {"4"}


def test_when_the_time_is_used_up_no_trial_starts_and_those_that_run_stop_except_the_first(in_folder, now):
    oracle = in_folder(trials=50, epochs=3, minutes=30)
    first, second = oracle.create_trial("a"), oracle.create_trial("b")
    now[0] += 31 * 60
    assert report(oracle, second, 0.9, 0.9, 0.9) == 1
    assert report(oracle, first, 0.1, 0.2, 0.3) == 3
    assert oracle.stopped == {"01": "out of time after epoch 1"}
    assert oracle.create_trial("a").status == oracle.create_trial("b").status == "STOPPED"
    assert oracle.summary().startswith(", best auc so far 0.9000 (the defaults: 0.3000), 1 stopped early, 31.0 of 30 m")


def test_a_trial_that_would_not_end_in_time_does_not_start(in_folder, now):
    oracle = in_folder(trials=50, minutes=30)
    first = oracle.create_trial("tuner")
    now[0] += 10 * 60
    report(oracle, first, 0.6)
    second = oracle.create_trial("tuner")
    assert second.status == "RUNNING"
    now[0] += 10 * 60
    report(oracle, second, 0.6)  # of 30 minutes, 20 are used up, and another trial would take 10
    assert oracle.create_trial("tuner").status == "STOPPED"


@pytest.mark.slow
def test_trials_in_other_processes_are_stopped_too(in_folder, monkeypatch):
    oracle = in_folder(trials=4, epochs=3)
    monkeypatch.setenv("KERASTUNER_ORACLE_IP", "127.0.0.1")
    monkeypatch.setenv("KERASTUNER_ORACLE_PORT", str(free_ports(1)[0]))
    monkeypatch.setenv("KERASTUNER_TUNER_ID", "tuner0")
    chief = threading.Thread(target=oracle_chief.start_server, args=[oracle], daemon=True)
    chief.start()
    client = oracle_client.OracleClient(oracle_of(trials=4))
    for _ in range(3):
        report(client, client.create_trial("tuner0"), 0.6, 0.7, 0.8)
    assert report(client, client.create_trial("tuner0"), 0.5, 0.9) == 1
    assert client.create_trial("tuner0").status == "STOPPED"
    chief.join()
    assert oracle.stopped == {"3": "below the median after epoch 1"}
