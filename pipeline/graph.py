"""Create the graph, the same for every target.

ExampleGen → StatisticsGen → SchemaGen → ExampleValidator → DataGate → Baselines → Transform → Tuner → Trainer →
ModelCheck → Evaluator → Pusher → Verdict
"""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from ml_metadata.proto import metadata_store_pb2
from tfx.dsl.components.base.base_node import BaseNode
from tfx.dsl.components.common.importer import Importer
from tfx.dsl.components.common.resolver import Resolver
from tfx.dsl.input_resolution.strategies.latest_artifact_strategy import LatestArtifactStrategy
from tfx.dsl.input_resolution.strategies.latest_blessed_model_strategy import LatestBlessedModelStrategy
from tfx.orchestration.pipeline import Pipeline
from tfx.proto import pusher_pb2, trainer_pb2, transform_pb2
from tfx.types import BaseChannel, Channel, standard_artifacts

from pipeline import fast, filesystem
from pipeline.components.baselines import Baselines
from pipeline.components.data_gate import DataGate, ExampleValidator
from pipeline.components.earlier_model import find_baseline
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
from pipeline.model.export_format import BACKBONE
from pipeline.packaging import user_code
from pipeline.settings import repository
from pipeline.settings.config import Data, PipelineConfig
from pipeline.settings.target import Target


@dataclasses.dataclass(frozen=True)
class _DataSteps:
    """Nodes up to the data gate, and their outputs."""

    nodes: list[BaseNode]
    gate: DataGate
    baselines: BaseChannel
    examples: BaseChannel
    statistics: BaseChannel
    schema: BaseChannel


@dataclasses.dataclass(frozen=True)
class _TrainingSteps:
    """Nodes from Transform to the Trainer, and the fingerprints of the user code by entry point."""

    nodes: list[BaseNode]
    trainer: Trainer
    fingerprints: dict[str, str]


def create_pipeline(config: PipelineConfig, target: Target, sample: Sample | None = None) -> Pipeline:
    """Return the pipeline of a config for a target; only the target differs between this machine and Vertex AI.

    Write the wheels with the user's code and a copy of the reviewed schema below ``target.files``, both under names
    with their fingerprint, so that a step runs again exactly when its input has changed.

    Args:
        config: WHAT.
        target: WHERE.
        sample: Rows of an earlier run that it learns from and is judged by, in place of all that ExampleGen reads.

    Raises:
        UserError: the module file or a setting is not usable.
    """
    if sample:
        config = _on_sample(config)
    data = _data_steps(config, target, sample)
    training = _training_steps(config, target, data)
    judging = _judging_steps(config, target, data, training)
    nodes = [*data.nodes, *training.nodes, *judging]
    if fast.usable(target.engine):
        fast.accelerate(nodes)
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


def _data_steps(config: PipelineConfig, target: Target, sample: Sample | None) -> _DataSteps:
    """Return the steps that read, describe and check the data."""
    # Raw rows in, tf.Examples out, in the splits train, eval and test.
    example_gen = create_example_gen(config, target, _kept(config, target), sample)
    examples = example_gen.outputs["examples"]

    # Statistics of all splits, and the schema inferred from them: a value that is missing in one split only must not
    # stop Transform.
    statistics_gen = StatisticsGen(examples=examples, images=config.data.images, kept=_kept(config, target))
    statistics = statistics_gen.outputs["statistics"]
    schema_gen = SchemaGen(weight=config.label.weight, statistics=statistics)
    schema = schema_gen.outputs["schema"]
    nodes: list[BaseNode] = [example_gen, statistics_gen, schema_gen]

    # The schema that a person has reviewed comes before the inferred one, which is then a suggestion.
    if config.schema:
        address = stage_schema(Path(config.schema), config.label, config.evaluation.sliced_by, target)
        reviewed_schema = Importer(address, standard_artifacts.Schema).with_id("ReviewedSchema")
        schema = reviewed_schema.outputs["result"]
        nodes.append(reviewed_schema)

    # Bad data must not become a model: grave findings stop the run before Transform.
    example_validator = ExampleValidator(
        statistics=statistics,
        examples=examples,
        schema=schema,
        label=config.label,
        checks=config.data_checks,
        schema_file=config.schema and repository.in_repository(config.schema),
        reference_root=_reference_root(config, target),
        kept=_kept(config, target),
    )
    example_validator.add_upstream_node(schema_gen)
    gate = DataGate(anomalies=example_validator.outputs["anomalies"])

    # Simple models on the same rows: a model that is worth its training beats them.
    baselines = Baselines(label=config.label, examples=examples, schema=schema)
    baselines.add_upstream_node(gate)
    return _DataSteps(
        [*nodes, example_validator, gate, baselines],
        gate,
        baselines.outputs["baselines"],
        examples,
        statistics,
        schema,
    )


def _training_steps(config: PipelineConfig, target: Target, data: _DataSteps) -> _TrainingSteps:
    """Return the steps that make features, search for hyperparameters and train a model."""
    # Part of the cache key of a step, so only what its user code needs of the config.
    label = {"label": config.label.name, **({"weight": config.label.weight} if config.label.weight else {})}

    # Raw features → model features, by statistics of the train split only.
    preprocessing = _package(["preprocessing_fn", "stats_options_updater_fn"], config, target)
    transform = Transform(
        examples=data.examples,
        schema=data.schema,
        module_path=_module_path(preprocessing, target),
        custom_config=label,
        # StatisticsGen has described the data; describing it again, before and after, is a fifth of the step.
        disable_statistics=True,
        disable_analyzer_cache=True,
        kept=_kept(config, target),
        # The Evaluator gives the model raw examples of the test split.
        splits_config=transform_pb2.SplitsConfig(analyze=["train"], transform=["train", "eval"]),
    )
    transform.add_upstream_node(data.gate)
    nodes: list[BaseNode] = [transform]

    settings = {**dataclasses.asdict(config.training), "objective": config.objective, **label}
    if config.training.backbone_weights:
        settings["weights_fingerprint"] = _weights_fingerprint(config.training.backbone_weights)
    # A search is for the network, from its first weights, and is not profiled.
    not_searched = ("members", "calibration", "explain_rows", "warm_start", "profile")
    of_trainer = {name: settings.pop(name) for name in not_searched}
    classes = {"classes": list(config.label.classes)} if config.training.class_weight else {}
    inputs: dict[str, Any] = {
        "examples": transform.outputs["transformed_examples"],
        "transform_graph": transform.outputs["transform_graph"],
        "schema": data.schema,
        # Where the config has none, the executors count the steps of one pass.
        "train_args": trainer_pb2.TrainArgs(num_steps=settings.pop("train_steps")),
        "eval_args": trainer_pb2.EvalArgs(num_steps=settings.pop("eval_steps")),
    }

    # The best hyperparameters, judged on the eval split: searched for now, of the last search, or none.
    if user_code.searches(config):
        tuner = Tuner(
            module_path=_module_path(_package(["tuner_fn"], config, target), target),
            custom_config={
                **settings,
                **classes,
                "epochs": config.tuning.epochs,
                "trials": config.tuning.trials,
                "minutes": config.tuning.minutes,
                "search_rows": config.tuning.rows,
            },
            **inputs,
        )
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
        last_blessed = Resolver(
            LatestBlessedModelStrategy,
            model=Channel(type=standard_artifacts.Model),
            model_blessing=Channel(type=standard_artifacts.ModelBlessing),
        ).with_id("ModelToStartFrom")
        inputs["base_model"] = last_blessed.outputs["model"]
        nodes.append(last_blessed)

    # One model, trained on the train split, stopped early on the eval split.
    running = _package(["run_fn"], config, target)
    trainer = Trainer(
        module_path=_module_path(running, target),
        custom_config={
            **settings,
            **of_trainer,
            "classes": list(config.label.classes),
            "threshold": dataclasses.asdict(config.evaluation)["threshold"],
            "coverage": config.evaluation.coverage,
            **({"images": dataclasses.asdict(config.data.images)} if config.data.images else {}),
        },
        **inputs,
    )
    fingerprints = {"preprocessing_fn": preprocessing.fingerprint, "run_fn": running.fingerprint}
    return _TrainingSteps([*nodes, trainer], trainer, fingerprints)


def _judging_steps(
    config: PipelineConfig, target: Target, data: _DataSteps, training: _TrainingSteps
) -> list[BaseNode]:
    """Return the steps that check, evaluate and push the model, and sum up."""
    model = training.trainer.outputs["model"]

    # A model that is wrong where it is served is good for nothing: does it predict there as it did in training?
    model_check = ModelCheck(
        model=model,
        model_run=training.trainer.outputs["model_run"],
        examples=data.examples,
        schema=data.schema,
        checks=config.model_checks,
        label=config.label,
        threshold=config.evaluation.threshold,
        logits=config.evaluation.logits,
    )
    infra_blessing = model_check.outputs["blessing"]

    # Metrics, slices and gates on the test split, which no step has used before; compared with a baseline.
    baseline, baseline_model = find_baseline(config.evaluation.baseline, training.trainer, target)
    evaluator = Evaluator(
        examples=data.examples,
        model=model,
        baseline_model=baseline_model,
        schema=data.schema,
        infra_blessing=infra_blessing,
        baselines=data.baselines,
        evaluation=config.evaluation,
        label=config.label,
    )

    # Only a model with both blessings is pushed to the folder that is served.
    pusher = Pusher(
        model=model,
        model_blessing=evaluator.outputs["blessing"],
        infra_blessing=infra_blessing,
        push_destination=pusher_pb2.PushDestination(
            filesystem=pusher_pb2.PushDestination.Filesystem(base_directory=target.push_to)
        ),
        # The fingerprints are for the manifest of the version.
        custom_config={"keep": target.keep_versions, "fingerprints": training.fingerprints},
    )

    # The results of all gates in one place, for the runners, and the reference for the next run's data.
    verdict = Verdict(
        model_blessing=evaluator.outputs["blessing"],
        infra_blessing=infra_blessing,
        pushed_model=pusher.outputs["pushed_model"],
        statistics=data.statistics,
        baselines=data.baselines,
        reference_root=_reference_root(config, target),
    )
    return [model_check, *([baseline] if baseline else []), evaluator, pusher, verdict]


def _on_sample(config: PipelineConfig) -> PipelineConfig:
    """Return the same config for rows that come from an ExampleGen: without spans, or an earlier search of all rows."""
    tuning = dataclasses.replace(config.tuning, mode="off") if config.tuning.mode == "reuse" else config.tuning
    return dataclasses.replace(config, data=Data(config.data.path, images=config.data.images), tuning=tuning)


def _kept(config: PipelineConfig, target: Target) -> str:
    """Return the folder of what steps make of each span of a window, for the next run; "" where nothing comes again."""
    return f"{target.pipeline_root}/_kept/{config.name}" if config.data.is_window else ""


def _reference_root(config: PipelineConfig, target: Target) -> str:
    """Return where the statistics of pushed models are kept, with which the next data is compared."""
    return f"{target.pipeline_root}/_pushed/{config.name}"


def _weights_fingerprint(weights: str) -> str:
    """Return a digest of the file of a backbone's weights, so that other weights train anew.

    Raises:
        UserError: there is no such file.
    """
    if weights == "imagenet":
        return weights
    file = weights if weights.endswith(".h5") else f"{weights.rstrip('/')}/{BACKBONE}"
    if not filesystem.exists(file):
        raise UserError(
            f'training.backbone_weights: no file {file}; expected "imagenet", a .weights.h5 file, or the folder of a '
            "pushed model with a backbone"
        )
    return hashlib.sha256(filesystem.read_bytes(file)).hexdigest()


def _package(entry_points: list[str], config: PipelineConfig, target: Target) -> user_code.UserCode:
    return user_code.package(Path(config.module), entry_points, target.files / "_wheels")


def _module_path(code: user_code.UserCode, target: Target) -> str:
    """Return the module and the address of its wheel, as TFX writes them."""
    return f"{code.module}@{target.address(code.wheel)}"
