"""Raw files → typed tables → tf.Examples."""
