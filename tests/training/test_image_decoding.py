"""Encoded images become the pixels that people see."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from pipeline.training import decode_image
from tests.encoded import encoded

PIXELS = np.kron(np.random.default_rng(0).integers(0, 255, (6, 4, 3)), np.ones((16, 16, 1))).astype(np.uint8)
PICTURE = Image.fromarray(PIXELS)


@pytest.mark.parametrize(("format", "options"), [("PNG", {}), ("BMP", {}), ("GIF", {}), ("WEBP", {"lossless": True})])
def test_every_format_is_read(format, options):
    pixels = decode_image(tf.constant([encoded(PICTURE, format, **options)]), 96, 64)
    np.testing.assert_array_equal(pixels, PIXELS)


def test_photos_of_printers_and_of_16_bits_are_read():
    pixels = decode_image(tf.constant(encoded(PICTURE.convert("CMYK"), "JPEG", quality=95)), 96, 64)
    assert np.abs(pixels.numpy().astype(int) - PIXELS).mean() < 10
    grey = np.arange(0, 65536, 16, dtype=np.uint16).reshape(64, 64)
    pixels = decode_image(tf.constant(encoded(Image.fromarray(grey))), 64, 64, 1)
    assert np.abs(pixels.numpy()[:, :, 0].astype(int) - grey // 257).max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("order", ["<", ">"])
def test_a_photo_is_shown_upright(orientation, order):
    exif = Image.Exif()
    exif.endian = order
    exif[0x0112] = orientation
    photo = encoded(PICTURE, "JPEG", quality=95, exif=exif.tobytes())
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(photo))))
    height, width, _ = expected.shape
    np.testing.assert_array_equal(decode_image(tf.constant(photo), height, width), expected)


def test_grey_values_stay_as_they_are():
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    pixels = decode_image(tf.constant(encoded(Image.fromarray(grey))), 16, 16, 1)
    assert pixels.dtype == tf.uint8
    np.testing.assert_array_equal(pixels[:, :, 0], grey)


def test_a_crop_keeps_the_centre_and_its_proportions():
    wide = np.zeros((40, 100, 3), np.uint8)
    wide[:, 25:75] = 200
    photo = tf.constant(encoded(Image.fromarray(wide)))
    assert decode_image(photo, 20, 20, crop=True).numpy().min() == 200
    assert decode_image(photo, 20, 20).numpy().min() == 0
