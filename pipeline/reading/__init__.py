"""Raw files of any supported format → Arrow tables with one row per example.

Needs pyarrow and numpy; TensorFlow only for TFRecords, Beam only for addresses such as ``gs://``.
"""
