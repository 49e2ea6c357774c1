"""From a pushed model to answers: the folder of versions, a loaded model, and the server in front of it.

Needs TensorFlow only to load a model, and neither TFX nor a cloud.
"""
