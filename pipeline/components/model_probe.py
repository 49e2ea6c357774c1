"""Check the signatures of an exported model as a model server calls them.

``tensorflow_process`` runs this file by its path in a process that can import TensorFlow only; so it imports nothing of
this repository, of Keras, of TFX or of TensorFlow Transform. ``model_check`` makes the request and reads the report,
{"problems": [sentences], "notes": [...], "facts": {...}, "rows": [{"instance": raw features by name, "answer": outputs
by name}], "explained": {"rows": 50, "columns": {column: [mean size of its contributions, standard error]}}}; the rows
check a deployed model later.
"""

import base64
import itertools
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

# Text that no vocabulary has.
UNSEEN = "\u2047 never seen"
SINGLE_ROWS = 5
ROWS_TO_KEEP = 50
# Of the images of kept rows, in all: an endpoint on Vertex AI takes requests of up to 1.5 MB, in base64.
BYTES_TO_KEEP = 1 << 20
REPEATS = 20
# Signatures that servers and the Evaluator call; their rows have no label.
PREDICTING = ("predict", "serving_default")
# Asks the model some thousand times a row; its contributions sum up to the answer's distance from the average.
EXPLAIN, EXPLAINING = "explain", {"average", "columns", "contributions", "errors"}
# Rows explained at most and at least, and the seconds after which no more are begun than at least.
EXPLAINED_ROWS, LEAST_EXPLAINED, EXPLAINED_SECONDS = 50, 5, 5.0


class Problem(Exception):
    """A defect of a signature: the end of a sentence that begins with its name."""


class ModelProbe:
    """Checks of an exported model."""

    def __init__(self, request: dict[str, Any]):
        self.request = request
        self.tolerance = request["tolerance"]
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.facts: dict[str, float] = {}
        self.rows: list[dict[str, Any]] = []
        self.explained: dict[str, Any] = {}
        examples = [tf.train.Example.FromString(base64.b64decode(text)) for text in request["examples"]]
        self.labelled = [tf.train.Example.FromString(example.SerializeToString()) for example in examples]
        for example in examples:
            for name in {request["label"], *request.get("not_served", ())}:
                example.features.feature.pop(name, None)  # unknown when a model is served
        self.examples = examples

    def run(self) -> dict[str, Any]:
        """Return the report of all checks that are possible."""
        started = time.monotonic()
        try:
            loaded = tf.saved_model.load(self.request["model"])
        except Exception as error:
            self.problems.append(f"the exported model does not load with TensorFlow alone: {first_line(error)}")
            return self.report()
        self.facts["load_seconds"] = round(time.monotonic() - started, 2)
        if not loaded.signatures:
            self.problems.append("the exported model has no signature, so no server can ask it")
        outputs_by_signature = {}
        odd, odd_names = self.odd_rows()
        explained: Future[None] | None = None
        with ThreadPoolExecutor(1) as beside:
            for name, signature in sorted(loaded.signatures.items()):
                if name == EXPLAIN and signature.structured_outputs.keys() >= {self.request["answer"], *EXPLAINING}:
                    explained = beside.submit(self.check_explanations, signature)  # mostly one thread of TensorFlow's
                    continue
                if self.needs_label(name, signature):
                    self.notes.append(f"signature {name} is not checked: it takes rows with their label")
                    continue
                try:
                    outputs = self.call(signature, self.examples, f"{len(self.examples):,} rows")
                    # Odd rows first: in each of them one column is missing, so the message can name it.
                    outputs_of_odd = self.check_odd_rows(signature, odd, odd_names)
                    self.check_outputs(name, outputs)
                    self.check_single_rows(signature, outputs)
                    self.check_broken_images(name, signature)
                    outputs_by_signature[name] = (outputs, outputs_of_odd)
                except Problem as problem:
                    self.problems.append(f"signature {name} {problem}")
        if explained:
            try:
                explained.result()
            except Problem as problem:
                self.problems.append(f"signature {EXPLAIN} {problem}")
        for name in outputs_by_signature:
            self.measure_latency(name, loaded.signatures[name])
        self.compare_signatures(outputs_by_signature)
        self.compare_with_training(outputs_by_signature)
        if "serving_default" in outputs_by_signature:
            self.keep_rows(outputs_by_signature["serving_default"][0])
        return self.report()

    def report(self) -> dict[str, Any]:
        """Return the findings so far."""
        findings = {"problems": self.problems, "notes": self.notes, "facts": self.facts}
        return {**findings, "rows": self.rows, "explained": self.explained}

    def needs_label(self, name: str, signature: Any) -> bool:
        """Return whether a signature fails without the label, as TFX's examples' "transform_features" does."""
        if name in PREDICTING or self.accepts(signature, self.examples[:1]):
            return False
        return self.accepts(signature, self.labelled[:1])

    def accepts(self, signature: Any, examples: list[Any]) -> bool:
        """Return whether a call with rows succeeds."""
        try:
            return bool(self.call(signature, examples, "a row"))
        except Problem:
            return False

    def call(self, signature: Any, examples: list[Any], rows: str) -> dict[str, Any]:
        """Call a signature with raw rows (``rows`` in words, for messages); return its outputs by name, [rows, ...]."""
        try:
            tensors = signature(**self.inputs(signature, examples))
        except Exception as error:
            raise Problem(f"fails on {rows}: {first_line(error)}") from error
        outputs = {key: value.numpy() for key, value in tensors.items()}
        for key, value in outputs.items():
            if value.shape[:1] != (len(examples),):
                raise Problem(
                    f"answers {rows} with {key} of shape {list(value.shape)}, expected [{len(examples)}, ...]"
                )
        return outputs

    def inputs(self, signature: Any, examples: list[Any]) -> dict[str, Any]:
        """Return a signature's inputs: serialized examples for a single text input, else a tensor for each column."""
        specs = signature.structured_input_signature[1]
        if len(specs) == 1:
            ((name, spec),) = specs.items()
            is_column = name in self.request["columns"]
            if spec.dtype == tf.string and spec.shape.rank == 1 and not is_column:
                return {name: tf.constant([example.SerializeToString() for example in examples])}
        return {name: self.column(name, spec, examples) for name, spec in specs.items()}

    def column(self, name: str, spec: Any, examples: list[Any]) -> Any:
        """Return a raw feature of all rows as a tensor; missing values are NaN, or "" for text."""
        dtype = np.dtype(spec.dtype.as_numpy_dtype)
        missing = b"" if dtype.kind == "O" else float("nan")
        values: list[Any] = []
        for example in examples:
            feature = example.features.feature.get(self.request["columns"].get(name, name))
            row = self.values_of(feature) or [missing]
            values.append(row if spec.shape.rank and spec.shape.rank > 1 else row[0])
        if spec.shape.rank == 2 and spec.shape[1] is None:  # any number of values
            most = max(map(len, values))
            values = [[*row, *[missing] * (most - len(row))] for row in values]
        # As our server does it. tf.constant of a list that mixes integers and NaN is float32, which loses digits.
        return tf.constant(np.array(values, dtype))

    def check_outputs(self, name: str, outputs: dict[str, Any]) -> None:
        """Raise a Problem unless numbers are finite, probabilities from 0 to 1, and labels follow from them."""
        self.check_finite(outputs, lambda bad: f"for row {bad[0]}")
        classes = self.request["classes"]
        expected = {0: (1,), 2: (1, 2)}.get(len(classes), (len(classes),))
        key = self.measured_output(name, outputs, expected)
        if key is None:
            return
        probability = outputs[key].reshape(len(self.examples), -1)  # [rows, 1 or classes]
        width = probability.shape[1]
        if width not in expected:
            raise Problem(
                f"answers {key} with {width} values a row, expected {expected[-1]}: the label has "
                f"{len(classes) or 'no'} classes"
            )
        if not classes or self.request.get("logits"):
            return
        remedy = "" if key == self.request["answer"] else "; if it answers logits, set Evaluation(..., logits=True)"
        outside = np.argwhere((probability < 0) | (probability > 1))
        if len(outside):
            row, place = outside[0]
            raise Problem(f"answers {key} {probability[row, place]:.4f} for row {row}, expected 0 to 1{remedy}")
        sums = probability.sum(axis=1)
        if len(classes) > 2 and (np.abs(sums - 1) > self.tolerance).any():
            row = int(np.abs(sums - 1).argmax())
            raise Problem(f"answers {key} that sum up to {sums[row]:.4f} for row {row}, expected 1{remedy}")
        if "label" in outputs:
            self.check_labels(probability, [label.decode() for label in outputs["label"].reshape(-1)])

    def measured_output(self, name: str, outputs: dict[str, Any], widths: tuple[int, ...]) -> str | None:
        """Return the name of the output that is evaluated: the usual one of the task, else the only one."""
        key = self.request["answer"]
        if key in outputs:
            return str(key)
        if name not in PREDICTING:
            return None
        if len(outputs) > 1:
            closest = self.closest(outputs, widths)
            what = f"{closest}, which is the closest to the label," if closest else f"the one with {widths[-1]} values"
            raise Problem(
                f"answers {', '.join(sorted(outputs))}, and none of them is named {key}; in the signature that run_fn "
                f"exports, rename {what} to {key}"
            )
        return next(iter(outputs))

    def closest(self, outputs: dict[str, Any], widths: tuple[int, ...]) -> str | None:
        """Return the output with as many values as one of ``widths`` that is the closest to the labels, if any."""
        found = [self.values_of(row.features.feature.get(self.request["label"])) for row in self.labelled]
        if not all(len(value) == 1 and isinstance(value[0], int | float) for value in found):
            return None
        labels, errors = np.array(found, float), {}
        for name, value in outputs.items():
            values = value.reshape(len(labels), -1)
            if values.dtype.kind == "f" and values.shape[1] in widths:
                truth = labels if values.shape[1] == 1 else labels == np.arange(values.shape[1])
                errors[name] = np.square(values - truth).mean()
        return min(errors, key=errors.__getitem__, default=None)

    def check_labels(self, probability: Any, labels: list[str]) -> None:
        """Raise a Problem unless labels follow from the probabilities, [rows, 1 or classes]."""
        classes, threshold = self.request["classes"], self.request["threshold"]
        for row, (values, label) in enumerate(zip(probability, labels, strict=True)):
            if len(classes) == 2:
                expected, reason = classes[int(values[0] >= threshold)], f"the threshold is {threshold:g}"
                value = values[0]
            else:
                expected, reason = classes[int(values.argmax())], "it is the most probable"
                value = values[classes.index(label)] if label in classes else 0.0
            if label != expected:
                raise Problem(
                    f"answers label {label!r} for row {row} with probability {value:.4f}, "
                    f"expected {expected!r}: {reason}"
                )

    def check_single_rows(self, signature: Any, outputs: dict[str, Any]) -> None:
        """Raise a Problem unless a row alone gets the outputs it got in a batch."""
        for row in range(min(SINGLE_ROWS, len(self.examples))):
            alone = self.call(signature, self.examples[row : row + 1], "a batch of 1")
            differing = self.differing(alone, {key: value[row : row + 1] for key, value in outputs.items()})
            if differing:
                key, _ = differing
                raise Problem(
                    f"answers {key} {alone[key][0]} for row {row} alone and {outputs[key][row]} in a "
                    f"batch of {len(self.examples):,}"
                )

    def measure_latency(self, name: str, signature: Any) -> None:
        """Measure how long a row, and a batch of all rows, take."""
        for batch, repeats in ((1, REPEATS), (len(self.examples), 3)):
            inputs = self.inputs(signature, self.examples[:batch])
            times = []
            for _ in range(repeats):
                started = time.monotonic()
                signature(**inputs)
                times.append(1000 * (time.monotonic() - started))
            self.facts[f"{name}_ms_batch_{batch}"] = round(statistics.median(times), 2)

    def check_explanations(self, signature: Any) -> None:
        """Raise a Problem unless contributions are numbers that sum up to the answer; measure their mean size."""
        sizes: list[Any] = []
        columns: list[str] = []
        times: list[float] = []
        for example in self.examples[:: -(-len(self.examples) // EXPLAINED_ROWS)]:
            started = time.monotonic()
            outputs = self.call(signature, [example], "a row")
            times.append(time.monotonic() - started)
            answer = float(outputs[self.request["answer"]].max())  # of several classes, the most probable is explained
            average, contributions = float(outputs["average"][0]), outputs["contributions"][0].astype(float)
            size, total = np.abs(contributions), average + contributions.sum()
            # They are float32: what is rounded is as large as the largest of what is added.
            if not abs(total - answer) <= self.tolerance * max(1.0, abs(answer), abs(average), size.sum()):
                raise Problem(f"answers contributions that sum up to {total:.6g}, not to {answer:.6g}")
            sizes.append(size)
            columns = [column.decode() for column in outputs["columns"][0]]
            # The first call prepares the graph, which may take longer than all others.
            if len(sizes) >= LEAST_EXPLAINED and sum(times[1:]) > EXPLAINED_SECONDS:
                break
        self.facts[f"{EXPLAIN}_ms_batch_1"] = round(1000 * statistics.median(times[1:] or times), 2)
        errors = np.std(sizes, axis=0, ddof=min(1, len(sizes) - 1)) / np.sqrt(len(sizes))
        of_columns = zip(columns, np.mean(sizes, axis=0).tolist(), errors.tolist(), strict=True)
        self.explained = {"rows": len(sizes), "columns": {name: [mean, error] for name, mean, error in of_columns}}

    def check_broken_images(self, name: str, signature: Any) -> None:
        """Note which broken images a signature answers; some crash this process."""
        image = self.request.get("image")
        if not image:
            return
        whole = bytes(self.complete.features.feature[image].bytes_list.value[0])
        for state, data in {"empty": b"", "text": b"no image", "cut short": whole[: len(whole) // 2]}.items():
            if self.accepts(signature, [self.changed({image: data})]):
                self.notes.append(f"signature {name} answers where {image} is {state}; our server refuses that before")

    def odd_rows(self) -> tuple[list[Any], list[str]]:
        """Return copies of the most complete row with missing or unseen values, and a description of each."""
        self.complete = max(self.examples, key=self.filled)
        optional, text = self.request["optional"], self.request["text"]
        changes: dict[str, dict[str, bytes | None]] = {f"{name} is missing": {name: None} for name in optional}
        changes["all optional columns are missing"] = dict.fromkeys(optional)
        changes |= {f"{name} is unseen": {name: UNSEEN.encode()} for name in text}
        return [self.changed(values) for values in changes.values()], list(changes)

    @staticmethod
    def values_of(feature: Any) -> list[Any]:
        """Return the values of a feature of a tf.Example; empty without one."""
        kind = feature.WhichOneof("kind") if feature else None
        return list(getattr(feature, kind).value) if kind else []

    @staticmethod
    def filled(example: Any) -> int:
        """Return the number of features with values in a row."""
        return sum(bool(feature.WhichOneof("kind")) for feature in example.features.feature.values())

    def changed(self, values: dict[str, bytes | None]) -> Any:
        """Return the most complete row with another value in place of each of a feature, or with none."""
        example = tf.train.Example()
        example.CopyFrom(self.complete)
        for name, value in values.items():
            count = len(self.values_of(self.complete.features.feature.get(name))) or 1
            example.features.feature.pop(name, None)
            if value is not None:
                example.features.feature[name].bytes_list.value.extend([value] * count)
        return example

    def check_odd_rows(self, signature: Any, odd: list[Any], names: list[str]) -> dict[str, Any]:
        """Return the outputs for missing and unseen values; raise a Problem unless they are finite."""
        outputs = self.call(signature, odd, "rows with missing and unseen values")
        remedy = ": preprocessing_fn has to give every missing value one"
        self.check_finite(outputs, lambda bad: "where " + "; ".join(names[row] for row in bad[:3]), remedy)
        return outputs

    def check_finite(self, outputs: dict[str, Any], where: Callable[[list[int]], str], remedy: str = "") -> None:
        """Raise a Problem unless all numbers are finite; ``where`` describes the rows with others."""
        for key, value in outputs.items():
            finite = np.isfinite(value) if value.dtype.kind == "f" else np.ones(len(value), bool)
            if bad := np.flatnonzero(~finite.reshape(len(value), -1).all(axis=1)).tolist():
                raise Problem(f"answers {key} {value[bad[0]]} {where(bad)}, expected a number{remedy}")

    def compare_signatures(self, outputs_by_signature: dict[str, tuple[dict[str, Any], dict[str, Any]]]) -> None:
        """Report a problem unless all signatures give the same outputs for the same rows."""
        for first, other in itertools.pairwise(sorted(outputs_by_signature)):
            pairs = zip(outputs_by_signature[first], outputs_by_signature[other], ("rows", "odd rows"), strict=True)
            for left, right, rows in pairs:
                differing = self.differing(left, right)
                if differing:
                    key, bad = differing
                    self.problems.append(
                        f"signatures {first} and {other} disagree on {len(bad):,} of {len(left[key]):,} {rows}: "
                        f"{key} of row {bad[0]} is {left[key][bad[0]]} and {right[key][bad[0]]}"
                    )
                    return

    def compare_with_training(self, outputs_by_signature: dict[str, tuple[dict[str, Any], dict[str, Any]]]) -> None:
        """Report a problem if predictions differ from those in training, on features of Transform: a skew."""
        training = self.request["training"]
        if training is None:
            self.notes.append("not compared with training: run_fn has written no predictions")
            return
        key = self.request["answer"]
        outputs = next((outputs for outputs, _ in outputs_by_signature.values() if key in outputs), None)
        if outputs is None:
            return
        served = outputs[key].reshape(len(self.examples), -1)  # [rows, values]
        expected = np.asarray(training).reshape(-1, served.shape[1])
        served = served[: len(expected)]
        difference = np.abs(served - expected[: len(served)])
        self.facts["largest_difference_from_training"] = float(difference.max())
        bad = np.flatnonzero(~(difference <= self.allowed(served)).all(axis=1))
        if len(bad):
            row, place = np.unravel_index(difference.argmax(), difference.shape)
            self.problems.append(
                f"the export answers otherwise than the model in training on {len(bad):,} of {len(served):,} rows, "
                f"for row {row} {served[row, place]:.4f} instead of {expected[row, place]:.4f}, at most "
                f"{self.allowed(served):g} apart: "
                "it prepares features in another way than Transform did for training"
            )

    def keep_rows(self, outputs: dict[str, Any]) -> None:
        """Add rows with their outputs to the report, the most complete first: not every server takes missing values."""
        by_completeness = sorted(range(len(self.examples)), key=lambda row: -self.filled(self.examples[row]))
        image, size = self.request.get("image"), 0
        for row in by_completeness[:ROWS_TO_KEEP]:
            features = self.examples[row].features.feature
            encoded = features[image].bytes_list.value[0] if image else b""
            if size + len(encoded) > BYTES_TO_KEEP:
                continue
            size += len(encoded)
            instance = {}
            for name, feature in features.items():
                values = self.to_json(self.values_of(feature))
                if name == image:
                    values = [{"b64": base64.b64encode(encoded).decode()}]
                if values:
                    instance[name] = values[0] if len(values) == 1 else values
            answer = {name: self.to_json(value[row : row + 1].tolist()[0]) for name, value in outputs.items()}
            self.rows.append({"instance": instance, "answer": answer})
        if not self.rows:
            self.notes.append(f"no rows are kept to ask an endpoint: every {image} has over {BYTES_TO_KEEP:,} bytes")

    def to_json(self, value: Any) -> Any:
        """Return a value for JSON; floats as the shortest number that is the same float32."""
        if isinstance(value, list):
            return [self.to_json(item) for item in value]
        if isinstance(value, float):
            return float(str(np.float32(value)))
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def differing(self, left: dict[str, Any], right: dict[str, Any]) -> tuple[str, Any] | None:
        """Return the first output that differs between two calls, and the indices of the rows; None if all agree."""
        for key in sorted(set(left) & set(right)):
            if left[key].dtype.kind == "f":
                differs = ~(np.abs(left[key] - right[key]) <= self.allowed(right[key]))
            elif self.request["answer"] in left:
                continue  # the label follows from the probability, which may lie on either side of the threshold
            else:
                differs = left[key] != right[key]
            bad = np.flatnonzero(differs.reshape(len(differs), -1).any(axis=1))
            if len(bad):
                return key, bad
        return None

    def allowed(self, values: Any) -> float:
        """Return the largest difference allowed: of probabilities absolute, of a regression relative to the largest."""
        return self.tolerance if self.request["classes"] else self.tolerance * float(np.abs(values).max())


def first_line(error: Exception) -> str:
    """Return an error in one line; of TensorFlow's, the reason between its trace and the node."""
    lines = [line.strip() for line in str(error).partition("[[{{")[0].splitlines() if line.strip()]
    place = -1 if isinstance(error, tf.errors.OpError) else 0
    return f"{type(error).__name__}: {(lines or ['no message'])[place][:300]}"
