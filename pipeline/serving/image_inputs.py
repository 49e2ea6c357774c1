"""Reject images that a model could not decode; replace the others by their facts in the request log."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from pipeline.data.image_checks import BadImage, Facts, facts_of
from pipeline.model.features import Columns, Refused, row_count
from pipeline.model.inputs import IMAGE, Input
from pipeline.settings.image_data import Images, facts


def facts_by_row(columns: Columns, inputs: Mapping[str, Input]) -> list[dict[str, Any]]:
    """Return the facts of the images of each row; raise Refused for a broken or too large one, before it is decoded."""
    images = {name: column.limits for name, column in inputs.items() if column.kind == IMAGE and column.limits}
    known: list[dict[str, Any]] = [{} for _ in range(row_count(columns))]
    for name, limits in images.items():
        for row, data in enumerate(columns[name]):
            try:
                known[row] |= named(name, facts_of(data, limits))
            except BadImage as error:
                raise Refused(row, f"feature {name!r}: {error}") from error
    return known


def with_checked_images(columns: Columns, rows: Mapping[str, Input]) -> dict[str, np.ndarray]:
    """Check the images in serialized tf.Examples; ``rows`` are the inputs that say which features are images.

    Each tf.Example is serialized again: of a duplicate field TensorFlow's parser may use a value that was not checked.
    """
    images = {name: column.limits for name, column in rows.items() if column.kind == IMAGE and column.limits}
    if not images:
        return dict(columns)
    ((name, records),) = columns.items()
    from tensorflow.train import Example  # pipeline.vertex imports this file, without TensorFlow

    checked = []
    for row, record in enumerate(records):
        try:
            example = Example.FromString(record)
        except DecodeError as error:
            raise Refused(row, f"feature {name!r}: it is no serialized tf.Example") from error
        example.DiscardUnknownFields()
        features = example.features.feature
        for image, limits in images.items():
            for data in features[image].bytes_list.value if image in features else ():
                try:
                    facts_of(data, limits)
                except BadImage as error:
                    raise Refused(row, f"feature {image!r} of the tf.Example: {error}") from error
        checked.append(example.SerializeToString())
    return {name: np.array(checked, object)}


def named(column: str, found: Facts) -> dict[str, Any]:
    """Return the facts of an image by their column names."""
    _, _, format, width, height, brightness = facts(column)
    return {format: found.format, width: found.width, height: found.height, brightness: found.brightness}


def without_images(
    instances: Sequence[Any], inputs: Mapping[str, Input], known: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return rows from JSON with the facts of their images in place of these."""
    others = {name for name, column in inputs.items() if column.kind != IMAGE}
    return [
        {name: value for name, value in row.items() if name in others} | dict(of_row)
        for row, of_row in zip(instances, known, strict=True)
    ]


def logged(instance: Mapping[str, Any], images: Images) -> dict[str, Any]:
    """Return a row of a log with whole images as our own log has it; a broken image counts as missing."""
    if "b64" in instance and images.column not in instance:
        instance = {images.column: instance}
    column = Input(images.column, IMAGE, True, np.dtype(object), limits=images)
    others = {name: value for name, value in instance.items() if name != images.column}
    if images.column not in instance:
        return others
    try:
        return others | named(images.column, facts_of(column.convert(instance[images.column]), images))
    except ValueError:
        return others
