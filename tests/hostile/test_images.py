"""Images that were damaged or made to do harm: what ExampleGen takes, TensorFlow decodes to the size that was said."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given
from PIL import Image

from pipeline.data.image_checks import BadImage, facts_of
from pipeline.settings.image_data import Images
from tests.bounds import bounded
from tests.encoded import encoded
from tests.hostile.mutations import CASES, attempt, mutated

pytestmark = pytest.mark.slow

PICTURE = Image.fromarray(np.random.RandomState(0).randint(0, 256, (30, 20, 3), np.uint8))
TURNED = Image.Exif()
TURNED[0x0112] = 6
SEEDS = {
    "JPEG": [
        encoded(PICTURE, "JPEG"),
        encoded(PICTURE, "JPEG", progressive=True, exif=TURNED),
        encoded(PICTURE.convert("CMYK"), "JPEG"),
    ],
    "PNG": [encoded(PICTURE), encoded(PICTURE.convert("P")), encoded(PICTURE.convert("RGBA"), exif=TURNED)],
    "GIF": [encoded(PICTURE, "GIF"), encoded(PICTURE, "GIF", save_all=True, append_images=[PICTURE.rotate(180)] * 3)],
    "BMP": [encoded(PICTURE, "BMP"), encoded(PICTURE.convert("L"), "BMP")],
    "WEBP": [encoded(PICTURE, "WEBP"), encoded(PICTURE.convert("RGBA"), "WEBP", lossless=True)],
}


@pytest.mark.parametrize("format", list(SEEDS))
def test_a_damaged_image_is_decoded_as_it_was_said_or_refused(format: str):
    limits = Images()
    wide_gif = SEEDS["GIF"][0][:6] + (276).to_bytes(2, "little") + SEEDS["GIF"][0][8:]

    @CASES
    @example(wide_gif)
    @given(mutated(SEEDS[format], [b"Exif\0\0", b"IDAT", b"\xff\xd9", b"RIFF"]))
    def holds(content: bytes) -> None:
        with bounded(seconds=5, megabytes=400):
            facts, refusal = attempt(lambda: facts_of(content, limits), BadImage)
            if facts is None:
                assert 0 < len(refusal) <= 400
                assert "\n" not in refusal
                return
            pixels = tf.io.decode_image(content, channels=3, expand_animations=False).numpy()
        sides = (facts.height, facts.width)
        assert pixels.shape[:2] in (sides, sides[::-1])
        assert 0 <= facts.brightness <= 255

    holds()
