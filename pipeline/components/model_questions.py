"""Asks an exported model rows, in a process that has only TensorFlow: run by path, with ``python -I``, and no import.

    python -I model_questions.py questions.json answers.json

``model_check`` writes the questions and reads the answers, {"problems": [sentences], "notes": [...], "facts": {...},
"rows": [{"instance": raw features by name, "answer": outputs by name}]}, the last to ask the model where it serves.
What a model server does, the process does: load, call signatures with raw rows. Nothing of this repository, of Keras,
of TFX or of TensorFlow Transform can be imported.
"""

from __future__ import annotations

import base64
import gc
import itertools
import json
import statistics
import sys
import time
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

UNSEEN = "\u2047 never seen"
SINGLE_ROWS = 5
ROWS_TO_KEEP = 50
REPEATS = 20
# What servers and the Evaluator ask for answers; rows come there without their label.
ANSWERING = ("predict", "serving_default")


class WithoutOthers:
    """In place of Python's search through the installed packages: does not find what a model server does not have."""

    def __init__(self, refused: list[str]):
        self.refused = set(refused)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Finds a module as usual, unless it is of a refused package."""
        return None if name.partition(".")[0] in self.refused else PathFinder.find_spec(name, path, target)


class Problem(Exception):
    """A sentence about what the model does wrong."""


def main() -> None:
    """Reads the questions and writes the answers."""
    gc.disable()  # for these few seconds: looking for it among what TensorFlow is made of is a sixth of them
    questions = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutOthers(questions["refused"])
    answers = Model(questions).examine()
    Path(sys.argv[2]).write_text(json.dumps(answers), encoding="utf-8")


class Model:
    """An exported model and what it is asked."""

    def __init__(self, questions: dict[str, Any]):
        import numpy as np
        import tensorflow as tf

        self.np, self.tf = np, tf
        self.questions = questions
        self.tolerance = questions["tolerance"]
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.facts: dict[str, float] = {}
        self.rows: list[dict[str, Any]] = []
        examples = [tf.train.Example.FromString(base64.b64decode(text)) for text in questions["examples"]]
        self.labelled = [tf.train.Example.FromString(one.SerializeToString()) for one in examples]
        for example in examples:
            example.features.feature.pop(questions["label"], None)  # nobody knows it when the model is asked
        self.examples = examples

    def examine(self) -> dict[str, Any]:
        """Everything, as far as it goes."""
        started = time.monotonic()
        try:
            loaded = self.tf.saved_model.load(self.questions["model"])
        except Exception as error:
            self.problems.append(f"the exported model does not load with TensorFlow alone: {first_line(error)}")
            return self.answers()
        self.facts["load_seconds"] = round(time.monotonic() - started, 2)
        if not loaded.signatures:
            self.problems.append("the exported model has no signature, so no server can ask it")
        answered = {}
        odd, odd_names = self.odd_rows()
        for name, signature in sorted(loaded.signatures.items()):
            if self.needs_label(name, signature):
                self.notes.append(f"signature {name} is not checked: it takes rows with their label")
                continue
            try:
                whole = self.ask(name, signature, self.examples, f"{len(self.examples):,} rows")
                # Odd rows first: there one column alone is missing, so the sentence can name it.
                of_odd = self.check_odd_rows(name, signature, odd, odd_names)
                self.check_answer(name, whole)
                self.check_single_rows(name, signature, whole)
                answered[name] = (whole, of_odd)
            except Problem as problem:
                self.problems.append(str(problem))
        self.compare_signatures(answered)
        self.compare_with_training(answered)
        if "serving_default" in answered:
            self.keep_rows(answered["serving_default"][0])
        return self.answers()

    def answers(self) -> dict[str, Any]:
        """What was found."""
        return {"problems": self.problems, "notes": self.notes, "facts": self.facts, "rows": self.rows}

    def needs_label(self, name: str, signature: Any) -> bool:
        """Return whether a signature fails without the label, as TFX's examples' "transform_features" does."""
        if name in ANSWERING:
            return False
        try:
            self.ask(name, signature, self.examples[:1], "a row")
        except Problem:
            pass
        else:
            return False
        try:
            self.ask(name, signature, self.labelled[:1], "a row with its label")
        except Problem:
            return False
        return True

    def ask(self, name: str, signature: Any, examples: list[Any], what: str) -> dict[str, Any]:
        """Calls a signature with raw rows; answers are arrays [rows, ...] by name."""
        try:
            outputs = signature(**self.inputs(signature, examples))
        except Exception as error:
            raise Problem(f"signature {name} fails on {what}: {first_line(error)}") from error
        answer = {key: value.numpy() for key, value in outputs.items()}
        for key, value in answer.items():
            if value.shape[:1] != (len(examples),):
                raise Problem(
                    f"signature {name} answers {what} with {key} of shape {list(value.shape)}, expected "
                    f"[{len(examples)}, ...]"
                )
        return answer

    def inputs(self, signature: Any, examples: list[Any]) -> dict[str, Any]:
        """Serialized examples for a signature of one text input, a tensor a column for any other."""
        specs = signature.structured_input_signature[1]
        if len(specs) == 1:
            ((name, spec),) = specs.items()
            a_column = name in self.questions["columns"]
            if spec.dtype == self.tf.string and spec.shape.rank == 1 and not a_column:
                return {name: self.tf.constant([example.SerializeToString() for example in examples])}
        return {name: self.column(name, spec, examples) for name, spec in specs.items()}

    def column(self, name: str, spec: Any, examples: list[Any]) -> Any:
        """A raw feature of all rows as a tensor; missing is NaN, or "" for text."""
        dtype = self.np.dtype(spec.dtype.as_numpy_dtype)
        missing = b"" if dtype.kind == "O" else float("nan")
        values: list[Any] = []
        for example in examples:
            feature = example.features.feature.get(self.questions["columns"].get(name, name))
            kind = feature.WhichOneof("kind") if feature else None
            found = list(getattr(feature, kind).value) if kind else []
            if not found:
                found = [missing]
            values.append(found if spec.shape.rank and spec.shape.rank > 1 else found[0])
        # As the server does it. tf.constant of a list that mixes integers and NaN is float32, which loses digits.
        return self.tf.constant(self.np.array(values, dtype))

    def check_answer(self, name: str, answer: dict[str, Any]) -> None:
        """Finite numbers, probabilities from 0 to 1, and labels that follow from them."""
        for key, value in answer.items():
            bad = self.not_finite(value)
            if bad:
                raise Problem(f"signature {name} answers {key} {value[bad[0]]} for row {bad[0]}, expected a number")
        measured, classes = self.answer_key(name, answer), self.questions["classes"]
        if measured is None:
            return
        key = measured
        probability = answer[key].reshape(len(self.examples), -1)  # [rows, 1 or classes]
        self.check_width(name, key, probability.shape[1])
        if not classes or self.questions.get("logits"):
            return
        remedy = "" if key == self.questions["answer"] else "; if it answers logits, set Evaluation(..., logits=True)"
        outside = self.np.argwhere((probability < 0) | (probability > 1))
        if len(outside):
            row, place = outside[0]
            raise Problem(
                f"signature {name} answers {key} {probability[row, place]:.4f} for row {row}, expected 0 to 1{remedy}"
            )
        sums = probability.sum(axis=1)
        if len(classes) > 2 and (self.np.abs(sums - 1) > self.tolerance).any():
            row = int(self.np.abs(sums - 1).argmax())
            raise Problem(
                f"signature {name} answers {key} that sum up to {sums[row]:.4f} for row {row}, expected 1{remedy}"
            )
        if "label" in answer:
            self.check_words(name, probability, [word.decode() for word in answer["label"].reshape(-1)])

    def answer_key(self, name: str, answer: dict[str, Any]) -> str | None:
        """The output that is measured: of several the one with the name of the task's answer, else the only one."""
        key = self.questions["answer"]
        if key in answer:
            return str(key)
        if name not in ANSWERING:
            return None
        if len(answer) > 1:
            raise Problem(
                f"signature {name} answers {', '.join(sorted(answer))}; expected one of them to be named {key}"
            )
        return next(iter(answer))

    def check_width(self, name: str, key: str, width: int) -> None:
        """As many values a row as the label needs."""
        classes = self.questions["classes"]
        expected = {0: (1,), 2: (1, 2)}.get(len(classes), (len(classes),))
        if width not in expected:
            raise Problem(
                f"signature {name} answers {key} with {width} values a row, expected {expected[-1]}: the label has "
                f"{len(classes) or 'no'} classes"
            )

    def check_words(self, name: str, probability: Any, words: list[str]) -> None:
        """The answer in words is that of the probabilities, [rows, 1 or classes]."""
        classes, threshold = self.questions["classes"], self.questions["threshold"]
        for row, (chances, word) in enumerate(zip(probability, words, strict=True)):
            if len(classes) == 2:
                expected, why = classes[int(chances[0] >= threshold)], f"the threshold is {threshold:g}"
                chance = chances[0]
            else:
                expected, why = classes[int(chances.argmax())], "it is the most probable"
                chance = chances[classes.index(word)] if word in classes else 0.0
            if word != expected:
                raise Problem(
                    f"signature {name} answers label {word!r} for row {row} with probability {chance:.4f}, "
                    f"expected {expected!r}: {why}"
                )

    def check_single_rows(self, name: str, signature: Any, whole: dict[str, Any]) -> None:
        """A row alone gets the answer it got among others; and how long that takes."""
        for row in range(min(SINGLE_ROWS, len(self.examples))):
            alone = self.ask(name, signature, self.examples[row : row + 1], "a batch of 1")
            differing = self.differing(alone, {key: value[row : row + 1] for key, value in whole.items()})
            if differing:
                key, _ = differing
                raise Problem(
                    f"signature {name} answers {key} {alone[key][0]} for row {row} alone and {whole[key][row]} in a "
                    f"batch of {len(self.examples):,}"
                )
        for batch, repeats in ((1, REPEATS), (len(self.examples), 3)):
            inputs = self.inputs(signature, self.examples[:batch])
            times = []
            for _ in range(repeats):
                started = time.monotonic()
                signature(**inputs)
                times.append(1000 * (time.monotonic() - started))
            self.facts[f"{name}_ms_batch_{batch}"] = round(statistics.median(times), 2)

    def odd_rows(self) -> tuple[list[Any], list[str]]:
        """The most complete row with a value missing or unseen, and what is odd about it."""
        self.complete = max(self.examples, key=self.filled)
        odd, names = [], []
        for name in self.questions["optional"]:
            odd.append(self.changed({name: None}))
            names.append(f"{name} is missing")
        odd.append(self.changed(dict.fromkeys(self.questions["optional"])))
        names.append("all that may be is missing")
        for name in self.questions["text"]:
            odd.append(self.changed({name: UNSEEN}))
            names.append(f"{name} is unseen")
        return odd, names

    @staticmethod
    def filled(example: Any) -> int:
        """How many features a row has."""
        return sum(bool(one.WhichOneof("kind")) for one in example.features.feature.values())

    def changed(self, values: dict[str, str | None]) -> Any:
        """That row with other values."""
        example = self.tf.train.Example()
        example.CopyFrom(self.complete)
        for name, value in values.items():
            example.features.feature.pop(name, None)
            if value is not None:
                example.features.feature[name].bytes_list.value.append(value.encode())
        return example

    def check_odd_rows(self, name: str, signature: Any, odd: list[Any], names: list[str]) -> dict[str, Any]:
        """Missing and unseen values get a finite answer too."""
        answer = self.ask(name, signature, odd, "rows with missing and unseen values")
        for key, value in answer.items():
            bad = self.not_finite(value)
            if bad:
                where = "; ".join(names[row] for row in bad[:3])
                raise Problem(
                    f"signature {name} answers {key} {value[bad[0]]} where {where}, expected a number: "
                    "preprocessing_fn has to give every missing value one"
                )
        return answer

    def compare_signatures(self, answered: dict[str, tuple[dict[str, Any], dict[str, Any]]]) -> None:
        """The same rows get the same answer, however they are handed in."""
        for first, other in itertools.pairwise(sorted(answered)):
            for mine, theirs, rows in zip(answered[first], answered[other], ("rows", "odd rows"), strict=True):
                differing = self.differing(mine, theirs)
                if differing:
                    key, bad = differing
                    self.problems.append(
                        f"signatures {first} and {other} disagree on {len(bad):,} of {len(mine[key]):,} {rows}: "
                        f"{key} of row {bad[0]} is {mine[key][bad[0]]} and {theirs[key][bad[0]]}"
                    )
                    return

    def compare_with_training(self, answered: dict[str, tuple[dict[str, Any], dict[str, Any]]]) -> None:
        """Row by row what the model said in training, of features that Transform had made: training-serving skew."""
        training = self.questions["training"]
        if training is None:
            self.notes.append("not compared with training: run_fn has written no predictions")
            return
        for answer, _ in answered.values():
            key = self.questions["answer"]
            if key not in answer:
                continue
            got = answer[key].reshape(len(self.examples), -1)  # [rows, values]
            expected = self.np.asarray(training).reshape(-1, got.shape[1])
            got = got[: len(expected)]
            apart = self.np.abs(got - expected[: len(got)])
            self.facts["largest_difference_from_training"] = float(apart.max())
            bad = self.np.flatnonzero(~(apart <= self.allowed(got)).all(axis=1))
            if len(bad):
                row, place = self.np.unravel_index(apart.argmax(), apart.shape)
                self.problems.append(
                    f"the export answers otherwise than the model in training on {len(bad):,} of {len(got):,} rows, "
                    f"for row {row} {got[row, place]:.4f} instead of {expected[row, place]:.4f}, at most "
                    f"{self.allowed(got):g} apart: "
                    "it prepares features in another way than Transform did for training"
                )
            return

    def keep_rows(self, answer: dict[str, Any]) -> None:
        """Rows as JSON with their answers, the most complete first: not every server takes a row with gaps."""
        most = sorted(range(len(self.examples)), key=lambda row: -self.filled(self.examples[row]))
        for row in most[:ROWS_TO_KEEP]:
            instance = {}
            for name, feature in self.examples[row].features.feature.items():
                kind = feature.WhichOneof("kind")
                values = list(getattr(feature, kind).value) if kind else []
                if values:
                    values = [self.plain(one) for one in values]
                    instance[name] = values[0] if len(values) == 1 else values
            said = {name: self.plain(value[row : row + 1].tolist()[0]) for name, value in answer.items()}
            self.rows.append({"instance": instance, "answer": said})

    def plain(self, value: Any) -> Any:
        """A value for JSON: text, and the shortest number that is the same float32."""
        if isinstance(value, list):
            return [self.plain(one) for one in value]
        if isinstance(value, float):
            return float(str(self.np.float32(value)))
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def differing(self, mine: dict[str, Any], theirs: dict[str, Any]) -> tuple[str, Any] | None:
        """The first output in which two answers differ, and the rows."""
        for key in sorted(set(mine) & set(theirs)):
            one, other = mine[key], theirs[key]
            if one.dtype.kind == "f":
                apart = ~(self.np.abs(one - other) <= self.allowed(other))
            elif self.questions["answer"] in mine:
                continue  # the label follows from the probability, which may lie on either side of the threshold
            else:
                apart = one != other
            bad = self.np.flatnonzero(apart.reshape(len(apart), -1).any(axis=1))
            if len(bad):
                return key, bad
        return None

    def allowed(self, answers: Any) -> float:
        """How far apart answers may be; numbers have no scale of their own, and what is large is less exact."""
        return self.tolerance if self.questions["classes"] else self.tolerance * float(self.np.abs(answers).max())

    def not_finite(self, value: Any) -> list[int]:
        """Rows with a number that is none."""
        if value.dtype.kind != "f":
            return []
        return self.np.flatnonzero(~self.np.isfinite(value.reshape(len(value), -1)).all(axis=1)).tolist()


def first_line(error: Exception) -> str:
    """An error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or ['no message'])[0][:300]}"


if __name__ == "__main__":
    main()
