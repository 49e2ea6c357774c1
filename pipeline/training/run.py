"""Train the final model: best hyperparameters in, served model out."""

import contextlib
import functools
import hashlib
import json
import logging
import os
import random
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import keras
import keras_tuner
import tensorflow_transform as tft
from tensorflow_transform.saved.saved_transform_io_v2 import SavedModelLoader

from pipeline.model import background
from pipeline.training import answers, strategy
from pipeline.training.backbone import save as save_backbone
from pipeline.training.backbone import start_from
from pipeline.training.checkpoint import Checkpoints
from pipeline.training.control_groups import free_memory
from pipeline.training.decoding import Augment, Decode, Decoder
from pipeline.training.ensemble import FittedTrees, answering, bytes_to_fit, fit_trees, with_trees
from pipeline.training.export import ROWS, export, record_predictions
from pipeline.training.features import Features
from pipeline.training.history import MEMBERS_FILE, write_file
from pipeline.training.input_pipeline import Split, estimate, find, read
from pipeline.training.loop import Fit
from pipeline.training.settings import Settings
from pipeline.training.strategy import Distribution

logger = logging.getLogger("pipeline.training")

# Set in Vertex AI jobs (cloud.google.com/vertex-ai/docs/training/code-requirements#environment-variables): the folder
# that outlives a lost machine, and the one whose TensorBoard files are shown live.
CHECKPOINT_VARIABLE = "AIP_CHECKPOINT_DIR"
LOG_VARIABLE = "AIP_TENSORBOARD_LOG_DIR"
# Settings of what is made of the network when it has been trained.
AFTER_TRAINING = ("members", "calibration", "explain_rows", "threshold", "coverage")
# The part of what memory is free that fitting trees may take while the network is trained.
SHARE_OF_MEMORY = 0.1
BuildModel = Callable[[keras_tuner.HyperParameters, Features], keras.Model]


def run(
    fn_args: Any,
    build_model: BuildModel,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    *,
    decode: Decode | None = None,
    augment: Augment | None = None,
    trees_without: Collection[str] = (),
) -> None:
    """Train one model and export it to ``fn_args.serving_model_dir``.

    Killed and started again with the same code, settings and data, it resumes from its last checkpoint.

    Args:
        fn_args: What TFX passes to ``run_fn``. Without ``hyperparameters`` the defaults in ``build_model`` are taken.
        build_model: Builds and compiles a model that maps {name: [batch, values]} to the probability of the second of
            two classes, [batch, 1], to the probabilities of more of them, [batch, classes], or to a number, [batch, 1]:
            Sequential, functional or subclassed.
        callbacks: Your Keras callbacks, in addition to early stopping, TensorBoard and the history files.
        decode: Makes the model's features of one example's transformed features, without the label: image bytes to
            pixels with ``decode_image``. Runs in parallel, before the examples are kept for all epochs, and in the
            served model.
        augment: Changes a batch in training, {name: [batch, ...]} and label [batch, ...], by Keras' Random layers or
            ``keras.random``; the same step sees the same examples after a restart. Without ``if`` on tensors.
        trees_without: Transformed features that trees do not get: those that later rows cannot have, or that trees find
            themselves, such as crosses of categories. Unknown names are ignored.

    Raises:
        TrainingError: a setting, the data or the model makes training impossible.
    """
    settings = Settings.of(fn_args)
    distribution = strategy.choose(settings.strategy)
    logger.info(distribution.reason)
    seed = seed_of(settings, distribution)
    transform_output = tft.TFTransformOutput(fn_args.transform_graph_path)
    decoder = decoder_of(transform_output, settings, decode)
    train, evaluate = splits(fn_args.train_files, fn_args.eval_files, decoder, settings, distribution)
    if settings.coverage is not None:
        # Fails now rather than after the training.
        answers.rank_of(evaluate.examples, settings.coverage, both_sides=not settings.classes)
    hyperparameters = (
        keras_tuner.HyperParameters.from_config(fn_args.hyperparameters)
        if fn_args.hyperparameters
        else keras_tuner.HyperParameters()
    )
    with precision(settings, distribution), distribution.strategy.scope():
        features = Features.of(transform_output, settings.label, decoder, settings.backbone_weights)
        for_trees = features.without(trees_without)
        model = build_model(hyperparameters, features)
    logger.info("Hyperparameters: %s", hyperparameters.values)
    if settings.warm_start:
        start_from(getattr(fn_args, "base_model", None), model, transform_output, features)

    checkpoints = checkpoint_folder(fn_args)
    of_trees = for_trees, train, evaluate, settings
    trees: Future[FittedTrees | None] | None = None
    if settings.members == "both" and not settings.spin and distribution.workers == 1:
        if bytes_to_fit(for_trees, estimate(find(fn_args.train_files))) <= SHARE_OF_MEMORY * free_memory():
            # Steps of a small network leave a core idle now and then, and compiling them leaves all but one.
            pool = ThreadPoolExecutor(1)
            trees = pool.submit(fit_trees, *of_trees)
            pool.shutdown(wait=False)  # when the network fails, the trees are not waited for
    if settings.members != "trees" or settings.spin:
        Fit(
            model,
            train,
            evaluate,
            settings,
            distribution,
            seed=seed,
            callbacks=callbacks,
            augment=augment,
            logs=fn_args.model_run_dir,
            tensorboard=os.environ.get(LOG_VARIABLE),
            checkpoints=None if settings.spin else checkpoints,
        ).run()
    if settings.spin:
        return
    # Load Transform's graph, and score the network, while the trees are still fitting.
    transform = SavedModelLoader(transform_output.transform_savedmodel_dir)
    ensemble = None
    if settings.members != "network":
        fitted = trees.result if trees else functools.partial(fit_trees, *of_trees)
        ensemble = with_trees(model, decoder, fitted, for_trees, evaluate, settings)
    if ensemble:
        shares = ", its classes as frequent as in train" if settings.classes else ""
        members = f"loss on the eval split{shares}: {ensemble.found}"
        logger.info("Members, %s.", members)
    answer = answering(model, decoder, ensemble)
    decided = answers.fit(answer, decoder, evaluate, settings)
    # Every worker exports, for reading some variables takes all of them; only the chief's export is kept.
    with tempfile.TemporaryDirectory() as scratch:
        folders = fn_args.serving_model_dir, fn_args.model_run_dir
        exported, kept = folders if distribution.is_chief else (f"{scratch}/model", f"{scratch}/run")
        export(
            model,
            transform_output,
            exported,
            label=settings.label,
            answers=decided,
            transform=transform,
            decoder=decoder,
            ensemble=ensemble,
            at_once=settings.batch_size,
            images=settings.images,
            background=background.read(fn_args.transform_graph_path, settings.explain_rows),
        )
        save_backbone(model, exported)
        if ensemble:
            write_file(f"{kept}/{MEMBERS_FILE}", members + "\n")
        at_once = settings.batch_size if decode else ROWS
        record_predictions(
            lambda features: decided.calibrated(answer(features)), decoder, fn_args.eval_files, kept, at_once
        )
    Checkpoints(checkpoints, [], distribution).delete()


def decoder_of(transform_output: tft.TFTransformOutput, settings: Settings, decode: Decode | None) -> Decoder:
    """Return the decoder of the transformed features."""
    spec = transform_output.transformed_feature_spec()
    return Decoder(spec, settings.label, decode, settings.sequence_length, settings.weight)


def splits(
    train_files: Sequence[str],
    eval_files: Sequence[str],
    decoder: Decoder,
    settings: Settings,
    distribution: Distribution,
) -> tuple[Split, Split]:
    """Return the train and the eval split of files or patterns of them."""

    def split(files: Sequence[str]) -> Split:
        return read(
            files,
            decoder,
            classes=len(settings.classes),
            cache=settings.cache,
            part=distribution.part,
            on_cpu=distribution.on_cpu,
            deterministic=settings.seed is not None,
        )

    return split(train_files), split(eval_files)


def seed_of(settings: Settings, distribution: Distribution) -> int:
    """Seed Python, numpy and TensorFlow; return the seed of the order of examples, the same in all processes."""
    if settings.seed is not None:
        keras.utils.set_random_seed(settings.seed)
        return settings.seed
    return distribution.of_all(random.SystemRandom().randrange(2**31))[0]  # the chief's


@contextlib.contextmanager
def precision(settings: Settings, distribution: Distribution) -> Iterator[None]:
    """Set the precision of layers built inside, as the settings say; "auto" is bfloat16 on TPUs only."""
    policy = settings.precision
    if policy == "auto":
        policy = "mixed_bfloat16" if distribution.tpu else "float32"
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def checkpoint_folder(fn_args: Any) -> str:
    """Return the folder of this training's checkpoints, named by a digest of the inputs of the network's weights.

    They include the code: after an edit of ``build_model`` the weights and the optimizer would be another model's. They
    exclude ``AFTER_TRAINING``, so that a training that found no threshold resumes when the requirement is lowered.

    TFX gives an execution that is started again another ``model_run_dir``, next to the earlier one. A Vertex AI job
    names a folder that stays the same when it is started again.
    """
    decides = [
        getattr(fn_args, "code", ""),
        fn_args.train_files,
        fn_args.eval_files,
        fn_args.transform_graph_path,
        fn_args.hyperparameters,
        getattr(fn_args, "base_model", None),
        {name: value for name, value in (fn_args.custom_config or {}).items() if name not in AFTER_TRAINING},
    ]
    name = hashlib.sha256(json.dumps(decides, sort_keys=True, default=str).encode()).hexdigest()[:16]
    folder = os.environ.get(CHECKPOINT_VARIABLE)
    if not folder:
        folder = os.path.join(os.path.dirname(os.path.dirname(fn_args.model_run_dir.rstrip("/"))), "checkpoints")
    return os.path.join(folder, name)
