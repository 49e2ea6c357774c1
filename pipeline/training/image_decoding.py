"""Encoded images → pixels, the same in training and serving."""

import tensorflow as tf

# Enough for the EXIF data that cameras write before the picture.
EXIF_BYTES = 1 << 16
# The tag "orientation", one 16-bit number, in both byte orders (Exif 2.3, section 4.6.4); the number stands between.
LITTLE_ENDIAN = b"\x12\x01\x03\x00\x01\x00\x00\x00"
BIG_ENDIAN = b"\x01\x12\x00\x03\x00\x00\x00\x01\x00"


def decode_image(encoded: tf.Tensor, height: int, width: int, channels: int = 3, *, crop: bool = False) -> tf.Tensor:
    """Return the pixels of one image as people see it, uint8 [height, width, channels].

    Cameras store a picture as the sensor was held, with an EXIF orientation that is applied here.

    Args:
        encoded: The file's content, a string of one value: JPEG, PNG, BMP, WebP or GIF, of which the first frame is
            taken.
        height: In pixels.
        width: In pixels.
        channels: 3 for red, green and blue, 1 for grey.
        crop: Keep the aspect ratio and cut off what is outside of the centre, instead of distorting.
    """
    encoded = tf.reshape(encoded, [])
    # On the CPU wherever the model is: a resize on a GPU differs in the last bit.
    with tf.device("/CPU:0"):
        image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
        image = _upright(image, _orientation(encoded))
        image = _resized(image, height, width, crop)
        if channels == 1:
            image = tf.image.rgb_to_grayscale(image)
        return tf.ensure_shape(image, [height, width, channels])


def _resized(image: tf.Tensor, height: int, width: int, crop: bool) -> tf.Tensor:
    size = tf.stack([height, width])
    if crop:
        shape = tf.cast(tf.shape(image)[:2], tf.float32)
        scale = tf.reduce_max(tf.cast(size, tf.float32) / shape)
        size = tf.maximum(size, tf.cast(tf.round(shape * scale), tf.int32))
    resized = tf.image.resize(image, size, "bilinear", antialias=True)
    resized = tf.image.resize_with_crop_or_pad(resized, height, width)
    return tf.saturate_cast(tf.round(resized), tf.uint8)


def _orientation(encoded: tf.Tensor) -> tf.Tensor:
    """Return a JPEG file's EXIF orientation, 1 to 8, and 1 where it has none; int32 []."""
    head = tf.strings.substr(encoded, 0, EXIF_BYTES)
    values = tf.cast(tf.io.decode_raw(head, tf.uint8), tf.int32)
    values = tf.pad(values, [[0, 16]])

    def after(pattern: bytes) -> tf.Tensor:
        """Return the bytes that follow the places of a pattern."""
        places = tf.size(values) - len(pattern)
        found = tf.reduce_all([values[at : at + places] == byte for at, byte in enumerate(pattern)], axis=0)
        return tf.boolean_mask(values[len(pattern) :], found)

    orientations = tf.concat([after(LITTLE_ENDIAN), after(BIG_ENDIAN), [1]], axis=0)
    is_jpeg = tf.strings.substr(encoded, 0, 2) == b"\xff\xd8"
    known = is_jpeg & (orientations[0] >= 1) & (orientations[0] <= 8)
    return tf.where(known, orientations[0], 1)


def _upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Turn and mirror an image by its EXIF orientation (Exif 2.3, section 4.6.4)."""
    turned = tf.cond(orientation >= 5, lambda: tf.transpose(image, [1, 0, 2]), lambda: image)
    mirror = tf.reduce_any(orientation == [2, 3, 6, 7])
    turned = tf.cond(mirror, lambda: tf.reverse(turned, [1]), lambda: turned)
    flip = tf.reduce_any(orientation == [3, 4, 7, 8])
    return tf.cond(flip, lambda: tf.reverse(turned, [0]), lambda: turned)
