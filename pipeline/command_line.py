"""The flags of both runners that say WHAT runs, and the config that they make."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import get_args

from pipeline.config import PipelineConfig, TuningMode, config_file, load_config
from pipeline.errors import UserError
from pipeline.packaging import read_module
from pipeline.reading.files import is_remote


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--pipeline", default="flights", help="name of the pipeline: configs/NAME.py (%(default)s)")
    which.add_argument("--config", help="config file, in place of the pipeline's")
    parser.add_argument("--data", help="file, folder or address of the data, in place of the config's")
    parser.add_argument("--module", help="module file, in place of the config's")
    parser.add_argument("--tuning", choices=get_args(TuningMode), help="search, reuse the last best values, or off")


def configured(arguments: argparse.Namespace, root: Path) -> PipelineConfig:
    """The config with what the command line says instead; its relative paths start at ``root``.

    Raises:
        ConfigError: there is no such config, or it is wrong.
    """
    file = Path(arguments.config) if arguments.config else config_file(root, arguments.pipeline)
    config = load_config(file).with_paths_from(root)
    if arguments.data:
        path = arguments.data if is_remote(arguments.data) else str(Path(arguments.data).absolute())
        config = replace(config, data=replace(config.data, path=path, prepare=None))
    if arguments.module:
        config = replace(config, module=str(Path(arguments.module).absolute()))
    if arguments.tuning:
        config = replace(config, tuning=replace(config.tuning, mode=arguments.tuning))
    return config


def check_files(config: PipelineConfig) -> None:
    """Checks what can be checked of schema and module file without TensorFlow.

    Raises:
        UserError: one is not there, or the module file is none.
    """
    if config.schema and not Path(config.schema).is_file():
        raise UserError(f"no schema at {config.schema}; write one with python -m pipeline.schema, or leave it out")
    read_module(Path(config.module))
