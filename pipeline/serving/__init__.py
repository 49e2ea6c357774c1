"""Serve pushed models: the folder of versions, a loaded model, and the server.

Needs neither TFX nor a cloud, and TensorFlow only to load a model.
"""
