"""A table of all that trees tell apart, and boosters that learn from it."""

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from pipeline.training.features import Features

FEATURES = Features(numbers={"numbers": 5}, categories={"word": 6, "codes": 400}, places={"codes": 2})


def table(rows: int, seed: int) -> dict[str, np.ndarray]:
    """Numbers with gaps, ties and infinities; a category of few values, and two places of one of many."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(rows, 5)).astype(np.float32)
    numbers[:, 3] = 7.0  # only what is missing tells rows apart
    numbers[:, 4] = np.where(rng.random(rows) < 0.3, np.inf, np.where(rng.random(rows) < 0.3, -np.inf, 1.0))
    numbers[:, 1] = np.round(numbers[:, 1], 1)  # ties, and thresholds between neighbours
    numbers[:, 2] *= 1e30
    numbers[rng.random((rows, 5)) < 0.15] = np.nan
    word = rng.integers(0, 5, size=(rows, 1))
    codes = np.minimum(rng.geometric(0.02, size=(rows, 2)), 398)
    return {"numbers": numbers, "word": word, "codes": codes}


def score(features: dict[str, np.ndarray], rng: np.random.Generator) -> np.ndarray:
    numbers = np.nan_to_num(features["numbers"], nan=0.7)
    jumps = np.sin(features["word"][:, 0] * 3) + (features["codes"][:, 0] % 3 == 1) - (features["codes"][:, 1] % 2)
    jumps = jumps + np.isnan(features["numbers"][:, 3]) + np.sign(np.nan_to_num(features["numbers"][:, 4]))
    return numbers[:, 0] + np.abs(numbers[:, 1]) + jumps + rng.normal(scale=0.3, size=len(jumps))


def unseen(rows: int) -> dict[str, np.ndarray]:
    """Other rows, with values of categories that no train row has."""
    features = table(rows, seed=2)
    features["word"][::3] = 5
    features["codes"][1::4] = 399
    return features


def labels_of(values: np.ndarray, classes: int) -> np.ndarray:
    if not classes:
        return 1000 + 50 * values
    return np.searchsorted(np.quantile(values, np.arange(1, classes) / classes), values)


def booster_of(classes: int, categories: int, **settings) -> HistGradientBoostingClassifier:
    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    return kind(max_iter=15, categorical_features=list(range(categories)) or None, random_state=0, **settings)
