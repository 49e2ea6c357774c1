"""Read, infer and compare schemas, and change some columns in the text of one."""

import io
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import tensorflow_data_validation as tfdv
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline.errors import UserError, first_line
from pipeline.quality.statistics import Statistics, features_of, present
from pipeline.settings.image_data import facts
from pipeline.settings.names import SERVING, TRAINING
from pipeline.settings.notations import listed_values

NEW = "# Accepted from the data; move it to where it belongs."


def parse(schema_file: Path, leave_out: Collection[str] = ()) -> schema_pb2.Schema:
    """Read a schema, without some columns; raise a UserError if the file is not one."""
    try:
        schema = text_format.Parse(schema_file.read_bytes(), schema_pb2.Schema())
    except UnicodeDecodeError as error:
        raise UserError(f"{schema_file} is not a schema in text format: {error}; expected UTF-8") from error
    except text_format.ParseError as error:
        raise UserError(f"{schema_file} is not a schema in text format: line {first_line(error)[:300]}") from error
    used = [feature for feature in schema.feature if feature.name not in leave_out]
    del schema.feature[:]
    schema.feature.extend(used)
    return schema


def to_text(message: schema_pb2.Schema) -> str:
    """Return a schema in text format."""
    return str(text_format.MessageToString(message))


def inferred_from(statistics: Sequence[Statistics], *absent: str | None) -> schema_pb2.Schema:
    """Infer a schema from the statistics of all splits, train first; requests lack the columns in ``absent``."""
    schema = proposed(tfdv.infer_schema(statistics[0]), statistics)
    if any(absent):
        schema.default_environment.extend([TRAINING, SERVING])
    for feature in schema.feature:
        if feature.name in absent:
            feature.not_in_environment.append(SERVING)
    for name, column in features_of(statistics[0]).items():
        if column.HasField("bytes_stats"):
            _describe_images(schema, name)
    return schema


def _describe_images(schema: schema_pb2.Schema, image: str) -> None:
    """Mark a column as encoded images, and the facts about them as columns that no request has."""
    if not schema.default_environment:
        schema.default_environment.extend([TRAINING, SERVING])
    for feature in schema.feature:
        if feature.name == image:
            feature.image_domain.SetInParent()
        elif feature.name in facts(image):
            feature.not_in_environment.append(SERVING)
            if feature.name in facts(image)[:2] and feature.HasField("domain"):
                feature.ClearField("domain")  # the next data has other files
    drop_unused_domains(schema)


def drop_unused_domains(schema: schema_pb2.Schema) -> None:
    """Remove the lists of texts that no feature names."""
    used = {feature.domain for feature in schema.feature}
    domains = [domain for domain in schema.string_domain if domain.name in used]
    del schema.string_domain[:]
    schema.string_domain.extend(domains)


def proposed(reviewed: schema_pb2.Schema, statistics: Sequence[Statistics]) -> schema_pb2.Schema:
    """Return the schema, changed by TensorFlow Data Validation so that the data fits.

    Unlike there, a column whose type changes gets the new type, and one without a value in a split stays in use.
    """
    schema = reviewed
    for split in statistics:
        schema = tfdv.update_schema(schema, split)
    before = {feature.name: feature for feature in reviewed.feature}
    _keep_single(schema, before)
    _keep_sparse(schema, before, statistics)
    in_data = {name for split in statistics for name in features_of(split)}
    inferred = {feature.name: feature for feature in tfdv.infer_schema(statistics[0]).feature}
    for feature in schema.feature:
        deprecated = feature.lifecycle_stage == schema_pb2.DEPRECATED
        if deprecated and feature.name in in_data & set(before) and feature.name in inferred:
            if before[feature.name].lifecycle_stage != schema_pb2.DEPRECATED:
                feature.CopyFrom(inferred[feature.name])
    return schema


def _keep_single(schema: schema_pb2.Schema, before: Mapping[str, schema_pb2.Feature]) -> None:
    """Allow one value at most where each row of the first split had one and another split lacks some.

    TensorFlow Data Validation drops the shape then, and without one a column is a list.
    """
    for feature in schema.feature:
        old = before.get(feature.name)
        was_single = old is not None and [dim.size for dim in old.shape.dim] == [1]
        if was_single and not feature.WhichOneof("shape_type") and feature.presence.min_fraction < 1:
            feature.value_count.min, feature.value_count.max = 1, 1


def _keep_sparse(
    schema: schema_pb2.Schema, before: Mapping[str, schema_pb2.Feature], statistics: Sequence[Statistics]
) -> None:
    """Put back into use, as optional, the columns that have values in some splits and none in others."""
    for feature in schema.feature:
        having = [split for split in statistics if present(features_of(split).get(feature.name))]
        if not 0 < len(having) < len(statistics):
            continue
        fresh = tfdv.infer_schema(_only(having[0], feature.name))
        for split in having[1:]:
            fresh = tfdv.update_schema(fresh, _only(split, feature.name))
        old = before.get(feature.name)
        (of_values,) = fresh.feature
        if old and old.lifecycle_stage == schema_pb2.DEPRECATED:
            continue
        if old and old.type == of_values.type:
            feature.CopyFrom(old)
        else:
            feature.CopyFrom(of_values)
            schema.string_domain.extend(fresh.string_domain)
        if feature.WhichOneof("shape_type") != "value_count":
            feature.value_count.min, feature.value_count.max = 1, 1
        feature.presence.Clear()
        feature.presence.min_count = 0


def _only(statistics: Statistics, name: str) -> Statistics:
    alone = Statistics()
    alone.datasets.add(num_examples=statistics.datasets[0].num_examples).features.append(features_of(statistics)[name])
    return alone


def changes(before: schema_pb2.Schema, after: schema_pb2.Schema) -> dict[str, list[str]]:
    """Return the differences by column, a line each."""
    earlier = {feature.name: feature for feature in before.feature}
    found = {one.name: list(_differences(earlier.get(one.name), one, before, after)) for one in after.feature}
    return {name: lines for name, lines in found.items() if lines}


def rewritten(text: str, before: schema_pb2.Schema, after: schema_pb2.Schema, columns: Iterable[str]) -> str:
    """Return the text of ``before`` with some columns as in ``after``; comments and the other columns stay."""
    wanted = {"feature": set(columns)}
    wanted["string_domain"] = {feature.domain for feature in after.feature if feature.name in wanted["feature"]}
    fresh: dict[tuple[str, str], schema_pb2.Feature | schema_pb2.StringDomain] = {}
    for kind, names in wanted.items():
        earlier = {message.name: message for message in getattr(before, kind)}
        messages = [message for message in getattr(after, kind) if message.name in names]
        fresh |= {(kind, one.name): one for one in messages if earlier.get(one.name) != one}
    out, end = [], 0
    for start, stop, kind in _blocks(text):
        block = text_format.Parse(text[start:stop], schema_pb2.Schema())
        key = kind, getattr(block, kind)[0].name
        if key in fresh:
            out += [text[end:start], _block(kind, fresh.pop(key))]
            end = stop
    out.append(text[end:])
    if fresh:
        added = [_block(kind, message) for (kind, _), message in fresh.items()]
        out.append("\n" + NEW + "\n\n" + "\n\n".join(added) + "\n")
    return "".join(out)


def _differences(
    old: schema_pb2.Feature | None, new: schema_pb2.Feature, before: schema_pb2.Schema, after: schema_pb2.Schema
) -> Iterator[str]:
    if old is None:
        presence = new.presence.min_fraction
        where = "in every row" if presence == 1 else f"in {100 * presence:.3g} % of the rows or more"
        yield f"+ new column: {_type(new)}, {where}"
        return
    if new.lifecycle_stage == schema_pb2.DEPRECATED and old.lifecycle_stage != schema_pb2.DEPRECATED:
        yield "- no longer in the data: taken out of use (lifecycle_stage: DEPRECATED)"
        return
    if new.type != old.type:
        yield f"~ type {_type(old)} -> {_type(new)}"
    if new.presence.min_fraction != old.presence.min_fraction:
        yield f"~ in {100 * old.presence.min_fraction:.4g} % of the rows -> {100 * new.presence.min_fraction:.4g} %"
    if old.HasField("shape") and not new.HasField("shape") and new.type == old.type:
        yield "~ exactly one value -> may be missing"
    if old.value_count != new.value_count and old.HasField("value_count"):
        counts = [f"{feature.value_count.min} to {feature.value_count.max}" for feature in (old, new)]
        yield f"~ values per row {counts[0]} -> {counts[1]}"
    values = listed_values(old, before), listed_values(new, after)
    yield from (f"+ value {value!r}" for value in values[1] if value not in values[0])
    if values[0] and not values[1]:
        yield "~ listed values -> any text"
    if new.type == old.type != schema_pb2.BYTES and _range(old) != _range(new):
        yield f"~ {_range(old)} -> {_range(new)}"


def _type(feature: schema_pb2.Feature) -> str:
    return str(schema_pb2.FeatureType.Name(feature.type))


def _range(feature: schema_pb2.Feature) -> str:
    if feature.HasField("bool_domain"):
        return "0 or 1"
    for kind in ("int_domain", "float_domain"):
        if feature.HasField(kind):
            domain = getattr(feature, kind)
            low = f"{domain.min:g}" if domain.HasField("min") else "lowest"
            return f"range {low} to {f'{domain.max:g}' if domain.HasField('max') else 'highest'}"
    return "any number"


def _block(kind: str, message: schema_pb2.Feature | schema_pb2.StringDomain) -> str:
    """Return a feature or a domain as text, a line a field, name and type first."""
    fields = sorted(message.ListFields(), key=lambda pair: (pair[0].name != "name", pair[0].name != "type"))
    lines = [f"{kind} {{"]
    for field, value in fields:
        repeated = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
        for item in value if repeated else [value]:
            text = io.StringIO()
            text_format.PrintField(field, item, text, as_one_line=True)
            lines.append(f"  {text.getvalue().strip()}")
    return "\n".join([*lines, "}"])


def _blocks(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield where features and domains stand in the text of a schema: start, end, field."""
    depth, start, kind = 0, 0, ""
    # A string, a comment, the beginning of a message, or a brace.
    for found in re.finditer(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|#[^\n]*|(\w+)\s*:?\s*\{|\}', text):
        token = found.group()
        if token.endswith("{") and token[0] not in "\"'#":
            if depth == 0:
                start, kind = found.start(), found.group(1)
            depth += 1
        elif token == "}":
            depth -= 1
            if depth == 0 and kind in ("feature", "string_domain"):
                yield start, found.end(), kind
