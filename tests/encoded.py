"""Images as the content of files."""

import io

from PIL import Image


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    """Returns an image as Pillow writes it to a file."""
    content = io.BytesIO()
    image.save(content, format, **options)
    return content.getvalue()
