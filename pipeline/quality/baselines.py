"""Measure scikit-learn's simple models on the rows of a run: a constant, a linear model and gradient boosting."""

import warnings

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

# Most values, columns times rows, and rows of the train split to learn from: boosting takes about two seconds.
VALUES, ROWS = 1_500_000, 60_000
# Rows that hold an image, which no baseline sees.
MOST_IMAGES = 2_000
# Boosting grows a tree for each class and iteration.
ITERATIONS, TREES = 100, 1_000
# Most values of a text column for boosting (a byte) and for the linear model; the rarer ones count as one.
CATEGORIES, INDICATORS = 250, 100


def rows_to_fit(columns: int, images: bool) -> int:
    """Return the most rows of the train split to learn from."""
    return MOST_IMAGES if images else min(ROWS, VALUES // max(1, columns))


def measure(
    train: pa.Table, test: pa.Table, label: str, classes: int, weight: str | None = None
) -> dict[str, dict[str, float]]:
    """Return the metrics that need no threshold by baseline: the constant alone if nothing can be learnt.

    Columns are numbers or text, a value or null in each row; rows without a label are left out. ``classes`` is 0 where
    the label is a number.
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
            model = _model(name, text, features[0].shape[1], classes)
            given = features if names else [np.zeros((len(part), 1)) for part in labels]
            last = f"{model.steps[-1][0]}__" if isinstance(model, Pipeline) else ""
            model.fit(given[0], labels[0], **{f"{last}sample_weight": weights[0]})
            results[name] = _metrics(model, given[1], labels[1], classes, weights[1])
    return results


def _weights(table: pa.Table, weight: str | None) -> np.ndarray | None:
    """Return the weights, float64 [rows], of mean 1, so that regularization is as strong as without them."""
    if weight is None:
        return None
    weights = np.asarray(table.column(weight).cast(pa.float64()), np.float64)
    return weights / weights.mean()


def _matrices(train: pa.Table, test: pa.Table) -> tuple[list[np.ndarray], list[int]]:
    """Return both tables as float64 [rows, columns], missing values as NaN, and the places of codes of text."""
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


def _model(name: str, text: list[int], columns: int, classes: int) -> BaseEstimator:
    """Return a model for a matrix in which some columns are codes of text."""
    if name == "constant":
        return DummyClassifier(strategy="prior") if classes else DummyRegressor()
    if name == "boosting":
        return _boosting(text, classes)
    numbers = [place for place in range(columns) if place not in text]
    return make_pipeline(
        make_column_transformer(
            (OneHotEncoder(max_categories=INDICATORS, handle_unknown="infrequent_if_exist"), text),
            (make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler()), numbers),
        ),
        LogisticRegression() if classes else Ridge(),
    )


def _boosting(text: list[int], classes: int) -> BaseEstimator:
    codes = OrdinalEncoder(
        max_categories=CATEGORIES,
        handle_unknown="use_encoded_value",
        unknown_value=np.nan,
        encoded_missing_value=np.nan,
    )
    booster = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    return make_pipeline(
        make_column_transformer((codes, text), remainder="passthrough"),
        booster(
            max_iter=max(1, min(ITERATIONS, TREES // max(1, classes))),
            categorical_features=list(range(len(text))),
            early_stopping=False,
            random_state=0,
        ),
    )


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
