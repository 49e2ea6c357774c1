"""TFRecords of other protocol buffers than the pipeline expects."""

import struct

from tests.gauntlet.tables.table import Content, labelled, table


def _record(payload: bytes) -> bytes:
    """Frame a payload as TFRecord does, with masked CRC-32C."""
    table_ = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table_.append(byte)

    def masked(data: bytes) -> bytes:
        crc = 0xFFFFFFFF
        for byte in data:
            crc = table_[(crc ^ byte) & 255] ^ crc >> 8
        crc ^= 0xFFFFFFFF
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(payload))
    return length + masked(length) + payload + masked(payload)


def _records(words: list, sequences: bool) -> bytes:
    """Write a table as TFRecords of SequenceExample, or of Example."""
    import tensorflow as tf

    records = []
    for row in labelled(words, 134).to_dict("records"):
        one = tf.train.SequenceExample() if sequences else tf.train.Example()
        features = (one.context if sequences else one.features).feature
        for name, value in row.items():
            if isinstance(value, str):
                features[name].bytes_list.value.append(value.encode())
            elif isinstance(value, float):
                features[name].float_list.value.append(value)
            else:
                features[name].int64_list.value.append(value)
        if sequences:
            for value in range(3):
                one.feature_lists.feature_list["visits"].feature.add().int64_list.value.append(value)
        records.append(_record(one.SerializeToString()))
    return b"".join(records)


@table(
    "wanted",
    file="{name}.tfrecord",
    module={},
    expected="stopped: SequenceExample|feature_lists",
    source="tensorflow/tfx#5631",
)
def sequence_examples() -> Content:
    """TFRecords of SequenceExample: the sequences must not get lost silently."""
    return _records([0, 1], sequences=True)


@table("wanted", file="{name}.tfrecord", module={}, expected="stopped: wanted.*(text|bytes)")
def tf_examples_with_words() -> Content:
    """TFRecords of Example, where the label must be the place of its class, with the label in words."""
    return _records(["no", "yes"], sequences=False)
