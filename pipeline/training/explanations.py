"""Explain answers by raw features: Shapley values by sampling, in plain TensorFlow operations.

A walk begins at a background row and replaces its values by the explained row's values, one feature at a time in a
random order; each step's change of the answer is that feature's (Castro, Gomez & Tejada 2009, "Polynomial calculation
of the Shapley value based on sampling"; Strumbelj & Kononenko 2014, "Explaining prediction models and individual
predictions with feature contributions"). The changes of a walk sum up to the difference of its ends, and so do their
means. Each order is walked backwards too, which cancels much of the chance (Mitchell, Cooper, Frank & Holmes 2022,
"Sampling Permutations for Shapley Value Estimation").
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from pipeline.model.export_format import AVERAGE, COLUMNS, CONTRIBUTIONS, ERRORS

Rows: TypeAlias = Mapping[str, tf.Tensor]
# Rows in a call of the model, and at most to explain one row, unless that allows too few walks.
AT_ONCE, MOST_ASKED = 4_096, 4_096
LEAST_BACKGROUND = 16
logger = logging.getLogger("pipeline.training")


def affordable(background: Sequence[bytes], columns: int) -> list[bytes]:
    """Return the background rows, evenly reduced if there are many columns: a walk asks the model once for each."""
    count = min(len(background), max(LEAST_BACKGROUND, MOST_ASKED // (2 * max(1, columns))))
    if count < len(background):
        logger.info("Explanations begin from %d rows, not %d: there are %d columns.", count, len(background), columns)
    return [background[place] for place in np.linspace(0, len(background) - 1, count).round().astype(int)]


class Explainer(tf.Module):
    """Explains the answers of a function.

    Args:
        answer: From tensors [batch] or [batch, values] by name to outputs [batch, ...]; a ``tf.function`` traced for
            any batch.
        output: Name of the explained output, [batch], or [batch, classes]: there, the most probable class of each row.
        background: Two rows or more, [rows, ...] by name, as ``answer`` takes them.
        columns: Column name of each tensor, in the order of the contributions.
        read: Names of the tensors that answers depend on. The others contribute 0, no walk takes them, and their
            background values are not kept.
    """

    def __init__(
        self,
        answer: Callable[[dict[str, tf.Tensor]], Mapping[str, tf.Tensor]],
        output: str,
        background: Rows,
        columns: Mapping[str, str],
        read: Collection[str],
    ):
        super().__init__()
        # In a lambda, for TensorFlow traces every tf.function that it finds in a module anew when it saves the module.
        self._answer: Callable[[dict[str, tf.Tensor]], Mapping[str, tf.Tensor]] = lambda rows: answer(rows)
        self._output, self._columns = output, dict(columns)
        self._read = [name for name in columns if name in read] or list(columns)[:1]
        self._background = {name: tf.constant(background[name]) for name in self._read}
        of_background = answer({name: background[name] for name in columns})
        self._begin = tf.constant(of_background[output])  # [background rows, ...]
        self._pairs, features = int(self._begin.shape[0]), len(self._read)
        orders = np.tile(np.arange(features), (self._pairs, 1))
        there = np.random.default_rng(0).permuted(orders, axis=1)
        # When a walk takes each feature, [walks, features]: walk w and walk w + pairs begin at background row w.
        self._places = np.concatenate([there, features - 1 - there]).astype(np.int32)

    def __call__(self, rows: Rows) -> dict[str, Any]:
        """Explain rows, [batch, ...] by name, sequentially.

        Returns:
            The outputs of ``answer``; ``contributions`` and their standard errors ``errors``, float32 [batch, columns];
            ``average``, the mean answer to the background rows, [batch]: contributions and average sum up to the
            answer; and ``columns``, their names, [batch, columns].
        """
        answers = self._answer(dict(rows))
        end = answers[self._output]
        count = tf.shape(end)[0]
        # Which class of each row is explained; of a single answer it is the only one.
        chosen = tf.argmax(end, axis=1) if end.shape.rank == 2 else tf.zeros([count], tf.int64)
        row, begin = _of_one_width(rows, self._background)

        def explain(place: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            one = {name: value[place : place + 1] for name, value in row.items()}
            return self._explained(one, begin, _of_class(end[place : place + 1], chosen[place]), chosen[place])

        features = tf.TensorSpec([len(self._read)], tf.float32)
        contributions, errors, average = tf.map_fn(
            explain,
            tf.range(count),
            fn_output_signature=(features, features, tf.TensorSpec([], tf.float32)),
            parallel_iterations=1,
        )
        names = tf.constant([list(self._columns.values())])
        return {
            **answers,
            CONTRIBUTIONS: self._of_all_columns(contributions),
            ERRORS: self._of_all_columns(errors),
            AVERAGE: average,
            COLUMNS: tf.repeat(names, count, axis=0),
        }

    def _of_all_columns(self, values: tf.Tensor) -> tf.Tensor:
        """Return values, [batch, columns that are read], with zeros for the other columns."""
        places = {name: place for place, name in enumerate(self._read)}
        with_zero = tf.pad(values, [[0, 0], [0, 1]])
        return tf.gather(with_zero, [places.get(name, len(places)) for name in self._columns], axis=1)

    def _explained(
        self, row: Rows, background: Rows, end: tf.Tensor, chosen: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the contributions to one answer and their errors, [columns] each, and the average."""
        begin = _of_class(self._begin, chosen)
        walks = 2 * self._pairs
        ends = tf.fill([walks, 1], end[0])
        answers = tf.concat([tf.tile(begin, [2])[:, None], self._between(row, background, chosen), ends], axis=1)
        changes = answers[:, 1:] - answers[:, :-1]  # [walks, steps]
        of_walks = tf.gather(changes, self._places, axis=1, batch_dims=1)  # [walks, columns]
        of_pairs = (of_walks[: self._pairs] + of_walks[self._pairs :]) / 2
        errors = tf.math.reduce_std(of_pairs, axis=0) / float(np.sqrt(self._pairs - 1))
        return tf.reduce_mean(of_pairs, axis=0), errors, tf.reduce_mean(begin)

    def _between(self, row: Rows, background: Rows, chosen: tf.Tensor) -> tf.Tensor:
        """Return the answers on the way between the ends of all walks, [walks, columns - 1]."""
        walks, features = self._places.shape
        if features == 1:
            return tf.zeros([walks, 0])
        at_once = max(1, min(walks, AT_ONCE // (features - 1)))
        places = tf.constant(self._places)

        def part(first: tf.Tensor) -> tf.Tensor:
            walk = tf.minimum(first + tf.range(at_once), walks - 1)  # the last part repeats the last walk
            taken = tf.gather(places, walk)[:, None, :] < tf.range(1, features)[None, :, None]
            taken = tf.reshape(taken, [-1, features])  # [walks per part * steps, columns]
            start = tf.repeat(walk % self._pairs, features - 1)
            unread = [name for name in row if name not in self._read]
            mixed = {name: tf.repeat(row[name], tf.shape(start)[0], axis=0) for name in unread}
            for feature, name in enumerate(self._read):
                is_taken = tf.reshape(taken[:, feature], [-1] + [1] * (row[name].shape.rank - 1))
                mixed[name] = tf.where(is_taken, row[name], tf.gather(background[name], start))
            return tf.reshape(_of_class(self._answer(mixed)[self._output], chosen), [at_once, features - 1])

        if at_once == walks:
            return part(tf.constant(0))
        spec = tf.TensorSpec([at_once, features - 1], tf.float32)
        parts = tf.map_fn(
            part, tf.range(0, walks, at_once), fn_output_signature=spec, parallel_iterations=1
        )  # [parts, walks per part, columns - 1]
        return tf.reshape(parts, [-1, features - 1])[:walks]


def _of_class(answers: tf.Tensor, chosen: tf.Tensor) -> tf.Tensor:
    """Return the answers for one class, [batch]."""
    return answers if answers.shape.rank == 1 else tf.gather(answers, chosen, axis=1)


def _of_one_width(rows: Rows, background: Rows) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """Return rows and background with lists of any number of values filled up to the same width."""
    padded, padded_background = dict(rows), dict(background)
    for name, value in background.items():
        if rows[name].shape.rank == 2 and rows[name].shape[1] is None:
            width = tf.maximum(tf.shape(rows[name])[1], tf.shape(value)[1])
            missing = tf.constant("" if value.dtype == tf.string else np.nan, value.dtype)
            padded[name], padded_background[name] = (
                tf.pad(lists, [[0, 0], [0, width - tf.shape(lists)[1]]], constant_values=missing)
                for lists in (rows[name], value)
            )
    return padded, padded_background
