"""Settings of images as data, and the names of what is known about each of them."""

from dataclasses import dataclass
from typing import Annotated

from pipeline.settings.checks import ConfigError, check_settings, whole

# As Pillow names them; TensorFlow decodes these and no others.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
# Endings of image files. What a file holds decides about its format, whatever its ending says.
ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".dib", ".webp")
FACTS = ("path", "folder", "format", "width", "height", "brightness")

# Pillow itself refuses to open more pixels than this.
MOST_PIXELS = 178_956_970


@dataclass(frozen=True)
class Images:
    """Images as data: a folder of them, a table of their paths, or files with encoded images in a column.

    Attributes:
        column: Of the encoded images in examples and requests; of a table next to image files, that with their paths.
        max_pixels: Most pixels, width times height (of a GIF, of all frames); an image with more is a bad row.
        max_bytes: Most bytes of an encoded image; the same.
    """

    column: str = "image"
    max_pixels: Annotated[int, whole(1, MOST_PIXELS)] = 50_000_000
    max_bytes: Annotated[int, whole(1, 1 << 30)] = 50 << 20

    def __post_init__(self) -> None:
        check_settings("data.images.", self)
        if not isinstance(self.column, str) or not self.column:
            raise ConfigError(f"data.images.column must be the name of a column, got {self.column!r}")


def facts(column: str) -> tuple[str, ...]:
    """Return the names of the columns with what is known about the images in a column, in the order of ``FACTS``."""
    return tuple(f"{column}_{fact}" for fact in FACTS)
