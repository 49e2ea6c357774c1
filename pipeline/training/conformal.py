"""Intervals of numbers and sets of classes that contain the label as often as asked for: split conformal prediction.

They hold for rows drawn as those are that they were fitted on, whatever the model (Vovk, Gammerman and Shafer 2005,
"Algorithmic Learning in a Random World"): rows of another time or place may be missed more often.
"""

import math

import numpy as np

from pipeline.training.errors import TrainingError


def interval(answers: np.ndarray, labels: np.ndarray, coverage: float) -> tuple[float, float]:
    """Return what is to be added to a prediction for its lowest and its highest value.

    Each side misses half, so that it fits errors that are skewed (Linusson, Johansson and Loefstroem 2014,
    "Signed-Error Conformal Regression").

    Args:
        answers: Predictions, [rows].
        labels: The numbers, [rows].
        coverage: Share of the rows whose label has to lie within.

    Raises:
        TrainingError: there are too few rows.
    """
    errors = np.sort(np.asarray(labels, np.float64) - answers)
    rank = rank_of(len(errors), coverage, both_sides=True)
    return float(errors[len(errors) - rank]), float(errors[rank - 1])


def least_probability(answers: np.ndarray, labels: np.ndarray, coverage: float) -> float:
    """Return the probability from which a class is in the set: of such sets those are the smallest.

    By Sadinle, Lei and Wasserman 2019, "Least Ambiguous Set-Valued Classifiers With Bounded Error Levels".

    Args:
        answers: Probabilities of the second of two classes, [rows, 1], or of all, [rows, classes].
        labels: Numbers of classes, [rows].
        coverage: Share of the rows whose class has to be in the set.

    Raises:
        TrainingError: there are too few rows.
    """
    shares = np.concatenate([1 - answers, answers], axis=1) if answers.shape[1] == 1 else answers
    of_label = np.sort(shares[np.arange(len(labels)), labels.astype(int)])
    return float(of_label[len(of_label) - rank_of(len(of_label), coverage)])


def rank_of(rows: int, coverage: float, both_sides: bool = False) -> int:
    """Return the place among so many sorted values, from 1, of the one that a new value exceeds as seldom as allowed.

    Args:
        rows: How many values there are.
        coverage: Share of the cases that is not to be missed.
        both_sides: Whether half of what may be missed lies on the other side.

    Raises:
        TrainingError: there are too few rows.
    """
    share = (1 + coverage) / 2 if both_sides else coverage
    rank = math.ceil(round((rows + 1) * share, 9))
    if rank > rows:
        needed = math.ceil(round(share / (1 - share), 9))
        raise TrainingError(
            f"evaluation.coverage of {coverage:g} needs {needed:,} rows of the eval split, which has {rows:,}: ask for "
            "less, or give that split more rows"
        )
    return rank
