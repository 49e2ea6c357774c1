"""Write the text of an image pipeline's own files, by what its images are."""

import math
from collections.abc import Iterator

import numpy as np
from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline.quality.schema_text import to_text
from pipeline.scaffold.files import (
    STEPS,
    TEMPLATES,
    Literal,
    checked,
    label_line,
    mapping_text,
    render_config,
    rounded,
)
from pipeline.scaffold.image_inspection import Pictures
from pipeline.settings.config import SPLITS
from pipeline.settings.image_data import FACTS, Images, facts
from pipeline.settings.names import SERVING, TRAINING, shortened

# Shorter sides that small networks are built for, in pixels; a larger image is shrunk.
SIDES = (16, 32, 64, 96)
# Those of networks of keras.applications; the largest is what most of them were trained with.
BACKBONE_SIDES = (96, 128, 160, 224)
# Shorter side up to which grey images are taken for drawings or writing, which must not be mirrored.
DRAWN = 64
SMALL_IMAGES = 5_000
TYPES = {"text": schema_pb2.BYTES, "integers": schema_pb2.INT, "floats": schema_pb2.FLOAT}


def module_text(name: str, pictures: Pictures, backbone: str | None) -> str:
    """Return the text of the module file, with a network of keras.applications or a small one."""
    label = pictures.label
    height, width, crop = _shape(pictures, BACKBONE_SIDES if backbone else SIDES)
    blocks = max(1, round(math.log2(min(height, width) / 2 / 4)))

    def text(literal: Literal) -> str:
        return TEMPLATES.get_template("image_module.py.j2").render(
            name=name,
            task=label.task,
            # A column of that name is the label's.
            image="pixels" if label.name == "image" else "image",
            column=literal(pictures.column),
            height=height,
            width=width,
            channels=1 if pictures.grey and not backbone else 3,
            crop=crop,
            drawn=pictures.grey and min(height, width) <= DRAWN,
            backbone=backbone,
            filters=32,
            blocks=blocks,
            last=min(8, 2**blocks),
            classes=len(label.classes),
            mean=rounded(float(pictures.values.mean()), 4),
            spread=rounded(float(pictures.values.std()), 4),
        )

    return checked(text)


def config_text(name: str, data: str, pictures: Pictures, backbone: str | None) -> str:
    """Return the text of the config, for images at a path."""
    return checked(lambda literal: _config(name, data, pictures, backbone, literal))


def schema_text(pictures: Pictures) -> str:
    """Return the text of the schema: a request has the image only."""
    schema = schema_pb2.Schema(default_environment=[TRAINING, SERVING])
    label = pictures.label
    types = {pictures.column: "BYTES", label.name: "FLOAT" if label.task == "regression" else "INT"}
    types |= zip(facts(pictures.column), ("BYTES", "BYTES", "BYTES", "INT", "INT", "FLOAT"), strict=True)
    for name, type_ in types.items():
        feature = schema.feature.add(name=name, type=schema_pb2.FeatureType.Value(type_))
        feature.presence.min_fraction, feature.presence.min_count = 1.0, 1
        feature.shape.dim.add(size=1)
        if name == pictures.column:
            feature.image_domain.SetInParent()
        else:
            feature.not_in_environment.append(SERVING)
        if name == label.name and label.classes:
            feature.int_domain.min, feature.int_domain.max = 0, len(label.classes) - 1
    by_name = {feature.name: feature for feature in schema.feature}
    of = dict(zip(FACTS, facts(pictures.column), strict=True))
    by_name[of["folder"]].annotation.tag.extend(["leak: ignore", "constant: ignore"])
    for fact in ("format", "width", "height"):
        by_name[of[fact]].annotation.tag.append("constant: ignore")
    by_name[of["format"]].domain = of["format"]
    schema.string_domain.add(name=of["format"], value=sorted(pictures.formats))
    for column in pictures.others:
        if column.type in TYPES:
            schema.feature.add(name=column.name, type=TYPES[column.type], lifecycle_stage=schema_pb2.DISABLED)
    by_name[of["brightness"]].float_domain.min, by_name[of["brightness"]].float_domain.max = 0, 255
    return to_text(schema)


def summary(pictures: Pictures) -> Iterator[tuple[str, str]]:
    """Yield what was found: the kind, and a line."""
    yield "label", label_line(pictures.label, pictures.values)
    if pictures.note:
        yield "note", f"{pictures.label.name}: {pictures.note}; see spellings in the config"
    low, middle, high = np.quantile(pictures.sizes, [0, 0.5, 1], axis=0, method="nearest").astype(int)
    same = (low == high).all()
    size = f"{low[0]} x {low[1]}" if same else f"{low[0]} x {low[1]} to {high[0]} x {high[1]}"
    text = f"{size} pixels{'' if same else f', mostly about {middle[0]} x {middle[1]}'}"
    yield "sizes", f"{text}, {'grey' if pictures.grey else 'in colour'}"
    opened = "" if len(pictures.sizes) == len(pictures.values) else f", of {len(pictures.sizes)} that were opened"
    yield "formats", ", ".join(f"{format} ({count:,})" for format, count in pictures.formats.items()) + opened
    if pictures.splits:
        yield "splits", ", ".join(f"{split}: {pattern}" for split, pattern in pictures.splits.items())
    if pictures.others:
        names = [column.name for column in pictures.others]
        yield "left out", f"{shortened(names, 12)} (the model takes the image alone)"


def _config(name: str, data: str, pictures: Pictures, backbone: str | None, literal: Literal) -> str:
    count = len(pictures.values)
    ends = np.cumsum(list(pictures.shares.values())[:-1]) * count // sum(pictures.shares.values())
    batch_size = 32 if count < SMALL_IMAGES or backbone else 64
    return render_config(
        name,
        pictures.label,
        np.split(np.random.default_rng(0).permutation(pictures.values), ends),
        None,
        literal,
        more_names=["Images"] if pictures.splits else ["HashSplit", "Images"],
        images=True,
        data=literal(data),
        column="" if pictures.column == Images().column else f"column={literal(pictures.column)}",
        splits=mapping_text({split: pictures.splits[split] for split in SPLITS}, literal) if pictures.splits else "",
        folder=literal(facts(pictures.column)[1]) if pictures.nested else "",
        shares=pictures.shares,
        backbone=backbone,
        epochs=15 if backbone else min(60, max(10, math.ceil(STEPS * batch_size / (0.7 * count)))),
        batch_size=batch_size,
    )


def _shape(pictures: Pictures, sides: tuple[int, ...]) -> tuple[int, int, bool]:
    """Return height and width of the pixels that the model sees, and whether images are cut to that shape."""
    ratios = pictures.sizes[:, 0] / pictures.sizes[:, 1]
    shorter = float(np.median(pictures.sizes.min(axis=1)))
    side = next((side for side in sides if side >= 0.8 * shorter), sides[-1])
    ratio = float(np.median(ratios))
    if ratios.max() > 1.05 * ratios.min() or not 0.5 <= ratio <= 2:
        return side, side, True
    longer = 8 * round(side * max(ratio, 1 / ratio) / 8)
    return (side, longer, False) if ratio >= 1 else (longer, side, False)
