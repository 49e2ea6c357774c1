"""The graph, once, for every target.

ExampleGen → StatisticsGen → SchemaGen → ExampleValidator → DataGate → Transform → Tuner → Trainer → ModelCheck →
Evaluator → Pusher → Verdict
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from ml_metadata.proto import metadata_store_pb2
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx.components import (
    FileBasedExampleGen,
    Pusher,
    Trainer,
    Transform,
    Tuner,
)
from tfx.dsl.components.base import executor_spec
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.common.importer import Importer
from tfx.dsl.components.common.resolver import Resolver
from tfx.dsl.input_resolution.strategies.latest_artifact_strategy import LatestArtifactStrategy
from tfx.dsl.input_resolution.strategies.latest_blessed_model_strategy import LatestBlessedModelStrategy
from tfx.extensions.google_cloud_big_query.example_gen.component import BigQueryExampleGen
from tfx.orchestration import pipeline as tfx_pipeline
from tfx.proto import example_gen_pb2, pusher_pb2, trainer_pb2, transform_pb2
from tfx.types import Channel, standard_artifacts

from pipeline.components import arrow_example_gen, data_gate, evaluator, model_check, model_questions, verdict
from pipeline.components import pusher as our_pusher
from pipeline.components import schema_gen as our_schema_gen
from pipeline.components import statistics_gen as our_statistics_gen
from pipeline.components import trainer as our_trainer
from pipeline.components import transform as our_transform
from pipeline.components import tuner as our_tuner
from pipeline.components.baseline import LatestOtherBlessedModelStrategy, model_of_run
from pipeline.data.files import format_of, wildcard
from pipeline.data.location import find_files, locate, query_of
from pipeline.errors import UserError
from pipeline.filesystem import is_remote
from pipeline.packaging import fingerprints, user_code
from pipeline.settings import repository
from pipeline.settings.config import Data, HashSplit, PipelineConfig, TimeSplit
from pipeline.settings.gates import LAST_BLESSED, NO_BASELINE
from pipeline.settings.target import Target
from pipeline.validation.schema_text import parse


def create_pipeline(config: PipelineConfig, target: Target) -> tfx_pipeline.Pipeline:
    """Builds the pipeline. Going to another target changes nothing but the target.

    Writes the wheels with the user's code and a copy of the reviewed schema below ``target.files``, both under names
    that hold their fingerprint, so that a step runs again exactly when what it reads has changed.

    Raises:
        UserError: the module file or a setting is not usable.
    """
    module_file = Path(config.module)
    wheels = target.files / "_wheels"
    # What a module file may want to know of the config. It is part of the steps' cache key, so only what they use.
    about_the_data = {"label": config.label.name}

    # Raw rows in, tf.Examples out, in the splits train, eval and test.
    example_gen = example_gen_of(config, target)

    # What the data looks like, and the schema one would infer from it: from all splits, for a value that is missing in
    # one of them only must not stop Transform.
    statistics_gen = our_statistics_gen.StatisticsGen(
        examples=example_gen.outputs["examples"],
        code=fingerprints.fingerprint_of(Path(our_statistics_gen.__file__)),
    )
    schema_gen = our_schema_gen.SchemaGen(
        statistics=statistics_gen.outputs["statistics"],
        code=fingerprints.fingerprint_of(Path(our_schema_gen.__file__)),
    )
    components: list[Any] = [example_gen, statistics_gen, schema_gen]

    # A schema that a person has reviewed is the truth; the inferred one is then only a suggestion.
    schema = schema_gen.outputs["schema"]
    if config.schema:
        reviewed_schema = Importer(
            source_uri=staged_schema(Path(config.schema), config.label.name, target),
            artifact_type=standard_artifacts.Schema,
        ).with_id("ReviewedSchema")
        schema = reviewed_schema.outputs["result"]
        components.append(reviewed_schema)

    # Where the data departs from the schema, from the data of the model pushed last, and from common sense; what is
    # grave ends the run before anything is made of it.
    pushed_statistics = f"{target.pipeline_root}/_pushed/{config.name}"
    example_validator = data_gate.ExampleValidator(
        statistics=statistics_gen.outputs["statistics"],
        examples=example_gen.outputs["examples"],
        schema=schema,
        label=config.label,
        checks=config.data_checks,
        schema_file=config.schema and repository.in_repository(config.schema),
        reference_root=pushed_statistics,
        code=fingerprints.fingerprint_of(Path(data_gate.__file__)),
    )
    example_validator.add_upstream_node(schema_gen)
    gate = data_gate.DataGate(anomalies=example_validator.outputs["anomalies"])
    components += [example_validator, gate]

    # Raw features → model features, by statistics of the train split only.
    preprocessing = user_code.package(module_file, ["preprocessing_fn", "stats_options_updater_fn"], wheels)
    transform = _run_from_wheel(
        Transform(
            examples=example_gen.outputs["examples"],
            schema=schema,
            module_file=str(module_file),
            custom_config={**about_the_data, "code": fingerprints.fingerprint_of(Path(our_transform.__file__))},
            # StatisticsGen has described the data; describing it again, before and after, is a fifth of the step.
            disable_statistics=True,
            disable_analyzer_cache=True,
            # The Evaluator gives the model raw examples of the test split.
            splits_config=transform_pb2.SplitsConfig(analyze=["train"], transform=["train", "eval"]),
        ),
        preprocessing,
        target,
    )
    transform.executor_spec = executor_spec.BeamExecutorSpec(our_transform.Executor)
    transform.add_upstream_node(gate)
    components.append(transform)

    inputs_of_training = {
        "examples": transform.outputs["transformed_examples"],
        "transform_graph": transform.outputs["transform_graph"],
        "schema": schema,
        # Where the config names none, the executors count those of one pass.
        "train_args": trainer_pb2.TrainArgs(num_steps=config.training.train_steps),
        "eval_args": trainer_pb2.EvalArgs(num_steps=config.training.eval_steps),
    }
    training = {**dataclasses.asdict(config.training), "objective": config.objective, **about_the_data}
    del training["train_steps"], training["eval_steps"]

    # The best hyperparameters, judged on the eval split: searched for now, taken from the last search, or none.
    hyperparameters = None
    if searches(config):
        tuning = user_code.package(module_file, ["tuner_fn"], wheels)
        tuner = _run_from_wheel(
            Tuner(
                module_file=str(module_file),
                custom_config={
                    **training,
                    "epochs": config.tuning.epochs,
                    "trials": config.tuning.trials,
                    "code": f"{tuning.fingerprint} {fingerprints.fingerprint_of(Path(our_tuner.__file__))}",
                },
                **inputs_of_training,
            ),
            tuning,
            target,
        )
        tuner.executor_spec = executor_spec.ExecutorClassSpec(our_tuner.Executor)
        hyperparameters = tuner.outputs["best_hyperparameters"]
        components.append(tuner)
    elif config.tuning.mode == "reuse":
        last_search = Resolver(
            strategy_class=LatestArtifactStrategy,
            best_hyperparameters=Channel(type=standard_artifacts.HyperParameters),
        ).with_id("LastSearch")
        hyperparameters = last_search.outputs["best_hyperparameters"]
        components.append(last_search)

    # Weights to start from, if the config asks for the last blessed model's.
    base_model = None
    if config.training.warm_start:
        last_blessed = Resolver(
            strategy_class=LatestBlessedModelStrategy,
            model=Channel(type=standard_artifacts.Model),
            model_blessing=Channel(type=standard_artifacts.ModelBlessing),
        ).with_id("ModelToStartFrom")
        base_model = last_blessed.outputs["model"]
        components.append(last_blessed)

    # One model, trained on the train split, stopped early on the eval split.
    running = user_code.package(module_file, ["run_fn"], wheels)
    trainer = _run_from_wheel(
        Trainer(
            module_file=str(module_file),
            hyperparameters=hyperparameters,
            base_model=base_model,
            custom_config={
                **training,
                "classes": list(config.label.classes),
                "threshold": config.evaluation.threshold,
                "code": f"{running.fingerprint} {fingerprints.fingerprint_of(Path(our_trainer.__file__))}",
            },
            **inputs_of_training,
        ),
        running,
        target,
    )
    trainer.executor_spec = executor_spec.ExecutorClassSpec(our_trainer.Executor)

    # Whether the new model answers where it will be served as it did in training.
    checking = model_check.ModelCheck(
        model=trainer.outputs["model"],
        model_run=trainer.outputs["model_run"],
        examples=example_gen.outputs["examples"],
        schema=schema,
        checks=config.model_checks,
        label=config.label,
        threshold=config.evaluation.threshold,
        logits=config.evaluation.logits,
        code=fingerprints.fingerprint_of(Path(model_check.__file__), Path(model_questions.__file__)),
    )

    # What the new model has to beat.
    baseline = _baseline(config.evaluation.baseline, trainer, target)

    # Whether it is good enough, on the test split, which nothing before has seen.
    judging = evaluator.Evaluator(
        examples=example_gen.outputs["examples"],
        model=trainer.outputs["model"],
        baseline_model=baseline and baseline.outputs["result" if isinstance(baseline, Importer) else "model"],
        schema=schema,
        infra_blessing=checking.outputs["blessing"],
        settings=config.evaluation,
        label=config.label,
        code=fingerprints.fingerprint_of(Path(evaluator.__file__)),
    )

    # A model with both blessings goes to where it is served from.
    pusher = Pusher(
        model=trainer.outputs["model"],
        model_blessing=judging.outputs["blessing"],
        infra_blessing=checking.outputs["blessing"],
        push_destination=pusher_pb2.PushDestination(
            filesystem=pusher_pb2.PushDestination.Filesystem(base_directory=target.push_to)
        ),
        custom_config={
            "code": fingerprints.fingerprint_of(Path(our_pusher.__file__)),
            "keep": target.keep_versions,
            # Of what makes the model, for its manifest.
            "fingerprints": {"preprocessing_fn": preprocessing.fingerprint, "run_fn": running.fingerprint},
        },
        custom_executor_spec=executor_spec.ExecutorClassSpec(our_pusher.AtomicExecutor),
    )

    # What came of it, and why.
    ending = verdict.Verdict(
        model_blessing=judging.outputs["blessing"],
        infra_blessing=checking.outputs["blessing"],
        pushed_model=pusher.outputs["pushed_model"],
        statistics=statistics_gen.outputs["statistics"],
        reference_root=pushed_statistics,
        code=fingerprints.fingerprint_of(Path(verdict.__file__)),
    )

    return tfx_pipeline.Pipeline(
        pipeline_name=config.name.replace("_", "-"),  # Vertex AI takes no "_" here
        pipeline_root=target.pipeline_root,
        components=[*components, trainer, checking, *([baseline] if baseline else []), judging, pusher, ending],
        enable_cache=target.caching,
        metadata_connection_config=target.metadata
        and metadata_store_pb2.ConnectionConfig(
            sqlite=metadata_store_pb2.SqliteMetadataSourceConfig(filename_uri=target.metadata)
        ),
        beam_pipeline_args=list(target.beam_args),
    )


def searches(config: PipelineConfig) -> bool:
    """Whether the graph has a Tuner: the config asks for it and the module file has a ``tuner_fn``."""
    return config.tuning.mode == "search" and "tuner_fn" in user_code.defined_names(
        user_code.read_module(Path(config.module))
    )


def example_gen_of(config: PipelineConfig, target: Target) -> BaseComponent:
    """Our ExampleGen for files, TFX's for BigQuery; with the config's splits or rows dealt to them.

    Raises:
        UserError: there is no such data, or the target lacks what BigQuery needs.
    """
    if config.data.query_source:
        missing = [name for name in ("--project", "--temp_location") if not _is_set(name, target.beam_args)]
        if missing:
            raise UserError(
                f"to read from BigQuery the target's beam_args need {' and '.join(missing)}: a project to query in and "
                "a folder gs://... for what it exports"
            )
        query = example_gen_pb2.Input(splits=[example_gen_pb2.Input.Split(name="all", pattern=query_of(config.data))])
        return BigQueryExampleGen(input_config=query, output_config=_output_config(config.data)).with_id("ExampleGen")

    folder, patterns = locate(config.data)
    # Looking into a bucket takes credentials, which compiling does without: there, the patterns have to do.
    remote = is_remote(folder)
    formats: set[str | None] = set(map(format_of, patterns.values()))
    if not remote:
        formats = {find_files(config.data).found.format}
    split_by = config.data.split_by
    input_config = example_gen_pb2.Input(
        # TFX's driver looks for changes in all spans; the executor reads the newest.
        splits=[example_gen_pb2.Input.Split(name=name, pattern=wildcard(pattern)) for name, pattern in patterns.items()]
    )
    return FileBasedExampleGen(
        input_base=folder,
        input_config=input_config,
        output_config=_output_config(config.data) if list(patterns) == ["all"] else example_gen_pb2.Output(),
        custom_config=arrow_example_gen.settings(
            patterns=patterns,
            last_spans=config.data.last_spans,
            types=_types_of(config, formats),
            label=config.label.name,
            classes=config.label.numbers,
            time_column=split_by.column if isinstance(split_by, TimeSplit) and list(patterns) == ["all"] else None,
            max_bad_rows=config.data.max_bad_rows,
            code=fingerprints.fingerprint_of(Path(arrow_example_gen.__file__)),
        ),
        custom_executor_spec=executor_spec.BeamExecutorSpec(arrow_example_gen.Executor),
    ).with_id("ExampleGen")


def _output_config(data: Data) -> example_gen_pb2.Output:
    """How rows are dealt to splits, in TFX's words; the order of time has none and goes as a setting of ours."""
    split_config = example_gen_pb2.SplitConfig(
        splits=[
            example_gen_pb2.SplitConfig.Split(name=name, hash_buckets=share)
            for name, share in data.split_by.shares.items()
        ]
    )
    if isinstance(data.split_by, HashSplit) and data.split_by.column:
        split_config.partition_feature_name = data.split_by.column
    return example_gen_pb2.Output(split_config=split_config)


def _types_of(config: PipelineConfig, formats: set[str | None]) -> dict[str, str]:
    """The types that a reviewed schema and the label's settings give to columns of files.

    A CSV file has none of its own. Of a Parquet file's floats, some are integers with gaps.
    """
    names = {schema_pb2.INT: "integers", schema_pb2.FLOAT: "floats", schema_pb2.BYTES: "text"}
    features = parse(Path(config.schema)).feature if config.schema else []
    types = {feature.name: names[feature.type] for feature in features if feature.type in names}
    types |= {config.label.name: config.label.csv_type}  # the schema sees classes as numbers, the file may not
    if formats & {"csv", None}:
        return types
    # No more than is used: what changes here reads all files again.
    return {name: type_ for name, type_ in types.items() if type_ == "integers"} if "parquet" in formats else {}


def _is_set(option: str, beam_args: tuple[str, ...]) -> bool:
    return any(argument == option or argument.startswith(f"{option}=") for argument in beam_args)


def staged_schema(schema_file: Path, label: str, target: Target) -> str:
    """Copies the schema to a folder named by its content; TFX's cache looks at the name of an import only.

    Raises:
        UserError: the file is not a schema, or lacks the label.
    """
    content = schema_file.read_bytes()
    if label not in {feature.name for feature in parse(schema_file).feature}:
        raise UserError(
            f"{schema_file} has no feature {label!r}, the label; add it or name another label in the config"
        )
    folder = target.files / "_schemas" / hashlib.sha256(content).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schema.pbtxt").write_bytes(content)
    return target.address(folder)


def _run_from_wheel(component: BaseComponent, code: user_code.UserCode, target: Target) -> BaseComponent:
    """Lets a component run packaged code, in place of the wheel that TFX would make of the module file's folder."""
    component.exec_properties["module_file"] = None
    component.exec_properties["module_path"] = _module_path(code, target)
    return component


def _module_path(code: user_code.UserCode, target: Target) -> str:
    """What TFX calls a module path: the module and the wheel it is in."""
    return f"{code.module}@{target.address(code.wheel)}"


def _baseline(wanted: str, trainer: BaseComponent, target: Target) -> Resolver | Importer | None:
    """The step that finds the model to compare with, if there is to be one.

    Raises:
        UserError: there is no such run.
    """
    if wanted == NO_BASELINE:
        return None
    if wanted != LAST_BLESSED:
        address = model_of_run(target.metadata, wanted)
        return Importer(source_uri=address, artifact_type=standard_artifacts.Model).with_id("BaselineModel")
    channels = {
        "model": Channel(type=standard_artifacts.Model),
        "model_blessing": Channel(type=standard_artifacts.ModelBlessing),
    }
    if target.vertex is None:
        # Any other than the one just trained.
        baseline = Resolver(
            strategy_class=LatestOtherBlessedModelStrategy, candidate=trainer.outputs["model"], **channels
        )
    else:
        # Vertex AI resolves by queries of its own and knows TFX's strategy only.
        baseline = Resolver(strategy_class=LatestBlessedModelStrategy, **channels)
        baseline.add_upstream_node(trainer)
    return baseline.with_id("LatestBlessedModel")
