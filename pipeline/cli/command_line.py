"""The flags that say which pipeline, of every command; those of both runners that say WHAT runs; and their config."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import get_args

from pipeline.errors import UserError
from pipeline.filesystem import is_remote
from pipeline.packaging.user_code import read_module
from pipeline.settings.checks import ConfigError
from pipeline.settings.config import PipelineConfig, TuningMode, load_config
from pipeline.settings.repository import shown

PIPELINE = "flights"


def add_pipeline_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say which pipeline."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--pipeline", default=PIPELINE, help="name of the pipeline: configs/NAME.py (%(default)s)")
    which.add_argument("--config", help="config file, in place of the pipeline's")


def chosen_config(arguments: argparse.Namespace, root: Path) -> PipelineConfig:
    """Read the config of the pipeline that the command line names; its relative paths start at ``root``.

    Raises:
        ConfigError: there is no such config, or it is wrong.
    """
    file = Path(arguments.config) if arguments.config else config_file(root, arguments.pipeline)
    return load_config(file).with_paths_from(root)


def pipeline_flags(arguments: argparse.Namespace) -> str:
    """Return the flags that name the same pipeline in another command, each after a space; none for the default."""
    if arguments.config:
        return f" --config {shlex.quote(arguments.config)}"
    return "" if arguments.pipeline == PIPELINE else f" --pipeline {shlex.quote(arguments.pipeline)}"


def config_file(root: Path, name: str) -> Path:
    """Return the config file of a pipeline by its name.

    Raises:
        ConfigError: there is none.
    """
    path = root / "configs" / f"{name}.py"
    if not path.is_file():
        # configs/ also holds machines and endpoints.
        texts = {file.stem: file.read_text(encoding="utf-8", errors="replace") for file in path.parent.glob("*.py")}
        there = sorted(stem for stem, text in texts.items() if re.search(r"^CONFIG\b", text, re.MULTILINE))
        close = difflib.get_close_matches(name, there, 3)
        names = f"did you mean {' or '.join(close)}?" if close else f"there is {', '.join(there[:30]) or 'none'}."
        make = f"python -m pipeline new {name if name.isidentifier() else 'NAME'} --data FILE --label COLUMN"
        raise ConfigError(f"no pipeline {name!r} in {shown(path.parent)}: {names} To make one of your data: {make}")
    return path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the runners."""
    add_pipeline_arguments(parser)
    parser.add_argument("--data", help="file, folder or address of the data, in place of the config's")
    parser.add_argument("--module", help="module file, in place of the config's")
    parser.add_argument("--tuning", choices=get_args(TuningMode), help="search, reuse the last best values, or off")


def configured(arguments: argparse.Namespace, root: Path) -> PipelineConfig:
    """The config with what the command line says instead; its relative paths start at ``root``.

    Raises:
        ConfigError: there is no such config, or it is wrong.
    """
    config = chosen_config(arguments, root)
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
        raise UserError(
            f"no schema at {shown(config.schema)}; write one with python -m pipeline schema, or leave it out"
        )
    read_module(Path(config.module))
