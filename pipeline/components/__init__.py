"""Our own TFX components and executors, one file each."""

import tensorflow as tf

# Who asks for tf.keras first decides which Keras it is for the whole process. tensorflow_transform, which every step
# imports later, would make it Keras 2; module files get Keras 3.
_ = tf.keras.Model
