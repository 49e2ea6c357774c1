"""A network and trees that answer together: their mean, weighed on the eval split.

Models that err differently err less in the mean: on 51 published tables, ensembles of both families are ahead of either
(Erickson et al. 2025, "TabArena: A Living Benchmark for Machine Learning on Tabular Data").
"""

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from pipeline.progress import Progress
from pipeline.training.control_groups import usable_cores
from pipeline.training.decoding import Decoder
from pipeline.training.errors import TrainingError
from pipeline.training.features import Features
from pipeline.training.input_pipeline import Split, evaluation_steps
from pipeline.training.settings import Settings
from pipeline.training.strategy import Part
from pipeline.training.trees import Columns, Trees

logger = logging.getLogger("pipeline.training")

# Rows answered together.
BATCH = 4096
# Rows of the train split, and bytes, that are unpacked together: each batch asks Python for its lock dozens of times,
# and may wait for the thread that traces the network.
ROWS_AT_ONCE, BYTES_AT_ONCE = 65_536, 64 << 20
# Values that trees learn from, columns times rows, and bytes for each while scikit-learn fits. Of more values, evenly
# picked rows.
MOST_VALUES, BYTES_TO_FIT = 150_000_000, 22
# Of the trees.
WEIGHTS = np.linspace(0, 1, 21)
EVEN_ROWS = 100
# The rate of a step, iterations before any are judged, and iterations without a better answer that end the search. Of
# many rows larger steps: half of them improve the answers as much.
SLOW, FAST, MANY_ROWS = (0.05, 150, 75), (0.1, 112, 38), 100_000
LEAST_ITERATIONS, MOST_ITERATIONS = 25, 500
# Each iteration grows a tree for each of several classes, and a request waits for all of them.
MOST_TREES = 2_000
# By which columns are compared first.
ROWS_TO_COMPARE = 1_000


class Sample(NamedTuple):
    """Rows as trees take them.

    Attributes:
        values: As ``Columns`` makes them, float32 [rows, columns].
        labels: Numbers of classes, or numbers; [rows].
        weights: How much each row counts, [rows]; None: all count the same.
    """

    values: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None = None


# Trees, and their answers, [rows, 1 or classes], for the rows of the eval split that decide on their weight.
FittedTrees: TypeAlias = tuple[Trees, Sample]


class Ensemble(tf.Module):
    """The weighted mean of the answers of trees and a network.

    Attributes:
        weight: Of the trees' answers, 0 to 1.
        found: In words, the losses of the members on the eval split.
        alone: Whether there is no network.
    """

    def __init__(self, trees: Trees, weight: float, found: str, alone: bool = False):
        super().__init__()
        self.trees, self.weight, self.found, self.alone = trees, weight, found, alone


def answering(
    model: keras.Model, decoder: Decoder, ensemble: Ensemble | None = None
) -> Callable[[Mapping[str, tf.Tensor]], tf.Tensor]:
    """Return a function from decoded features, [batch, ...] by name, to answers, [batch, 1 or classes].

    A functional model takes the features that it names, any other takes all.
    """
    is_functional = getattr(model, "inputs", None) and not isinstance(model, keras.Sequential)
    names = [tensor.name for tensor in model.inputs] if is_functional else list(decoder.specs)

    def network(features: Mapping[str, tf.Tensor]) -> tf.Tensor:
        return model({name: features[name] for name in names}, training=False)

    if ensemble is None:
        return network
    trees, weight = ensemble.trees, ensemble.weight
    if weight in (0, 1):
        return trees if weight else network
    return lambda features: weight * trees(features) + (1 - weight) * tf.cast(network(features), tf.float32)


def each_row(
    split: Split, batch_size: int, every: int = 1
) -> Iterator[tuple[Mapping[str, tf.Tensor], np.ndarray, np.ndarray | None]]:
    """Yield every ``every``-th row of a split: features by name, [rows, ...], and labels and any weights, [rows].

    The split is read by this process alone.
    """
    for packed in split.evaluation(batch_size, Part()).take(evaluation_steps(split.examples, batch_size, 1)):
        batch = split.rows.unpack(split.rows.pick(packed)[::every])
        features, label, weight = keras.utils.unpack_x_y_sample_weight(batch)
        yield features, label.numpy().ravel(), None if weight is None else weight.numpy().astype(np.float64)


def class_weights_of(split: Split, classes: int) -> np.ndarray:
    """Return ``balanced`` for all rows of a split."""
    sums = np.zeros(classes)
    for _, labels, weights in each_row(split, BATCH):
        sums += np.bincount(labels.astype(int), weights, classes)
    return balanced(sums)


def balanced(rows: np.ndarray) -> np.ndarray:
    """Return scikit-learn's "balanced" weights of classes, float64, from their rows or sums of weights, [classes].

    With these each class counts the same (King and Zeng 2001, "Logistic Regression in Rare Events Data"), and their
    mean over the rows is 1. A class without any row has the weight 1.
    """
    return np.divide(rows.sum(), len(rows) * rows, out=np.ones(len(rows)), where=rows > 0)


def bytes_to_fit(features: Features, rows: int) -> int:
    """Return the bytes of memory that ``fit_trees`` takes for this many rows of the train split."""
    return BYTES_TO_FIT * min(MOST_VALUES, rows * Columns(features).count)


def fit_trees(features: Features, train: Split, evaluate: Split, settings: Settings) -> FittedTrees | None:
    """Fit trees, in every worker; None if there are no columns or classes to learn from.

    Raises:
        TrainingError: then, if settings.members is "trees".
    """
    columns, classes = Columns(features), len(settings.classes)
    at_once = max(1, min(ROWS_AT_ONCE, BYTES_AT_ONCE // train.rows.bytes))
    rows, labels, weights = _collected(train, _every(train, columns), columns, at_once)
    lacking = "" if columns.count else "the model has no numbers and no categories"
    if classes and len(np.unique(labels)) < classes:
        lacking = "a class has no row in the train split"
    if lacking:
        if settings.members == "trees":
            raise TrainingError(f'training.members is "trees", and {lacking}: take "network"')
        logger.info("No trees: %s.", lacking)
        return None
    columns.count_categories(rows)
    learnt = columns.of(rows)
    del rows  # before scikit-learn takes three times as much as they
    collected, right, counted = _collected(evaluate, _every(evaluate, columns), columns)
    judged = columns.of(collected)
    del collected
    if settings.class_weight:
        of_classes = balanced(np.bincount(labels.astype(int), weights, classes))
        weights = of_classes[labels.astype(int)] * (1 if weights is None else weights)
    if classes:
        counted = with_shares_of(labels, weights, right, counted)
    judging = Sample(judged, right, counted)
    trees, answers = fit_boosting(Sample(learnt, labels, weights), judging, columns, classes, settings.seed or 0)
    return trees, judging._replace(values=answers)


def fit_boosting(
    train: Sample, evaluate: Sample, columns: Columns, classes: int, seed: int
) -> tuple[Trees, np.ndarray]:
    """Fit as many iterations as improve the answers for the eval split.

    Args:
        train: Rows to learn from; of every class.
        evaluate: Rows that say when to stop.
        columns: Of these rows.
        classes: Of the label; 0 where it is a number.
        seed: Of the sample of rows by which scikit-learn makes bins of numbers.

    Returns:
        The trees, and their answers for the rows of the eval split, float64 [rows, 1 or classes].
    """
    # Here, for half a second of imports is not for trainings without trees.
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    rate, at_first, patience = SLOW if len(train.values) < MANY_ROWS else FAST
    # Of equal columns trees take the first, but would compare all of them.
    informative = _informative(train.values, columns.categories)
    values, judged = train.values, evaluate.values
    if len(informative) < columns.count:
        logger.info(
            "Trees look at %d of %d columns; others equal these or have one value.", len(informative), columns.count
        )
        values, judged = values[:, informative], judged[:, informative]
    booster = (HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor)(
        learning_rate=rate,
        early_stopping=False,
        warm_start=True,
        categorical_features=[number for number, place in enumerate(informative) if place < columns.categories] or None,
        random_state=seed,
    )
    progress = Progress("trees")
    most = max(LEAST_ITERATIONS, min(MOST_ITERATIONS, MOST_TREES // max(1, classes - 1)))
    iterations, tried, best = min(most, at_first), 0, 0
    lowest = math.inf
    answers: np.ndarray = np.zeros(0)
    while tried < iterations:
        # All cores but one: OpenMP's threads wait for each other, and a busy core delays all of them.
        with threadpool_limits(max(1, int(usable_cores()) - 1)):
            booster.set_params(max_iter=iterations).fit(values, train.labels, sample_weight=train.weights)
        stages = booster.staged_predict_proba if classes else booster.staged_predict
        for number, stage in enumerate(stages(judged), 1):
            loss = np.average(losses_of(stage, evaluate.labels, classes), weights=evaluate.weights)
            if not best or loss < lowest:
                lowest, best, answers = loss, number, stage
        tried = iterations
        if progress.due():
            progress.tell(f"trees: iteration {tried} of at most {most}, loss on eval {lowest:.4g}")
        if tried - best < patience:
            # Twice as many, for scikit-learn sorts all rows and answers for them anew whenever it goes on.
            iterations = min(most, 2 * tried)
    logger.info("Trees: %d iterations, loss on the eval split %.4g.", best, lowest)
    answers = answers[:, 1:] if classes == 2 else answers.reshape(len(answers), -1)
    return Trees(columns, booster, best, informative), answers.astype(np.float64)


def losses_of(answers: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Return -log of each row's probability of the right class; of numbers the squared error; float64 [rows].

    Args:
        answers: Probabilities of the second of two classes, [rows, 1], or of all, [rows, classes]; numbers, [rows, 1].
        labels: Numbers of classes, or numbers, [rows].
        classes: Of the label; 0 where it is a number.
    """
    if not classes:
        return np.square(answers.ravel().astype(np.float64) - labels)
    if answers.shape[1] == 1:
        answers = np.concatenate([1 - answers, answers], axis=1)
    right = answers[np.arange(len(labels)), labels.astype(int)].astype(np.float64)
    return -np.log(np.clip(right, 1e-7, 1.0))


def _informative(values: np.ndarray, categories: int) -> list[int]:
    """Return the places of the columns, of [rows, columns], that are neither constant nor equal to an earlier one."""
    # Some rows distinguish most columns; reading one column of a large table takes as long as reading all.
    some = values[:: max(1, len(values) // ROWS_TO_COMPARE)]
    keys = [column.tobytes() for column in some.T]
    times = Counter(keys)
    first: dict[tuple[bool, bytes, bytes], int] = {}
    for place, (key, column) in enumerate(zip(keys, values.T, strict=True)):
        whole = b""
        if times[key] > 1 or (some[:, place] == some[0, place]).all():
            if (column == column[0]).all():
                continue
            whole = hashlib.sha256(column.tobytes()).digest()
        first.setdefault((place < categories, key, whole), place)
    return [*first.values()] or [0]


def with_trees(
    model: keras.Model,
    decoder: Decoder,
    fitted: Callable[[], FittedTrees | None],
    features: Features,
    evaluate: Split,
    settings: Settings,
) -> Ensemble | None:
    """Weigh trees and a network by the loss of their mean on the eval split; None if there are no trees.

    Every worker must call it, to read some variables of the network. ``fitted`` may wait for the trees; it is called
    when the network has answered.
    """
    others: list[np.ndarray] = []
    if settings.members != "trees":
        network, rows = answering(model, decoder), each_row(evaluate, BATCH, _every(evaluate, Columns(features)))
        others = [np.asarray(network(part), np.float64) for part, *_ in rows]
    found = fitted()
    if found is None:
        return None
    trees, (answers, right, counted) = found
    classes = len(settings.classes)
    if settings.members == "trees":
        return Ensemble(
            trees, 1.0, f"trees {np.average(losses_of(answers, right, classes), weights=counted):.4g}", alone=True
        )
    beside = np.concatenate(others)
    losses = np.stack([losses_of(part * answers + (1 - part) * beside, right, classes) for part in WEIGHTS])
    weight = most_even(losses, counted)
    together = np.average(losses_of(weight * answers + (1 - weight) * beside, right, classes), weights=counted)
    means = np.average(losses, axis=1, weights=counted)
    return Ensemble(
        trees,
        weight,
        f"network {means[0]:.4g}, trees {means[-1]:.4g}, together {together:.4g} with "
        f"{100 * weight:.0f} % of the trees",
    )


def with_shares_of(
    train: np.ndarray, train_weights: np.ndarray | None, labels: np.ndarray, weights: np.ndarray | None
) -> np.ndarray:
    """Return weights of rows, [rows], by which their classes have the shares of the train split.

    Otherwise, months with fewer late flights than the training would favour the member with lower
    probabilities, of which months to come know nothing ("label shift", Lipton et al. 2018, "Detecting and Correcting
    for Label Shift with Black Box Predictors").

    Args:
        train: Numbers of classes, of the train split; each class has a row.
        train_weights: How much each of its rows counts; None: all count the same.
        labels: Of the rows.
        weights: How much each row counts, before.
    """
    classes = int(train.max()) + 1
    expected, found = (
        np.bincount(given.astype(int), counted, classes)
        for given, counted in ((train, train_weights), (labels, weights))
    )
    shares = np.divide(expected / expected.sum(), found / found.sum(), out=np.ones(classes), where=found > 0)
    return shares[labels.astype(int)] * (1 if weights is None else weights)


def most_even(losses: np.ndarray, counted: np.ndarray | None = None) -> float:
    """Return the weight nearest to a half that loses no more than the best one by a standard error.

    With few rows it is still nearer: on a small eval split, the best weight is often the one of the member that fits
    its rows by chance, and without a wrong answer the spread is no measure of what one would cost. ``EVEN_ROWS`` more
    rows count as if their best weight were a half.

    Args:
        losses: Of each row for each weight, [weights, rows].
        counted: How much each row counts, [rows]; None: all count the same. The standard error takes Kish's effective
            number of rows (1965, "Survey Sampling").
    """
    rows = losses.shape[1] if counted is None else counted.sum() ** 2 / np.square(counted).sum()
    more = losses - losses[np.argmin(np.average(losses, axis=1, weights=counted))]
    mean = np.average(more, axis=1, weights=counted)
    spread = np.sqrt(np.average(np.square(more - mean[:, np.newaxis]), axis=1, weights=counted))
    is_good = mean <= spread / math.sqrt(rows)
    weight = min(WEIGHTS[is_good], key=lambda weight: abs(weight - 0.5))
    return float(0.5 + (weight - 0.5) * rows / (rows + EVEN_ROWS))


def _every(split: Split, columns: Columns) -> int:
    """Return n for trees that get every n-th row."""
    return math.ceil(split.examples / (MOST_VALUES // max(1, columns.count)))


def _collected(
    split: Split, every: int, columns: Columns, at_once: int = BATCH
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray | None]:
    """Return the features of the columns, [rows, values] by name, and labels and any weights, [rows]."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in columns.names}
    labels, weights = [], []
    for features, label, weight in each_row(split, at_once, every):
        for name, of_feature in parts.items():
            values = features[name].numpy()
            of_feature.append(values.astype(np.int32) if values.dtype == np.int64 else values)  # half the memory
        labels.append(label)
        weights.append(weight)
    # Feature by feature, so that parts and whole are in memory of one feature only.
    whole = {name: np.concatenate(parts.pop(name)) for name in columns.names}
    return whole, np.concatenate(labels), None if weights[0] is None else np.concatenate(weights)
