"""A production TFX pipeline: one definition, run on a workstation or on Vertex AI.

``config`` says what to run, ``target`` says where, ``pipeline.create_pipeline(config, target)`` is the graph, and
``training`` is what a module file's ``run_fn`` and ``tuner_fn`` call. Importing this package imports nothing else.
"""
