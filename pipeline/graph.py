"""Create the graph, the same for every target.

ExampleGen → StatisticsGen → SchemaGen → ExampleValidator → DataGate → Baselines → Transform → Tuner → Trainer →
ModelCheck → Evaluator → Pusher → Verdict
"""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any, Literal

from ml_metadata.proto import metadata_store_pb2
from tfx.dsl.components.base.base_node import BaseNode
from tfx.dsl.components.common.importer import Importer
from tfx.dsl.components.common.resolver import Resolver
from tfx.dsl.input_resolution.strategies.latest_artifact_strategy import LatestArtifactStrategy
from tfx.dsl.input_resolution.strategies.latest_blessed_model_strategy import LatestBlessedModelStrategy
from tfx.orchestration.pipeline import Pipeline
from tfx.proto import pusher_pb2, trainer_pb2, transform_pb2
from tfx.types import Channel, standard_artifacts

from pipeline import filesystem
from pipeline.components.baselines import Baselines
from pipeline.components.data_gate import DataGate, ExampleValidator, ValidatorSettings
from pipeline.components.earlier_model import last_blessed
from pipeline.components.evaluator import Evaluator
from pipeline.components.example_gen import create_example_gen
from pipeline.components.model_check import ModelCheck
from pipeline.components.pusher import Pusher
from pipeline.components.schema_gen import SchemaGen, stage_schema
from pipeline.components.statistics_gen import StatisticsGen
from pipeline.components.trainer import Trainer
from pipeline.components.transform import Transform
from pipeline.components.tuner import Tuner
from pipeline.components.verdict import Verdict
from pipeline.data.sample import Sample
from pipeline.errors import UserError
from pipeline.fast import engine
from pipeline.model.export_format import BACKBONE
from pipeline.packaging import user_code
from pipeline.runs import store
from pipeline.settings import repository
from pipeline.settings.config import Data, PipelineConfig, TimeSplit
from pipeline.settings.gates import LAST_BLESSED, NO_BASELINE
from pipeline.settings.target import Target
from pipeline.training.settings import Settings


def create_pipeline(config: PipelineConfig, target: Target, sample: Sample | None = None) -> Pipeline:
    """Return the pipeline of a config for a target; only the target differs between this machine and Vertex AI.

    Write the wheels with the user's code and a copy of the reviewed schema below ``target.files``, both under names
    with their fingerprint, so that a step runs again exactly when its input has changed.

    Args:
        config: WHAT.
        target: WHERE.
        sample: Rows of an earlier run that it learns from and is judged by, in place of what ExampleGen reads.

    Raises:
        UserError: the module file or a setting is not usable.
    """
    if sample:
        config = _on_sample(config)
    label, evaluation = config.label, config.evaluation
    # What steps make of each span of a window, for the next run; "" where nothing comes again.
    kept = f"{target.pipeline_root}/_kept/{config.name}" if config.data.is_window else ""
    # Statistics of pushed models, with which the next data is compared.
    reference_root = f"{target.pipeline_root}/_pushed/{config.name}"

    def package(*entry_points: str) -> tuple[str, str]:
        """Return module and wheel of a step's user code, as TFX writes them, and its fingerprint."""
        code = user_code.package(Path(config.module), entry_points, target.files / "_wheels")
        return f"{code.module}@{target.address(code.wheel)}", code.fingerprint

    # Raw rows in, tf.Examples out, in the splits train, eval and test.
    example_gen = create_example_gen(config, target, kept, sample)
    examples = example_gen.outputs["examples"]

    # Statistics of all splits, and the schema inferred from them: a value that is missing in one split only must not
    # stop Transform.
    statistics_gen = StatisticsGen(examples=examples, images=config.data.images, kept=kept)
    statistics = statistics_gen.outputs["statistics"]
    schema_gen = SchemaGen(weight=label.weight, statistics=statistics)
    schema = schema_gen.outputs["schema"]
    nodes: list[BaseNode] = [example_gen, statistics_gen, schema_gen]

    # The schema that a person has reviewed comes before the inferred one, which is then a suggestion.
    if config.schema:
        address = stage_schema(config, target)
        reviewed_schema = Importer(address, standard_artifacts.Schema).with_id("ReviewedSchema")
        schema = reviewed_schema.outputs["result"]
        nodes.append(reviewed_schema)

    # Bad data must not become a model: grave findings stop the run before Transform.
    schema_file = config.schema and repository.in_repository(config.schema)
    by_time = isinstance(config.data.split_by, TimeSplit)
    split_by: Literal["hash", "time", "files"] = "files" if config.data.splits else "time" if by_time else "hash"
    validating = ValidatorSettings(label, config.data_checks, schema_file, reference_root, kept, split_by)
    example_validator = ExampleValidator(validating, statistics=statistics, examples=examples, schema=schema)
    example_validator.add_upstream_node(schema_gen)
    gate = DataGate(anomalies=example_validator.outputs["anomalies"])

    # Simple models on the same rows: a model that is worth its training beats them.
    baselines = Baselines(label, examples=examples, schema=schema)
    baselines.add_upstream_node(gate)

    # Raw features → model features, by statistics of the train split only.
    preprocessing, preprocessing_fingerprint = package("preprocessing_fn", "stats_options_updater_fn")
    transform = Transform(
        examples=examples,
        schema=schema,
        module_path=preprocessing,
        # Part of the cache key of the step, so only what its user code needs of the config.
        custom_config={
            "label": label.name,
            "classes": label.classes,
            **({"weight": label.weight} if label.weight else {}),
        },
        # StatisticsGen has described the data; describing it again, before and after, is a fifth of the step.
        disable_statistics=True,
        disable_analyzer_cache=True,
        kept=kept,
        # The Evaluator gives the model raw examples of the test split.
        splits_config=transform_pb2.SplitsConfig(analyze=["train"], transform=["train", "eval"]),
    )
    transform.add_upstream_node(gate)
    nodes += [example_validator, gate, baselines, transform]

    settings = Settings.of_config(config, _weights_fingerprint(config.training.backbone_weights))
    inputs: dict[str, Any] = {
        "examples": transform.outputs["transformed_examples"],
        "transform_graph": transform.outputs["transform_graph"],
        "schema": schema,
        # Where the config has none, the executors count the steps of one pass.
        "train_args": trainer_pb2.TrainArgs(num_steps=config.training.train_steps),
        "eval_args": trainer_pb2.EvalArgs(num_steps=config.training.eval_steps),
    }

    # The best hyperparameters, judged on the eval split: searched for now, of the last search, or none.
    if user_code.searches(config):
        searching, _ = package("tuner_fn")
        of_search = dataclasses.asdict(settings.of_search(config.tuning))
        tuner = Tuner(module_path=searching, custom_config=of_search, **inputs)
        inputs["hyperparameters"] = tuner.outputs["best_hyperparameters"]
        nodes.append(tuner)
    elif config.tuning.mode == "reuse":
        last_search = Resolver(
            LatestArtifactStrategy, best_hyperparameters=Channel(type=standard_artifacts.HyperParameters)
        ).with_id("LastSearch")
        inputs["hyperparameters"] = last_search.outputs["best_hyperparameters"]
        nodes.append(last_search)

    # A warm start begins with the weights of the last blessed model.
    if config.training.warm_start:
        start = Resolver(
            LatestBlessedModelStrategy,
            model=Channel(type=standard_artifacts.Model),
            model_blessing=Channel(type=standard_artifacts.ModelBlessing),
        ).with_id("ModelToStartFrom")
        inputs["base_model"] = start.outputs["model"]
        nodes.append(start)

    # One model, trained on the train split, stopped early on the eval split.
    running, running_fingerprint = package("run_fn")
    trainer = Trainer(module_path=running, custom_config=dataclasses.asdict(settings), **inputs)
    model = trainer.outputs["model"]

    # A model that is wrong where it is served is good for nothing: does it predict there as it did in training?
    model_check = ModelCheck(
        model=model,
        model_run=trainer.outputs["model_run"],
        examples=examples,
        schema=schema,
        checks=config.model_checks,
        label=label,
        threshold=evaluation.threshold,
        logits=evaluation.logits,
    )
    infra_blessing = model_check.outputs["blessing"]
    nodes += [trainer, model_check]

    # Metrics, slices and gates on the test split, which no step has used before; compared with an earlier model.
    earlier = None
    if evaluation.baseline == LAST_BLESSED:
        resolver = last_blessed(trainer, target)
        earlier = resolver.outputs["model"]
        nodes.append(resolver)
    elif evaluation.baseline != NO_BASELINE:
        address = model_of_run(target.metadata, evaluation.baseline)
        importer = Importer(address, standard_artifacts.Model).with_id("BaselineModel")
        earlier = importer.outputs["result"]
        nodes.append(importer)
    evaluator = Evaluator(
        examples=examples,
        model=model,
        baseline_model=earlier,
        schema=schema,
        infra_blessing=infra_blessing,
        baselines=baselines.outputs["baselines"],
        evaluation=evaluation,
        label=label,
    )

    # Only a model with both blessings is pushed to the folder that is served.
    pusher = Pusher(
        model=model,
        model_blessing=evaluator.outputs["blessing"],
        infra_blessing=infra_blessing,
        push_destination=pusher_pb2.PushDestination(
            filesystem=pusher_pb2.PushDestination.Filesystem(base_directory=target.push_to)
        ),
        custom_config={
            "keep": target.keep_versions,
            # For the manifest of the version.
            "fingerprints": {"preprocessing_fn": preprocessing_fingerprint, "run_fn": running_fingerprint},
        },
    )

    # The results of all gates in one place, for the runners, and the reference for the next run's data.
    verdict = Verdict(
        model_blessing=evaluator.outputs["blessing"],
        infra_blessing=infra_blessing,
        pushed_model=pusher.outputs["pushed_model"],
        statistics=statistics,
        baselines=baselines.outputs["baselines"],
        reference_root=reference_root,
    )
    nodes += [evaluator, pusher, verdict]
    if engine.usable(target.engine):
        engine.accelerate(nodes)
    metadata = target.metadata and metadata_store_pb2.ConnectionConfig(
        sqlite=metadata_store_pb2.SqliteMetadataSourceConfig(filename_uri=target.metadata)
    )
    return Pipeline(
        pipeline_name=config.name.replace("_", "-"),  # Vertex AI takes no "_" here
        pipeline_root=target.pipeline_root,
        components=nodes,
        enable_cache=target.caching,
        metadata_connection_config=metadata,
        beam_pipeline_args=list(target.beam_args),
    )


def _on_sample(config: PipelineConfig) -> PipelineConfig:
    """Return the same config for rows that come from an ExampleGen: without spans, or an earlier search of all rows."""
    tuning = dataclasses.replace(config.tuning, mode="off") if config.tuning.mode == "reuse" else config.tuning
    return dataclasses.replace(config, data=Data(config.data.path, images=config.data.images), tuning=tuning)


def model_of_run(metadata: str | None, run: str) -> str:
    """Return the address of the model that a run in a metadata file has trained; an address stays as it is."""
    if "/" in run:
        return run
    models: dict[str, str] = {}
    if metadata and Path(metadata).is_file():
        with store.opened(Path(metadata).parent) as opened:
            trained = {found.name: found.artifact("Trainer", "model") for found in store.runs_of(opened)}
        models = {name: artifact.uri for name, artifact in trained.items() if artifact}
    if run not in models:
        raise UserError(
            f"evaluation.baseline: no run {run!r} with a model; the last runs with one: "
            f"{', '.join(sorted(models)[-5:]) or 'none'}. Name one of them, the address of a model, "
            f'"{LAST_BLESSED}" or "{NO_BASELINE}"'
        )
    return models[run]


def _weights_fingerprint(weights: str | None) -> str | None:
    """Return a digest of the file of a backbone's weights, so that other weights train anew."""
    if not weights or weights == "imagenet":
        return weights
    file = weights if weights.endswith(".h5") else f"{weights.rstrip('/')}/{BACKBONE}"
    if not filesystem.exists(file):
        raise UserError(
            f'training.backbone_weights: no file {file}; expected "imagenet", a .weights.h5 file, or the folder of a '
            "pushed model with a backbone"
        )
    return hashlib.sha256(filesystem.read_bytes(file)).hexdigest()
