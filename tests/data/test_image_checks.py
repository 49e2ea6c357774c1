"""Facts of images: every format that TensorFlow reads, and a sentence for each that training could not use."""

import struct
import zlib

import numpy as np
import psutil
import pytest
import tensorflow as tf
from PIL import Image

from pipeline.data.image_checks import BadImage, facts_of
from pipeline.settings.checks import ConfigError
from pipeline.settings.config import Data
from pipeline.settings.image_data import Images, facts
from tests.encoded import encoded

PICTURE = Image.fromarray(np.random.RandomState(0).randint(0, 256, (30, 20, 3), np.uint8))
LIMITS = Images()


def reason(data: bytes, limits: Images = LIMITS) -> str:
    with pytest.raises(BadImage) as refused:
        facts_of(data, limits)
    return str(refused.value)


@pytest.mark.parametrize(
    ("data", "format"),
    [
        (encoded(PICTURE, "JPEG"), "JPEG"),
        (encoded(PICTURE, "JPEG", progressive=True), "JPEG"),
        (encoded(PICTURE.convert("L"), "JPEG"), "JPEG"),
        (encoded(PICTURE.convert("CMYK"), "JPEG"), "JPEG"),
        (encoded(PICTURE, "MPO", save_all=True, append_images=[PICTURE]), "JPEG"),
        (encoded(PICTURE, "PNG"), "PNG"),
        (encoded(PICTURE.convert("P"), "PNG"), "PNG"),
        (encoded(PICTURE.convert("1"), "PNG"), "PNG"),
        (encoded(PICTURE.convert("RGBA"), "PNG"), "PNG"),
        (encoded(PICTURE, "GIF"), "GIF"),
        (encoded(PICTURE, "GIF", save_all=True, append_images=[PICTURE.rotate(180)] * 3), "GIF"),
        (encoded(PICTURE, "BMP"), "BMP"),
        (encoded(PICTURE.convert("L"), "BMP"), "BMP"),
        (encoded(PICTURE, "WEBP"), "WEBP"),
        (encoded(PICTURE.convert("RGBA"), "WEBP", lossless=True), "WEBP"),
    ],
)
def test_every_kind_of_every_format_has_its_facts(data, format):
    found = facts_of(data, LIMITS)
    assert (found.format, found.width, found.height, found.orientation) == (format, 20, 30, 1)
    assert found.brightness == pytest.approx(np.asarray(PICTURE.convert("L")).mean(), abs=4)


def test_a_gif_is_as_large_as_tensorflow_decodes_it_whatever_its_screen():
    data = bytearray(encoded(PICTURE, "GIF"))
    data[6:8] = (276).to_bytes(2, "little")
    shape = tf.io.decode_image(bytes(data), channels=3, expand_animations=False).shape
    found = facts_of(bytes(data), LIMITS)
    assert (found.height, found.width) == tuple(shape[:2])


def test_16_bits_count_as_8():
    grey = Image.fromarray(np.full((5, 4), 60_000, np.uint16))
    assert facts_of(encoded(grey, "PNG"), LIMITS).brightness == pytest.approx(60_000 / 257, abs=1)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
def test_one_pixel_is_an_image(format):
    found = facts_of(encoded(PICTURE.resize((1, 1)), format), LIMITS)
    assert (found.width, found.height) == (1, 1)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_width_and_height_are_those_that_people_see(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = facts_of(encoded(PICTURE, "JPEG", exif=exif), LIMITS)
    assert found.orientation == orientation
    assert (found.width, found.height) == ((20, 30) if orientation < 5 else (30, 20))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_data_count_as_none():
    data = encoded(PICTURE, "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert facts_of(data, LIMITS).orientation == 1


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_image_is_refused(format, share):
    data = encoded(PICTURE, format)
    assert reason(data[: int(len(data) * share)])


def test_an_image_broken_in_the_middle_is_refused():
    data = bytearray(encoded(PICTURE, "PNG"))
    data[len(data) // 2] ^= 0xFF
    assert "broken or cut short" in reason(bytes(data))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is empty"),
        (b"not an image", "it is not an image, or a broken one: it begins with b'not an i'"),
        (b"<html>404</html>", "not an image"),
        (encoded(PICTURE, "TIFF"), "expected JPEG, PNG, GIF, BMP or WEBP"),
        (encoded(PICTURE, "WEBP", save_all=True, append_images=[PICTURE.rotate(180)]), "animated WebP"),
        (encoded(PICTURE.convert("1"), "BMP"), "TensorFlow cannot decode it: Number of channels"),
    ],
)
def test_what_training_cannot_decode_is_refused_with_the_reason(data, words):
    assert words in reason(data)


def png_header(width: int, height: int) -> bytes:
    """Return a PNG file whose header claims a size, followed by much compressed data."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = b"IDAT" + zlib.compress(bytes(10_000_000))
    chunks = [
        struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in (header, pixels)
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Image size")
def test_an_image_over_the_limits_is_refused_by_its_header():
    before = psutil.Process().memory_info().rss
    for _ in range(20):
        assert "400000000 pixels" in reason(png_header(20_000, 20_000))
    assert "10,000 x 10,000 pixels; expected at most 50,000,000" in reason(png_header(10_000, 10_000))
    assert psutil.Process().memory_info().rss - before < 50 << 20
    assert "data.images.max_bytes" in reason(encoded(PICTURE, "PNG"), Images(max_bytes=100))


def test_all_frames_of_a_gif_count():
    data = encoded(PICTURE, "GIF", save_all=True, append_images=[PICTURE.rotate(180), PICTURE])
    assert "20 x 30 pixels in 3 frames; expected at most 1,000" in reason(data, Images(max_pixels=1_000))


def test_brightness_goes_from_black_to_white():
    for colour, brightness in (((0, 0, 0), 0), ((255, 255, 255), 255), ((255, 0, 0), 76.2)):
        found = facts_of(encoded(Image.new("RGB", (9, 9), colour), "PNG"), LIMITS)
        assert found.brightness == pytest.approx(brightness, abs=0.1)


def test_what_has_facts_is_decoded_by_tensorflow_to_that_size():
    for format in ("JPEG", "PNG", "GIF", "BMP", "WEBP"):
        data = encoded(PICTURE, format)
        found = facts_of(data, LIMITS)
        pixels = tf.io.decode_image(data, channels=3, expand_animations=False)
        assert pixels.shape == (found.height, found.width, 3)


def test_names_of_facts_follow_the_column():
    assert facts("scan") == (
        *("scan_path", "scan_folder", "scan_format"),
        *("scan_width", "scan_height", "scan_brightness"),
    )


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match="data.images.max_pixels must be a whole number from 1"):
        Images(max_pixels=0)
    with pytest.raises(ConfigError, match="data.images.column must be"):
        Images(column="")
    with pytest.raises(ConfigError, match=r"data.images must be Images\(...\), or None, got"):
        Data("data/x", images=True)
    with pytest.raises(ConfigError, match="data.images needs image files"):
        Data("bigquery://a.b.c", images=Images())
