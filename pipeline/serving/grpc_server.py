"""TensorFlow Serving's gRPC calls: Predict, GetModelMetadata and GetModelStatus.

https://github.com/tensorflow/serving/blob/master/tensorflow_serving/apis/prediction_service.proto
"""

import asyncio
import contextlib
import hmac
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf.json_format import ParseDict
from prometheus_client import Counter
from starlette.exceptions import HTTPException
from tensorflow.core.framework import tensor_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from pipeline.model.features import Refused, check_lengths, from_columns, row_count
from pipeline.model.inputs import ANY, Input
from pipeline.model.signatures import Signature
from pipeline.serving.answering import Answering, Call
from pipeline.serving.bodies import LARGE
from pipeline.serving.current import Served
from pipeline.settings.names import shortened

logger = logging.getLogger("pipeline.serve")
CALLS = 256  # at a time, each with a request of as many bytes as a body may have
SIGNATURES = "signature_def"  # the one field of metadata
# What gRPC calls a status of HTTP.
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
# The field of a TensorProto that TensorFlow Serving fills, and its examples read.
FIELDS = {
    types_pb2.DT_BOOL: "bool_val",
    types_pb2.DT_DOUBLE: "double_val",
    types_pb2.DT_FLOAT: "float_val",
    types_pb2.DT_INT32: "int_val",
    types_pb2.DT_INT64: "int64_val",
    types_pb2.DT_STRING: "string_val",
}


@contextlib.asynccontextmanager
async def grpc_server(
    answering: Answering, address: str, token: str | None, grace: float, *, shared: bool = False
) -> AsyncIterator[int]:
    """Answer gRPC calls while the block runs; yield the port, which other processes use too if it is ``shared``."""
    server = grpc.aio.server(
        interceptors=[] if token is None else [_Guard(token)],
        options=[
            ("grpc.max_receive_message_length", answering.limits.body_bytes),
            ("grpc.so_reuseport", int(shared)),
        ],
        maximum_concurrent_rpcs=CALLS,
    )
    services = _Services(answering)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(services, server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(services, server)
    port = server.add_insecure_port(address)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(grace)


class _Guard(grpc.aio.ServerInterceptor):
    """Require a token."""

    def __init__(self, token: str):
        self._expected = f"Bearer {token}".encode()

        async def refuse(request: bytes, context: Any) -> None:
            expected = "expected the metadata authorization: Bearer, with this server's token"
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, expected)

        self._refusing = grpc.unary_unary_rpc_method_handler(refuse)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Return what answers a call."""
        given = [value for key, value in handler_call_details.invocation_metadata if key == "authorization"]
        if len(given) == 1 and hmac.compare_digest(given[0].encode(), self._expected):
            return await continuation(handler_call_details)
        return self._refusing


def _left_out(call: str, instead: str) -> Callable[[Any, Any, Any], Awaitable[None]]:
    """Return the handler of an unsupported call, whose error says what to use instead."""

    async def refuse(self: Any, request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{call} is left out; {instead}")

    return refuse


class _Services(prediction_service_pb2_grpc.PredictionServiceServicer, model_service_pb2_grpc.ModelServiceServicer):
    # Of models exported with the signatures of Estimators.
    Classify, Regress, MultiInference = (
        _left_out(call, "ask the same with Predict") for call in ("Classify", "Regress", "MultiInference")
    )
    HandleReloadConfigRequest = _left_out(
        "HandleReloadConfigRequest",
        "push another version, or take the newest back with: python -m pipeline serve --rollback",
    )

    def __init__(self, answering: Answering):
        self._answering = answering
        self._turn = asyncio.Lock()

    async def Predict(self, request: Any, context: Any) -> Any:
        """Answer rows."""
        async with _refusing(context, self._answering.metrics.requests):
            return await self._predict(request)

    async def GetModelMetadata(self, request: Any, context: Any) -> Any:
        """Return the signatures of the model."""
        async with _refusing(context):
            if not request.metadata_field:
                raise HTTPException(400, f"metadata_field is empty; expected {SIGNATURES!r}")
            if unknown := [field for field in request.metadata_field if field != SIGNATURES]:
                raise HTTPException(400, f"metadata_field {unknown[0][:40]!r} is not known; expected {SIGNATURES!r}")
            served = _served(self._answering, request)
            signatures = get_model_metadata_pb2.SignatureDefMap()
            for name, signature in served.model.signatures.items():
                signatures.signature_def[name].CopyFrom(
                    ParseDict(signature.definition, meta_graph_pb2.SignatureDef(), ignore_unknown_fields=True)
                )
            response = get_model_metadata_pb2.GetModelMetadataResponse()
            _name(response.model_spec, request, served)
            response.metadata[SIGNATURES].Pack(signatures)
            return response

    async def GetModelStatus(self, request: Any, context: Any) -> Any:
        """Return that the version is available."""
        async with _refusing(context):
            served = _served(self._answering, request)
            response = get_model_status_pb2.GetModelStatusResponse()
            available = get_model_status_pb2.ModelVersionStatus.AVAILABLE
            response.model_version_status.add(version=served.model.number, state=available).status.error_code = 0
            return response

    async def _predict(self, request: Any) -> Any:
        started = time.monotonic()
        served = _served(self._answering, request)
        signature = self._answering.signature(served, request.model_spec.signature_name)
        wanted = list(request.output_filter) or list(signature.outputs)
        if unknown := [name for name in wanted if name not in signature.outputs]:
            outputs = ", ".join(signature.outputs)
            raise HTTPException(400, f"output_filter: no output {unknown[0][:100]!r}; the signature has {outputs}")
        if request.ByteSize() <= LARGE:
            call = self._check(request, served, signature)
        else:
            async with self._turn:  # one at a time, so that others are answered meanwhile
                call = await asyncio.to_thread(self._check, request, served, signature)
        answers = await self._answering.outputs(served, call, started, in_loop=False)
        response = predict_pb2.PredictResponse()
        _name(response.model_spec, request, served, signature.name)
        for name in wanted:
            response.outputs[name].CopyFrom(_tensor(answers[name]))
        return response

    def _check(self, request: Any, served: Served, signature: Signature) -> Call:
        """Return the rows of a request; raise an HTTPException if they are invalid."""
        try:
            columns = _columns(request.inputs, signature.inputs, self._answering.limits.cells)
            self._answering.check_number(row_count(columns), served, signature)
            return self._answering.call(served, signature, columns, None)
        except Refused as refused:
            raise HTTPException(400, str(refused)) from refused


@contextlib.asynccontextmanager
async def _refusing(context: Any, counter: Counter | None = None) -> AsyncIterator[None]:
    """Convert an error to a gRPC status, and count the call by it."""
    code = grpc.StatusCode.CANCELLED
    try:
        yield
        code = grpc.StatusCode.OK
    except HTTPException as error:
        code = CODES[error.status_code]
        await context.abort(code, error.detail)
    except Exception:
        code = grpc.StatusCode.INTERNAL
        logger.exception("a call of gRPC")
        await context.abort(code, "an error of the server; its log says more")
    finally:
        if counter is not None:
            counter.labels(code.name).inc()


def _served(answering: Answering, request: Any) -> Served:
    """Return the loaded version if it is the requested one."""
    spec = request.model_spec
    if spec.WhichOneof("version_choice") == "version_label":
        raise HTTPException(501, "labels of versions are left out; ask a version by its number, or the newest")
    return answering.served(spec.name, str(spec.version.value) if spec.HasField("version") else None)


def _name(spec: Any, request: Any, served: Served, signature: str = "") -> None:
    """Write the model and the version into a response."""
    spec.name, spec.signature_name = request.model_spec.name, signature
    spec.version.value = served.model.number


def _columns(tensors: Mapping[str, Any], inputs: Mapping[str, Input], most_cells: int) -> dict[str, np.ndarray]:
    """Convert tensors to columns; raise Refused for a missing, unknown or invalid one."""
    names = {column.tensor or name: name for name, column in inputs.items()}
    if unknown := sorted(tensors.keys() - names.keys()):
        raise Refused(None, f"no input {unknown[0][:100]!r}; the signature has {shortened(names)}")
    if missing := sorted(names.keys() - tensors.keys()):
        raise Refused(
            None, f"there is no input {shortened(missing)}; where a row has no value, write NaN, or '' for text"
        )
    shapes = {key: _shape(key, tensors[key], inputs[name]) for key, name in names.items()}
    if (cells := sum(map(math.prod, shapes.values()))) > most_cells:
        raise Refused(None, f"{cells:,} values, over {most_cells:,} values; send fewer rows")
    columns = {
        name: inputs[name].respelled(_array(key, tensors[key], shapes[key], inputs[name]))
        for key, name in names.items()
    }
    check_lengths(columns)
    return columns


def _shape(key: str, tensor: Any, column: Input) -> tuple[int, ...]:
    """Return the shape of a tensor; raise Refused if it or the type does not match the signature."""
    expected = _type(column)
    if tensor.dtype != expected and not (column.spellings and tensor.dtype in FIELDS):
        names = types_pb2.DataType.DESCRIPTOR.values_by_number
        found = names[tensor.dtype].name if tensor.dtype in names else tensor.dtype
        raise Refused(None, f"input {key!r}: expected a tensor of {names[expected].name}, got {found}")
    shape = tuple(dimension.size for dimension in tensor.tensor_shape.dim)
    sizes = [ANY] if column.values is None else [ANY, column.values]
    fits = len(shape) == len(sizes) and all(
        size >= 0 and fixed in (ANY, size) for size, fixed in zip(shape, sizes, strict=True)
    )
    if not fits or tensor.tensor_shape.unknown_rank:
        described = "[rows]" if column.values is None else f"[rows, {column.values or 'values'}]"
        raise Refused(None, f"input {key!r}: expected the shape {described}, got {list(shape)}")
    return shape


def _type(column: Input) -> int:
    return int(tf.dtypes.as_dtype(column.dtype if column.dtype != object else tf.string).as_datatype_enum)


def _array(key: str, tensor: Any, shape: tuple[int, ...], column: Input) -> np.ndarray:
    """Return the values of a tensor, those of another type as the known ones that they stand for."""
    if tensor.dtype != _type(column):
        values = _ndarray(key, tensor).tolist()
        read = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in values]
        return from_columns({column.name: read}, {column.name: column})[column.name]
    if column.dtype == object:
        # A TensorProto may leave equal values at its end out; of texts the last one could be long.
        if len(tensor.string_val) != math.prod(shape):
            raise Refused(None, f"input {key!r}: expected {math.prod(shape):,} texts, got {len(tensor.string_val):,}")
        return np.array(list(tensor.string_val), object).reshape(shape)
    written = getattr(tensor, FIELDS.get(tensor.dtype, ""), ())
    if len(written) == math.prod(shape) and not tensor.tensor_content:  # as clients write a row
        values = np.array(written, column.dtype).reshape(shape)
    else:
        values = _ndarray(key, tensor)
    if values.dtype.kind == "f":
        _check_numbers(values, column)
    return values


def _ndarray(key: str, tensor: Any) -> np.ndarray:
    """Return the values of a tensor: it accepts every way of writing, and takes ten times as long."""
    try:
        return np.asarray(tf.make_ndarray(tensor))
    except ValueError as error:
        raise Refused(None, f"input {key!r}: its values do not match its shape: {str(error)[:200]}") from error


def _check_numbers(values: np.ndarray, column: Input) -> None:
    """Raise Refused for the first row with an invalid, missing or fractional number."""
    missing = np.isnan(values)
    whole = column.kind != "integers" or ((values == np.rint(values)) & (values >= -(2.0**63)) & (values < 2.0**63))
    wrong = ~(missing | (np.isfinite(values) & whole)) | (missing & column.required)
    if wrong.any():
        row = int(np.flatnonzero(wrong.reshape(len(values), -1).any(axis=1))[0])
        value = values[row][wrong[row]][0] if values.ndim > 1 else values[row]
        raise Refused(row, f"feature {column.name!r}: expected {column.expected}, got {value:g}")


def _tensor(values: np.ndarray) -> Any:
    """Return the TensorProto of an output, with its values where TensorFlow Serving writes them."""
    dtype = tf.dtypes.as_dtype(tf.string if values.dtype == object else values.dtype).as_datatype_enum
    field = FIELDS.get(dtype)
    if field is None:
        return tf.make_tensor_proto(values)
    tensor = tensor_pb2.TensorProto(dtype=dtype)
    for size in values.shape:
        tensor.tensor_shape.dim.add(size=size)
    getattr(tensor, field).extend(values.ravel().tolist())
    return tensor
