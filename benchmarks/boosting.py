"""scikit-learn's gradient boosting as a rival: its settings and iterations chosen on the eval split."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

MOST_ITERATIONS = 500
# Values of a category that scikit-learn tells apart, but one for all others.
CATEGORIES = 254


def random_settings(seed: int, count: int = 12) -> list[dict[str, Any]]:
    """Draw settings of boosting from usual ranges."""
    rng = np.random.default_rng(seed)
    return [
        {
            "learning_rate": float(np.exp(rng.uniform(np.log(0.02), np.log(0.3)))),
            "max_leaf_nodes": int(rng.choice([8, 15, 31, 63])),
            "min_samples_leaf": int(rng.choice([5, 20, 50])),
            "l2_regularization": float(rng.choice([0, 1, 10])),
            "max_features": float(rng.choice([0.5, 1.0])),
        }
        for _ in range(count)
    ]


def with_categories(frames: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Return frames whose columns of text are categories: the most frequent values of the first frame."""
    frames = [frame.copy() for frame in frames]
    for column in frames[0]:
        if any(frame[column].dtype == object for frame in frames):
            known = frames[0][column].value_counts().index[:CATEGORIES]
            for frame in frames:
                frame[column] = pd.Categorical(frame[column], categories=known)
    return frames


class Boosting:
    """Fits on the first of three frames, chooses on the second, answers for the third.

    Args:
        frames: Features of train, eval and test; text as categories.
        labels: Numbers of classes, or numbers.
        classes: Of the label; 0 where it is a number.
        threads: That scikit-learn may take.
    """

    def __init__(self, frames: Sequence[pd.DataFrame], labels: Sequence[np.ndarray], classes: int, threads: int = 1):
        self.frames, self.labels, self.classes, self.threads = frames, labels, classes, threads

    def default(self) -> np.ndarray:
        """Return the answers for test of a booster with scikit-learn's defaults, but fitted on all rows of train."""
        with threadpool_limits(self.threads):
            model = self._fitted()
            test = self.frames[2]
            return self._padded(model, model.predict_proba(test) if self.classes else model.predict(test))

    def best(self, settings: Sequence[dict[str, Any]], seed: int = 0) -> tuple[dict[str, Any], np.ndarray]:
        """Return the settings that are best on eval, each with its best number of iterations, and answers for test."""
        found: tuple[float, dict[str, Any], np.ndarray] | None = None
        with threadpool_limits(self.threads):
            for more in settings:
                most = MOST_ITERATIONS // max(1, self.classes // 2)
                model = self._fitted(max_iter=most, **{"random_state": seed, **more})
                stages = model.staged_predict_proba if self.classes else model.staged_predict
                errors = [self.error(self._padded(model, given), self.labels[1]) for given in stages(self.frames[1])]
                place = int(np.argmin(errors))
                if found is None or errors[place] < found[0]:
                    test = next(given for number, given in enumerate(stages(self.frames[2])) if number == place)
                    found = errors[place], more, self._padded(model, test)
        assert found
        return found[1:]

    def error(self, answers: np.ndarray, labels: np.ndarray) -> float:
        """Return 1 - AUC of two classes, NaN without both; the log loss of more; the RMSE of a number."""
        if not self.classes:
            return float(np.sqrt(np.mean((answers - labels) ** 2)))
        if self.classes == 2:
            return 1 - float(roc_auc_score(labels, answers[:, 1])) if len(np.unique(labels)) == 2 else np.nan
        right = answers[np.arange(len(labels)), labels.astype(int)]
        return float(-np.log(np.clip(right, 1e-7, 1)).mean())

    def _fitted(self, random_state: int = 0, **more: Any) -> Any:
        kind = HistGradientBoostingClassifier if self.classes else HistGradientBoostingRegressor
        model = kind(categorical_features="from_dtype", early_stopping=False, random_state=random_state, **more)
        return model.fit(self.frames[0], self.labels[0])

    def _padded(self, model: Any, given: np.ndarray) -> np.ndarray:
        """Give the classes that train lacks a probability, too."""
        if not self.classes:
            return given
        answers = np.full((len(given), self.classes), 1e-7)
        answers[:, model.classes_.astype(int)] = given
        return answers
