"""Measure simple models on the rows of a run, for a model that is worth its training beats them.

As scikit-learn has them, with its defaults: the constant that is right on average, a linear model, and gradient
boosting by histograms (Ke et al. 2017, "LightGBM").
"""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sklearn import metrics
from sklearn.base import BaseEstimator
from sklearn.compose import make_column_transformer
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from threadpoolctl import threadpool_limits

from pipeline.settings.gates import BASELINES
from pipeline.settings.tasks import task_of

# Values of the train split that the baselines learn from: columns times rows. Boosting takes about two seconds for
# them; of the flights, on four times as many its AUC is 0.001 higher.
VALUES, ROWS = 1_500_000, 60_000
# Rows that hold an image, which no baseline sees.
MOST_IMAGES = 2_000
# Boosting grows a tree for each class and iteration: scikit-learn's 100 iterations up to so many trees.
ITERATIONS, TREES = 100, 1_000
# Values of a text column that boosting tells apart (a byte), and the linear model; the rarer ones count as one.
CATEGORIES, INDICATORS = 250, 100


def rows_to_fit(columns: int, images: bool) -> int:
    """Return how many rows of the train split the baselines learn from at most, of such with or without images."""
    return MOST_IMAGES if images else min(ROWS, VALUES // max(1, columns))


def measure(
    train: pa.Table, test: pa.Table, label: str, classes: int, weight: str | None = None
) -> dict[str, dict[str, float]]:
    """Fit each baseline on rows of train and measure it on rows of test.

    Args:
        train: Columns of numbers or text, a value or null in each row, and the label.
        test: The same columns.
        label: Column of class numbers, or of any numbers.
        classes: Of the label; 0 where it is a number.
        weight: Column of how much each row counts; None: all count the same. Their unit does not matter.

    Returns:
        Metrics that need no threshold, by baseline: the constant alone where there are no other columns, or only one
        class. Rows without a label do not count.
    """
    train, test = (table.filter(pc.is_valid(table.column(label))) for table in (train, test))
    labels = [np.asarray(table.column(label).cast(pa.float64()), np.float64) for table in (train, test)]
    weights = [_weights(table, weight) for table in (train, test)]
    names = [name for name in train.column_names if name not in (label, weight)]
    features, text = _matrices(train.select(names), test.select(names))
    results: dict[str, dict[str, float]] = {}
    # A core suffices; two that wait for each other on a machine at work take ten times as long.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for name in BASELINES if names and len(np.unique(labels[0])) > 1 else BASELINES[:1]:
            model = _MODELS[name](text, features[0].shape[1], classes)
            given = features if names else [np.zeros((len(part), 1)) for part in labels]
            last = f"{model.steps[-1][0]}__" if isinstance(model, Pipeline) else ""
            model.fit(given[0], labels[0], **{f"{last}sample_weight": weights[0]})
            results[name] = _metrics(model, given[1], labels[1], classes, weights[1])
    return results


def _weights(table: pa.Table, weight: str | None) -> np.ndarray | None:
    """Return the weights, float64 [rows], of mean 1: regularization is as strong as without them."""
    if weight is None:
        return None
    weights = np.asarray(table.column(weight).cast(pa.float64()), np.float64)
    return weights / weights.mean()


def _matrices(train: pa.Table, test: pa.Table) -> tuple[list[np.ndarray], list[int]]:
    """Return both tables as float64 [rows, columns], NaN where nothing is, and which columns are codes of text."""
    columns, text = [], []
    for place, name in enumerate(train.column_names):
        values = pa.concat_tables([train.select([name]), test.select([name])], promote_options="permissive").column(0)
        if pa.types.is_null(values.type):
            columns.append(np.full(len(values), np.nan))
            continue
        if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            values = values.combine_chunks().dictionary_encode().indices
            text.append(place)
        numbers = np.asarray(pc.fill_null(values.cast(pa.float64()), np.nan), np.float64)
        columns.append(np.where(np.isfinite(numbers), numbers, np.nan))
    matrix = np.stack(columns, axis=1) if columns else np.zeros((train.num_rows + test.num_rows, 0))
    return [matrix[: train.num_rows], matrix[train.num_rows :]], text


def _constant(text: Sequence[int], columns: int, classes: int) -> BaseEstimator:
    return DummyClassifier(strategy="prior") if classes else DummyRegressor()


def _linear(text: Sequence[int], columns: int, classes: int) -> BaseEstimator:
    numbers = [place for place in range(columns) if place not in text]
    return make_pipeline(
        make_column_transformer(
            (OneHotEncoder(max_categories=INDICATORS, handle_unknown="infrequent_if_exist"), list(text)),
            (make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler()), numbers),
        ),
        LogisticRegression() if classes else Ridge(),
    )


def _boosting(text: Sequence[int], columns: int, classes: int) -> BaseEstimator:
    codes = OrdinalEncoder(
        max_categories=CATEGORIES,
        handle_unknown="use_encoded_value",
        unknown_value=np.nan,
        encoded_missing_value=np.nan,
    )
    booster = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    return make_pipeline(
        make_column_transformer((codes, list(text)), remainder="passthrough"),
        booster(
            max_iter=max(1, min(ITERATIONS, TREES // max(1, classes))),
            categorical_features=list(range(len(text))),
            early_stopping=False,
            random_state=0,
        ),
    )


_MODELS: dict[str, Callable[[Sequence[int], int, int], BaseEstimator]] = {
    "constant": _constant,
    "linear": _linear,
    "boosting": _boosting,
}


def _metrics(
    model: BaseEstimator, features: np.ndarray, labels: np.ndarray, classes: int, weights: np.ndarray | None
) -> dict[str, float]:
    """Return the task's metrics that need no threshold."""
    if not classes:
        answers = model.predict(features)
        return {
            "rmse": float(metrics.root_mean_squared_error(labels, answers, sample_weight=weights)),
            "mae": float(metrics.mean_absolute_error(labels, answers, sample_weight=weights)),
        }
    # A class that the train rows lack is never answered.
    answers = np.zeros((len(labels), classes))
    answers[:, model.classes_.astype(int)] = model.predict_proba(features)
    if task_of(classes) == "binary":
        if len(np.unique(labels)) < 2:
            return {}  # undefined, as the candidate's are
        return {
            "auc": float(metrics.roc_auc_score(labels, answers[:, 1], sample_weight=weights)),
            "auc_precision_recall": float(
                metrics.average_precision_score(labels, answers[:, 1], sample_weight=weights)
            ),
        }
    answers = np.clip(answers, np.finfo(np.float32).eps, 1)
    return {
        "accuracy": float(np.average(answers.argmax(axis=1) == labels, weights=weights)),
        "log_loss": float(np.average(-np.log(answers[np.arange(len(labels)), labels.astype(int)]), weights=weights)),
    }
