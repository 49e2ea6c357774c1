"""Answers requests from the pushed versions, and takes the newest one back: python -m pipeline serve --help.

In a container on Vertex AI it needs no arguments: the AIP_* variables say which model, where to listen and under which
routes (https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements).
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shlex
import signal
import socket
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import FrameType

from pipeline.cli.command_line import add_pipeline_arguments, pipeline_flags
from pipeline.cli.predict import pushed_by
from pipeline.cli.terminal import silent
from pipeline.errors import UserError
from pipeline.serving.versions import Versions, model_at
from pipeline.settings.repository import shown

PORT = 8501  # TensorFlow Serving's
LOOK_EVERY = 2.0
# Answers that are under way when the server is told to end.
GRACE_SECONDS = 30


def main(argv: list[str]) -> int:
    """Runs what the command line asks for; returns the exit code."""
    arguments = parse_arguments(argv, os.environ)
    address = arguments.model or pushed_by(arguments)
    model = model_at(address)
    if arguments.rollback or arguments.restore or arguments.list:
        if isinstance(model, str):
            raise UserError(f"{model} is one model; expected a folder of versions on this machine")
        return look_after(model, arguments)
    return serve(model, arguments.name or called(address), arguments)


def parse_arguments(argv: list[str], environment: Mapping[str, str]) -> argparse.Namespace:
    """The command line, with Vertex AI's variables as its defaults."""
    on_vertex = "AIP_HTTP_PORT" in environment
    parser = argparse.ArgumentParser(
        prog="python -m pipeline serve",
        description="Answer requests from the newest pushed version, and change to a newer one as soon as it is there.",
        epilog="Ends with code 0 when told to (Ctrl-C, SIGTERM), after the requests under way are answered; 1 failed, "
        "2 wrong arguments.",
    )
    add_pipeline_arguments(parser)
    parser.add_argument(
        "--model",
        default=environment.get("AIP_STORAGE_URI") or None,
        help="folder of versions, or of one model here or in a bucket (output/<name>/serving/<name>)",
    )
    parser.add_argument("--name", help="of the model in the addresses (the folder's name)")
    parser.add_argument("--host", default="0.0.0.0" if on_vertex else "127.0.0.1", help="listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=environment.get("AIP_HTTP_PORT", PORT), help="(%(default)s)")
    parser.add_argument(
        "--health-route", default=environment.get("AIP_HEALTH_ROUTE", "/health"), help="Vertex AI's (%(default)s)"
    )
    parser.add_argument(
        "--predict-route", default=environment.get("AIP_PREDICT_ROUTE", "/predict"), help="Vertex AI's (%(default)s)"
    )
    parser.add_argument("--max-instances", type=positive, default=10_000, help="rows in a request (%(default)s)")
    parser.add_argument("--max-body-bytes", type=positive, default=10 << 20, help="of a request (%(default)s)")
    parser.add_argument("--request-log", type=Path, help="folder for what was asked and answered, as JSON lines")
    parser.add_argument("--log-share", type=share, default=1.0, help="share of rows that are logged (%(default)s)")
    upkeep = parser.add_mutually_exclusive_group()
    upkeep.add_argument("--rollback", action="store_true", help="take the newest version back, and end")
    upkeep.add_argument("--restore", action="store_true", help="undo the last rollback, and end")
    upkeep.add_argument("--list", action="store_true", help="show the versions, and end")
    parser.add_argument("--dry-run", action="store_true", help="with --rollback: only say what it would do")
    arguments = parser.parse_args(argv)
    if arguments.dry_run and not arguments.rollback:
        parser.error("--dry-run goes with --rollback")
    return arguments


def positive(text: str) -> int:
    """A whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, got {text!r}")
    return int(text)


def share(text: str) -> float:
    """A number from 0 to 1."""
    with contextlib.suppress(ValueError):
        if 0 <= float(text) <= 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"expected a share from 0 to 1, got {text!r}")


def look_after(versions: Versions, arguments: argparse.Namespace) -> int:
    """Lists, takes back or puts back versions, and says what has changed."""
    if arguments.rollback:
        change = versions.roll_back(dry_run=arguments.dry_run)
        would = "would be" if arguments.dry_run else "is"
        taken = versions if arguments.dry_run else Versions(change.kept_in.parent)
        print(f"{shown(versions.folder)}:")
        print(f"  taken back     {described(taken, change.withdrawn)}; {would} kept in {shown(change.kept_in)}")
        print(f"  served instead {described(versions, change.served)}")
        if arguments.dry_run:
            print("Nothing was changed: --dry-run.")
        else:
            which = f" --model {shlex.quote(arguments.model)}" if arguments.model else pipeline_flags(arguments)
            print("Servers that watch the folder change over by themselves.")
            print(f"To undo: python -m pipeline serve --restore{which}")
    elif arguments.restore:
        number = versions.restore()
        print(f"{shown(versions.folder)}:\n  put back       {described(versions, number)}")
        print(f"  served         {described(versions, versions.resolve())}")
    else:
        latest = versions.resolve()
        for number in versions.numbers():
            print(f"{described(versions, number)}{'  latest' if number == latest else ''}")
        for number in versions.withdrawn():
            print(f"{number}  taken back")
    return 0


def described(versions: Versions, number: int) -> str:
    """A version, when it was pushed and how good it is."""
    about = versions.manifest(number)
    auc = about.get("metrics", {}).get("auc")
    facts = [f"pushed {about['pushed_at']}" if "pushed_at" in about else "", f"auc {auc:.4f}" if auc else ""]
    text = ", ".join(fact for fact in facts if fact)
    return f"{number} ({text})" if text else str(number)


def serve(model: Versions | str, name: str, arguments: argparse.Namespace) -> int:
    """Serves until told to end."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    logger = logging.getLogger("pipeline.serve")
    logger.setLevel(logging.INFO)
    if isinstance(model, Versions):
        model.resolve()  # before TensorFlow is imported, which takes seconds
    with listen(arguments.host, arguments.port) as sock:
        with silent():
            import uvicorn

            from pipeline.serving.app import Limits, VertexRoutes, create_app
            from pipeline.serving.current import Current
            from pipeline.serving.metrics import Metrics
            from pipeline.serving.request_log import RequestLog

            limits = Limits(arguments.max_body_bytes, arguments.max_instances)
            metrics = Metrics()
            current = Current(model, name, metrics, limits.rows_waiting)
            served = current.start()
        app = create_app(
            current,
            metrics,
            limits=limits,
            vertex=VertexRoutes(arguments.health_route, arguments.predict_route),
            request_log=RequestLog(arguments.request_log, arguments.log_share) if arguments.request_log else None,
            look_every=LOOK_EVERY,
        )
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=GRACE_SECONDS)
        # uvicorn answers what is under way, and then raises the signal anew; being told to end is no failure.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _nothing)
        host, port = sock.getsockname()[:2]
        logger.info("version %d answers at http://%s:%d/v1/models/%s:predict", served.model.number, host, port, name)
        uvicorn.Server(config).run(sockets=[sock])
        logger.info("ended, with every request under way answered")
    return 0


def listen(host: str, port: int) -> socket.socket:
    """Takes the port, before anything slow starts.

    Raises:
        UserError: the port is taken, or there is no such host.
    """
    sock: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        # With SO_REUSEADDR, only this tells of another server that has bound the port and listens.
        sock.listen()
        return sock
    except (OSError, OverflowError) as error:
        if sock is not None:
            sock.close()
        reason = error.strerror if isinstance(error, OSError) else "a port is a number from 0 to 65535"
        raise UserError(
            f"cannot listen on {host}, port {port}: {reason}; choose another with --port or --host"
        ) from error


def called(address: str) -> str:
    """The name of a model: that of its folder, without the number of a version."""
    path = PurePosixPath(address.rstrip("/"))
    return path.parent.name if path.name.isdecimal() else path.name


def _nothing(number: int, frame: FrameType | None) -> None:
    pass
