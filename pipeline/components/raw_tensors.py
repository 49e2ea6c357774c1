"""Which tensors a schema makes of raw examples: all of them, or those of a few columns."""

from collections.abc import Collection
from typing import Any

from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.public import tfxio


def source_of(schema: schema_pb2.Schema) -> Any:
    """Return what makes tensors of tf.Examples by a schema."""
    return tfxio.TFExampleRecord(file_pattern="", schema=schema, telemetry_descriptors=["Transform"])


def projected(
    schema: schema_pb2.Schema, columns: Collection[str]
) -> tuple[schema_pb2.Schema, tfxio.TensorAdapterConfig]:
    """Return the schema and tensors of some columns; of all where columns make up others, or none is named."""
    whole = source_of(schema)
    if not columns or schema.sparse_feature or schema.tensor_representation_group:
        return schema, whole.TensorAdapterConfig()
    needed = schema_pb2.Schema()
    needed.CopyFrom(schema)
    del needed.feature[:]
    needed.feature.extend(feature for feature in schema.feature if feature.name in columns)
    part = source_of(needed).TensorAdapterConfig()
    type_specs = whole.TensorAdapter().OriginalTypeSpecs()
    return needed, tfxio.TensorAdapterConfig(part.arrow_schema, part.tensor_representations, type_specs)
