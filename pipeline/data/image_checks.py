"""Check one encoded image against the limits and the decoder of training, and return its facts."""

import contextlib
import io
import threading
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image, UnidentifiedImageError

from pipeline.errors import first_line
from pipeline.settings.image_data import FORMATS, Images

# Grey by ITU-R BT.601, as Pillow and TensorFlow weigh red, green and blue.
GREY = (0.299, 0.587, 0.114)
ORIENTATION = 0x0112  # tag of EXIF
SHRINK_JPEG = 8
LONGEST_REASON = 200
# Of larger images, threads decode one at a time, to bound their memory.
LARGE_PIXELS = 16_000_000
_large = threading.Lock()


class BadImage(ValueError):
    """The bytes are not a usable image; the message has the reason but not the path, which only the caller knows."""


@dataclass(frozen=True)
class Facts:
    """Facts of one image."""

    format: str  # by content
    width: int  # after rotation
    height: int
    orientation: int  # EXIF of a JPEG, 1 to 8
    brightness: float  # mean grey, 0 to 255; of the first frame of a GIF


def facts_of(data: bytes, limits: Images) -> Facts:
    """Return the facts of an image: by its header first, then by decoding it as training does (JPEG at 1/8)."""
    facts = _by_header(data, limits)
    with _large if facts.width * facts.height > LARGE_PIXELS else contextlib.nullcontext():
        return _with_brightness(data, facts)


def _by_header(data: bytes, limits: Images) -> Facts:
    """Return the facts except the brightness, without decoding."""
    if not data:
        raise BadImage("it is empty; expected an image")
    if len(data) > limits.max_bytes:
        raise BadImage(too_many_bytes(len(data), limits))
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        # The format of cameras that append a second picture to the first; the file is still a JPEG file.
        format = "JPEG" if image.format == "MPO" else str(image.format)
        width, height = image.size
        _check_pixels(width, height, 1, limits)
        if format == "WEBP" and getattr(image, "is_animated", False):
            # TensorFlow rejects them, or writes out of bounds if it decodes their own number of channels.
            raise BadImage("it is an animated WebP, which TensorFlow does not read; expected one picture")
        if format == "GIF":
            _check_pixels(width, height, getattr(image, "n_frames", 1), limits)
        orientation = _orientation(image) if format == "JPEG" else 1
    except BadImage:
        raise
    except UnidentifiedImageError as error:
        expected = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise BadImage(
            f"it is not an image, or a broken one: it begins with {data[:8]!r}; expected {expected}"
        ) from error
    except Image.DecompressionBombError as error:
        raise BadImage(f"{first_line(error)}; expected at most {limits.max_pixels:,} pixels") from error
    except Exception as error:  # Pillow's readers raise whatever a broken header makes fail
        raise BadImage(f"its header is broken: {_short(error)}") from error
    if orientation >= 5:
        width, height = height, width
    return Facts(format, width, height, orientation, 0.0)


def too_many_bytes(number: int, limits: Images) -> str:
    """Return the reason why an image of this size is rejected."""
    return f"it has {number:,} bytes; expected at most {limits.max_bytes:,} (data.images.max_bytes)"


def _check_pixels(width: int, height: int, frames: int, limits: Images) -> None:
    if width * height * frames > limits.max_pixels:
        times = f" in {frames} frames" if frames > 1 else ""
        raise BadImage(
            f"it has {width:,} x {height:,} pixels{times}; expected at most {limits.max_pixels:,} in all "
            "(data.images.max_pixels)"
        )


def _orientation(image: Image.Image) -> int:
    exif = Image.Exif()
    try:
        exif.load(image.info.get("exif", b""))
        orientation = int(exif.get(ORIENTATION, 1))
    except Exception:  # broken EXIF data; the picture itself may be fine
        return 1
    return orientation if 1 <= orientation <= 8 else 1


def _with_brightness(data: bytes, facts: Facts) -> Facts:
    import tensorflow as tf

    try:
        # Always three channels: with the file's own number of channels, TensorFlow crashes on some files.
        if facts.format == "JPEG":
            pixels = tf.io.decode_jpeg(data, channels=3, ratio=SHRINK_JPEG)
        else:
            pixels = tf.io.decode_image(data, channels=3, expand_animations=False)
    except (tf.errors.OpError, ValueError) as error:
        raise BadImage(f"it is broken or cut short, TensorFlow cannot decode it: {_short(error)}") from error
    # Whole numbers until the end, so that every machine finds the same.
    sums = pixels.numpy().sum(axis=(0, 1), dtype=np.uint64)
    height, width = pixels.shape[:2]
    facts = replace(facts, brightness=float(sums.astype(np.float64) @ GREY / (height * width)))
    # TensorFlow takes the size of a GIF file's first frame, which may be smaller than its screen.
    return replace(facts, width=width, height=height) if facts.format == "GIF" else facts


def _short(error: Exception) -> str:
    """Return the first line of an error, without TensorFlow's words about its graph."""
    words = first_line(error).rpartition("}} ")[2].partition(" [Op:")[0].rstrip(". ")
    return words if len(words) <= LONGEST_REASON else words[:LONGEST_REASON] + "..."
