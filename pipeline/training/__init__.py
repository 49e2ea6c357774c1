"""Functions for a module file's ``run_fn`` and ``tuner_fn``: all of training that is the same for every model.

    def tuner_fn(fn_args):
        return training.tune(fn_args, build_model)

    def run_fn(fn_args):
        training.run(fn_args, build_model)

``build_model(hp, features)`` returns a compiled Keras model; see ``tune`` and ``run``. Nothing here knows who calls it:
no TFX orchestration, no Google Cloud.
"""

from pipeline.training.backbone import backbone
from pipeline.training.decoding import decode_image
from pipeline.training.features import Features
from pipeline.training.gradients import Embedding as embedding
from pipeline.training.run import BuildModel, run
from pipeline.training.tuning import tune

__all__ = ["BuildModel", "Features", "backbone", "decode_image", "embedding", "run", "tune"]
