"""Shared parts of the command lines: help texts, the flags that choose a pipeline, and its config."""

import argparse
import difflib
import re
import resource
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

from pipeline.errors import UserError
from pipeline.filesystem import is_remote
from pipeline.packaging.user_code import read_module
from pipeline.settings.checks import ConfigError
from pipeline.settings.config import PipelineConfig, TuningMode, load_config
from pipeline.settings.names import shortened
from pipeline.settings.repository import shown
from pipeline.settings.target import EngineName, Target

PIPELINE = "flights"
SUCCEEDED, FAILED, WRONG_ARGUMENTS, INTERRUPTED = 0, 1, 2, 130
# Address space after the imports of a run (VmPeak), and what a run of a small table gets on with.
IMPORTED, LEAST_MEMORY = int(2.1 * 2**30), 4 << 30


def make_parser(prog: str, description: str, exit_codes: Mapping[int, str], note: str = "") -> argparse.ArgumentParser:
    """Return a parser whose help ends with the exit codes."""
    codes = {FAILED: "failed", WRONG_ARGUMENTS: "wrong arguments", INTERRUPTED: "interrupted", **exit_codes}
    listed = "; ".join(f"{code} {meaning}" for code, meaning in sorted(codes.items()))
    return argparse.ArgumentParser(prog=prog, description=description, epilog=f"{note} Exit codes: {listed}.".strip())


def positive(text: str) -> int:
    """Return a whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, got {text!r}")
    return int(text)


def add_pipeline_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose a pipeline and the folder of its runs."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--pipeline", default=PIPELINE, help="name of the pipeline: configs/NAME.py (%(default)s)")
    group.add_argument("--config", help="config file, in place of the pipeline's")
    parser.add_argument("--output", help="folder for artifacts, logs and pushed models (output/<name>)")


def output_folder(arguments: argparse.Namespace, root: Path, config: PipelineConfig) -> Path:
    """Return the output folder of a pipeline's runs."""
    return Path(arguments.output).absolute() if arguments.output else root / "output" / config.name


def chosen_config(arguments: argparse.Namespace, root: Path) -> PipelineConfig:
    """Read the config of the pipeline that the command line names; its relative paths start at ``root``."""
    file = Path(arguments.config) if arguments.config else config_file(root, arguments.pipeline)
    return load_config(file).with_paths_from(root)


def pipeline_flags(arguments: argparse.Namespace) -> str:
    """Return the flags that name the same pipeline in another command, each after a space; none for the default."""
    pipeline = None if arguments.config or arguments.pipeline == PIPELINE else arguments.pipeline
    flags = {"--config": arguments.config, "--pipeline": pipeline, "--output": arguments.output}
    return "".join(f" {flag} {shlex.quote(value)}" for flag, value in flags.items() if value)


def config_file(root: Path, name: str) -> Path:
    """Return the config file of a pipeline by its name."""
    path = root / "configs" / f"{name}.py"
    if not path.is_file():
        # configs/ also holds machines and endpoints.
        texts = {file.stem: file.read_text(encoding="utf-8", errors="replace") for file in path.parent.glob("*.py")}
        names = sorted(stem for stem, text in texts.items() if re.search(r"^CONFIG\b", text, re.MULTILINE))
        close = difflib.get_close_matches(name, names, 3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"there is {shortened(names) or 'none'}."
        command = f"python -m pipeline new {name if name.isidentifier() else 'NAME'} --data FILE --label COLUMN"
        raise ConfigError(f"no pipeline {name!r} in {shown(path.parent)}: {hint} To make one of your data: {command}")
    return path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of both runners that choose a pipeline and replace settings of its config."""
    add_pipeline_arguments(parser)
    parser.add_argument("--data", help="file, folder or address of the data, in place of the config's")
    parser.add_argument("--module", help="module file, in place of the config's")
    parser.add_argument("--tuning", choices=get_args(TuningMode), help="search, reuse the last best values, or off")
    add_engine_argument(parser)


def add_engine_argument(parser: argparse.ArgumentParser) -> None:
    """Add the flag that turns the accelerators off."""
    parser.add_argument(
        "--engine",
        choices=get_args(EngineName),
        default="fast",
        help="fast: with the accelerators of pipeline/fast; stock: TFX's own executors and launcher (%(default)s)",
    )


def configured(arguments: argparse.Namespace, root: Path) -> PipelineConfig:
    """Return the config with the settings of the command line; its relative paths start at ``root``."""
    config = chosen_config(arguments, root)
    if arguments.data:
        path = arguments.data if is_remote(arguments.data) else str(Path(arguments.data).absolute())
        config = replace(config, data=replace(config.data, path=path, prepare=None))
    if arguments.module:
        config = replace(config, module=str(Path(arguments.module).absolute()))
    if arguments.tuning:
        config = replace(config, tuning=replace(config.tuning, mode=arguments.tuning))
    return config


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose a Beam runner for the data steps."""
    parser.add_argument("--beam-runner", help="engine of the data steps, such as FlinkRunner (this process)")
    parser.add_argument(
        "--beam-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of Beam or of that engine, such as flink_master=HOST:8081; may be repeated",
    )


def local_target(arguments: argparse.Namespace, output: Path, name: str) -> Target:
    """Return this machine, with the engine of Beam that the command line names."""
    if not arguments.beam_runner:
        if arguments.beam_option:
            raise UserError(f"--beam-option {arguments.beam_option[0]} needs --beam-runner, whose option it is")
        return replace(Target.local(output, name, arguments.keep_versions), engine=arguments.engine)
    options: dict[str, str] = {}
    for option in arguments.beam_option:
        key, _, value = option.partition("=")
        if key in options:
            raise UserError(f"--beam-option {key} is there twice, {options[key]!r} and {value!r}; leave one out")
        options[key] = value
    target = Target.beam(output, name, arguments.beam_runner, options, arguments.keep_versions)
    return replace(target, engine=arguments.engine)


def check_memory() -> None:
    """Check the memory limit: short of memory, some modules of TensorFlow and TFX import without their parts."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < LEAST_MEMORY:
        raise UserError(
            f"this shell limits a process to {limit / 2**30:.1f} GiB of memory (ulimit -v), of which TensorFlow and "
            f"TFX take {IMPORTED / 2**30:.1f} GiB by themselves; allow {LEAST_MEMORY >> 30} GiB or more: "
            f"ulimit -v {LEAST_MEMORY >> 10}"
        )


def check_files(config: PipelineConfig) -> None:
    """Check schema and module file as far as that needs no TensorFlow."""
    if config.schema and not Path(config.schema).is_file():
        raise UserError(
            f"no schema at {shown(config.schema)}; write one with python -m pipeline schema, or leave it out"
        )
    read_module(Path(config.module))
