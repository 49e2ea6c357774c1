"""Pass a signature its columns as one tensor of each dtype: a tensor for each column takes longer than the answer."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.model.features import Columns


def packed(signature: Any) -> Callable[[Columns], dict[str, np.ndarray]]:
    """Return a function from arrays [rows] or [rows, values] by input to the signature's outputs by name."""
    specs: dict[str, tf.TensorSpec] = signature.structured_input_signature[1]
    packs: dict[tf.DType, list[str]] = {}
    apart: list[str] = []
    for name, spec in specs.items():
        of_one_value = spec.shape.rank == 1 and spec.shape[0] is None
        (packs.setdefault(spec.dtype, []) if of_one_value else apart).append(name)
    rows = [tf.TensorSpec([len(names), None], dtype) for dtype, names in packs.items()]

    @tf.function(input_signature=[*rows, *(specs[name] for name in apart)], autograph=False)
    def unpacked(*tensors: tf.Tensor) -> Mapping[str, tf.Tensor]:
        columns = dict(zip(apart, tensors[len(packs) :], strict=True))
        for names, pack in zip(packs.values(), tensors, strict=False):
            columns.update(zip(names, tf.unstack(pack), strict=True))
        return signature(**columns)

    traced = unpacked.get_concrete_function()

    def answer(columns: Columns) -> dict[str, np.ndarray]:
        tensors = [
            tf.constant(np.array([columns[name] for name in names], dtype.as_numpy_dtype), dtype)
            for dtype, names in packs.items()
        ]
        tensors += [tf.constant(columns[name], specs[name].dtype) for name in apart]
        return {name: value.numpy() for name, value in traced(*tensors).items()}

    return answer
