"""Answer rows over HTTP and gRPC: from checked columns to outputs, with the request log and the metrics."""

import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import tensorflow as tf
from starlette.exceptions import HTTPException

from pipeline.model import explanations
from pipeline.model.export_format import EXPLAIN_SIGNATURE, ROWS_SIGNATURE
from pipeline.model.features import Columns, Refused, row_count, typed_examples
from pipeline.model.inputs import EXAMPLES, IMAGE, Input, take_examples
from pipeline.model.signatures import Signature, refusal
from pipeline.serving.batching import Overloaded
from pipeline.serving.bodies import EXPECTED, RETRY, Limits
from pipeline.serving.current import Current, Served
from pipeline.serving.image_inputs import facts_by_row, with_checked_images, without_images
from pipeline.serving.metrics import Metrics
from pipeline.serving.request_log import RequestLog


@dataclass(frozen=True)
class Call:
    """Checked rows for a signature; ``instances`` are for the log, if any, with facts in place of images."""

    signature: str
    columns: Mapping[str, np.ndarray]
    instances: Sequence[Any] | None


@dataclass(frozen=True)
class Answering:
    """Answer the requests of a server; errors have an HTTP status."""

    current: Current
    metrics: Metrics
    limits: Limits
    request_log: RequestLog | None = None

    def served(self, name: str | None = None, version: str | None = None) -> Served:
        """Return the loaded version; raise an HTTPException unless it is the requested one."""
        served = self.current.served
        if served is None:
            raise HTTPException(503, "no version is loaded yet")
        if name is not None and name != self.current.name:
            raise HTTPException(404, f"no model {name[:100]!r}; this server has {self.current.name!r}")
        number = str(served.model.number)
        if version is not None and version != number:
            raise HTTPException(404, f"version {version[:40]!r} is not served; {number} is")
        return served

    def signature(self, served: Served, name: Any, *, explained: bool = False) -> Signature:
        """Return a signature by name: "" is the one for rows; with ``explained``, the one that explains answers."""
        if explained:
            if reason := explanations.why_none(served.model):
                raise HTTPException(400, reason)
            name = EXPLAIN_SIGNATURE
        name = ROWS_SIGNATURE if name == "" else name
        if not isinstance(name, str) or name not in served.model.signatures:
            names = ", ".join(served.model.signatures)
            raise HTTPException(400, f"no signature {str(name)[:100]!r}; the model has {names}")
        return served.model.signatures[name]

    def check_number(self, rows: int, served: Served, signature: Signature) -> None:
        """Raise an HTTPException if there are no rows, or too many."""
        if not rows:
            raise HTTPException(400, f"there are no instances; {EXPECTED}")
        explaining = served.explains(signature.name)
        limit = min(self.limits.instances, explanations.MOST_ROWS) if explaining else self.limits.instances
        if rows > limit:
            raise HTTPException(
                413, f"{rows:,} instances; at most {limit:,} in a request: send several, or use pipeline predict"
            )

    def call(self, served: Served, signature: Signature, columns: Columns, instances: Sequence[Any] | None) -> Call:
        """Return a call with checked images; ``instances`` are the rows as received, None if columns were received."""
        inputs = signature.inputs
        if self.request_log is None:
            instances = None
        elif instances is None:
            instances = instances_of(columns, inputs)
        if IMAGE in signature.kinds:
            known = facts_by_row(columns, inputs)
            instances = instances and without_images(instances, inputs, known)
        elif EXAMPLES in signature.kinds:
            rows = served.model.rows.inputs
            columns = with_checked_images(columns, rows)
            if any(column.spellings for column in rows.values()):
                columns = {name: typed_examples(records, rows) for name, records in columns.items()}
        return Call(signature.name, columns, instances)

    async def outputs(
        self, served: Served, call: Call, started: float, *, in_loop: bool = True
    ) -> dict[str, np.ndarray]:
        """Return the model's outputs by name, [rows, ...]; log and count them.

        ``started`` is the time by ``time.monotonic()`` when the request was complete; ``in_loop`` allows a short call
        in the event loop itself.
        """
        try:
            try:
                outputs = await served.batchers[call.signature].predict(call.columns, in_loop=in_loop)
            except tf.errors.OpError:
                if EXAMPLES not in served.model.signatures[call.signature].kinds:
                    raise
                # A value of another type may stand for the right one; of others, the message names row and feature.
                raw = {} if take_examples(served.model.rows.inputs) else served.model.rows.inputs
                columns = {name: typed_examples(records, raw) for name, records in call.columns.items()}
                if not raw:
                    raise
                outputs = await served.batchers[call.signature].predict(columns, in_loop=in_loop)
        except Refused as refused:
            raise HTTPException(400, str(refused)) from refused
        except tf.errors.OpError as error:
            raise HTTPException(400, f"the model refuses the request: {refusal(error)}") from error
        except Overloaded as error:
            raise HTTPException(503, "too many rows wait for an answer; try again", RETRY) from error
        explaining = served.explains(call.signature)
        if self.request_log is not None and call.instances is not None:
            # Answers alone: monitoring compares them with those for the test split.
            answers = explanations.split(outputs)[0] if explaining else outputs
            predictions = orjson.loads(as_json(by_row(answers)))
            self.request_log.add(served.model.number, call.instances, predictions)
        seconds = self.metrics.explain_seconds if explaining else self.metrics.seconds
        self.metrics.rows.inc(row_count(call.columns))
        seconds.observe(time.monotonic() - started)
        return outputs


def instances_of(columns: Columns, inputs: Mapping[str, Input]) -> list[dict[str, Any]]:
    """Return the rows in columns as in JSON, None where a value is missing; images are left out."""
    shown = {name: columns[name] for name, column in inputs.items() if column.kind != IMAGE}
    values = orjson.loads(as_json(shown))  # with the digits that tell a float32 apart
    rows = zip(*values.values(), strict=True) if shown else [()] * row_count(columns)
    return [dict(zip(shown, row, strict=True)) for row in rows]


def by_row(outputs: Mapping[str, np.ndarray]) -> Any:
    """Return the outputs of each row by name; with one output the values alone, as TensorFlow Serving does."""
    if len(outputs) == 1:
        return next(iter(outputs.values()))
    return [dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)]


def as_json(content: Any) -> bytes:
    """Return JSON of arrays: no more digits than tell a float32 apart, and null for NaN and infinity."""
    return orjson.dumps(content, default=_to_json, option=orjson.OPT_SERIALIZE_NUMPY)


def _to_json(value: np.ndarray | bytes) -> Any:
    """Return an array of texts as lists; bytes that are not text as TensorFlow Serving does."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}
