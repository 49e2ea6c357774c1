"""Weights of classes with which each class counts the same, however rare it is."""

import numpy as np

from pipeline.training.input_pipeline import Split, each_row

# Rows looked at together.
BATCH = 4096


def class_weights(labels: np.ndarray, weights: np.ndarray | None, classes: int) -> np.ndarray:
    """Return scikit-learn's "balanced" weights (King and Zeng 2001, "Logistic Regression in Rare Events Data").

    They are all rows over the rows of a class times the number of classes, and of mean 1 over the rows. A class without
    any row has the weight 1.

    Args:
        labels: Numbers of classes, [rows].
        weights: How much each row counts, [rows]; None: all count the same.
        classes: How many there are.

    Returns:
        float64 [classes].
    """
    return _balanced(np.bincount(labels.astype(int), weights, classes).astype(np.float64))


def class_weights_of(split: Split, classes: int) -> np.ndarray:
    """Return the same for all rows of a split."""
    sums = np.zeros(classes)
    for _, labels, weights in each_row(split, BATCH):
        sums += np.bincount(labels.astype(int), weights, classes)
    return _balanced(sums)


def _balanced(sums: np.ndarray) -> np.ndarray:
    return np.divide(sums.sum(), len(sums) * sums, out=np.ones(len(sums)), where=sums > 0)
