"""Answer requests from the pushed versions, and take the newest one back: python -m pipeline serve --help.

In a container on Vertex AI it needs no arguments: the AIP_* variables name the model, the port and the routes
(https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import ipaddress
import logging
import os
import shlex
import signal
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pipeline import processes
from pipeline.cli.command_line import add_pipeline_arguments, make_parser, pipeline_flags, positive
from pipeline.cli.predict import pushed_by
from pipeline.cli.printing import LogFormatter, say
from pipeline.cli.terminal import silence_stderr
from pipeline.errors import UserError
from pipeline.model.versions import MANIFEST_KEY, Versions, manifest_key, model_at
from pipeline.serving.request_log import RequestLog
from pipeline.settings.repository import shown

if TYPE_CHECKING:
    from pipeline.serving.answering import Answering

PORT, GRPC_PORT = 8501, 8500  # TensorFlow Serving's
TOKEN = "PIPELINE_SERVE_TOKEN"  # environment variable
# Folder in which processes share their metrics; Prometheus's library looks when it is imported.
METRICS = "PROMETHEUS_MULTIPROC_DIR"
LOOK_EVERY = 2.0  # seconds between two looks for another version


def main(argv: list[str]) -> int:
    """Serve or manage versions as the command line says; return the exit code."""
    arguments = parse_arguments(argv, os.environ)
    address = arguments.model or pushed_by(arguments)
    model = model_at(address)
    if arguments.rollback or arguments.restore or arguments.list:
        if isinstance(model, str):
            raise UserError(f"{model} is one model; expected a folder of versions on this machine")
        manage_versions(model, arguments)
    else:
        arguments.name = arguments.name or name_of(address)
        serve(model, arguments)
    return 0


def parse_arguments(argv: list[str], environment: Mapping[str, str]) -> argparse.Namespace:
    """Return the arguments of the command line, with Vertex AI's variables as defaults."""
    on_vertex = "AIP_HTTP_PORT" in environment
    parser = make_parser(
        "python -m pipeline serve",
        "Answer requests from the newest pushed version, and change to a newer one as soon as it is there.",
        {0: "stopped by Ctrl-C or SIGTERM, with all requests answered"},
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
        "--grpc-port", type=int, help=f"answer TensorFlow Serving's gRPC calls too, there at {GRPC_PORT} (none)"
    )
    parser.add_argument(
        "--processes",
        type=positive,
        default=1,
        help="that answer at the port, each with the model: Python computes on one core (%(default)s)",
    )
    parser.add_argument("--token-file", type=Path, help=f"file with the token that requests must bring (${TOKEN})")
    parser.add_argument(
        "--no-token", action="store_true", help="answer whoever reaches it: something in front checks who asks"
    )
    parser.add_argument("--max-instances", type=positive, default=10_000, help="rows in a request (%(default)s)")
    parser.add_argument("--max-body-bytes", type=positive, default=10 << 20, help="of a request (%(default)s)")
    parser.add_argument(
        "--grace-seconds",
        type=positive,
        default=30,
        help="to answer what has begun, after a signal to end (%(default)s)",
    )
    parser.add_argument("--request-log", type=Path, help="folder for a log of requests and answers, as JSON lines")
    parser.add_argument("--log-share", type=share, default=1.0, help="share of rows that are logged (%(default)s)")
    parser.add_argument("--log-days", type=positive, default=30, help="days that are kept of the log (%(default)s)")
    parser.add_argument("--log-bytes", type=positive, default=1 << 30, help="of the log of a day (%(default)s)")
    parser.add_argument("--log-without", action="append", default=[], metavar="COLUMN", help="not logged; repeatable")
    managing = parser.add_mutually_exclusive_group()
    managing.add_argument("--rollback", action="store_true", help="take the newest version back, and end")
    managing.add_argument("--restore", action="store_true", help="undo the last rollback, and end")
    managing.add_argument("--list", action="store_true", help="show the versions, and end")
    parser.add_argument("--dry-run", action="store_true", help="with --rollback: only say what it would do")
    arguments = parser.parse_args(argv)
    if arguments.dry_run and not arguments.rollback:
        parser.error("--dry-run goes with --rollback")
    return arguments


def share(text: str) -> float:
    """Return a number from 0 to 1."""
    with contextlib.suppress(ValueError):
        if 0 <= float(text) <= 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"expected a share from 0 to 1, got {text!r}")


def manage_versions(versions: Versions, arguments: argparse.Namespace) -> None:
    """List versions, roll back or restore a version, and print the changes."""
    if arguments.rollback:
        withdrawn, served = versions.roll_back(dry_run=arguments.dry_run)
        kept_in = shown(versions.withdrawn.path(withdrawn))
        would_be, taken = ("would be", versions) if arguments.dry_run else ("is", versions.withdrawn)
        say(f"{shown(versions.folder)}:")
        say(f"  taken back     {describe(taken, withdrawn)}; {would_be} kept in {kept_in}")
        say(f"  served instead {describe(versions, served)}")
        if arguments.dry_run:
            say("Nothing was changed: --dry-run.")
        else:
            which = f" --model {shlex.quote(arguments.model)}" if arguments.model else pipeline_flags(arguments)
            say("Servers that watch the folder change over by themselves.")
            say(f"To undo: python -m pipeline serve --restore{which}")
    elif arguments.restore:
        number = versions.restore()
        say(f"{shown(versions.folder)}:\n  put back       {describe(versions, number)}")
        say(f"  served         {describe(versions, versions.resolve())}")
    else:
        latest = versions.resolve()
        for number in versions.numbers():
            say(f"{describe(versions, number)}{'  latest' if number == latest else ''}")
        for number in versions.withdrawn.numbers():
            say(f"{number}  taken back")


def describe(versions: Versions, number: int) -> str:
    """Return a version's number, when it was pushed and how good it is."""
    manifest = versions.manifest(number)
    auc = manifest.get("metrics", {}).get("auc")
    facts = [f"pushed {manifest['pushed_at']}"] if "pushed_at" in manifest else []
    facts += [f"auc {auc:.4f}"] if auc else []
    return f"{number} ({', '.join(facts)})" if facts else str(number)


def serve(model: Versions | str, arguments: argparse.Namespace) -> None:
    """Serve until a signal stops the server."""
    lines = logging.StreamHandler()
    lines.setFormatter(LogFormatter("%(asctime)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[lines])
    logger = logging.getLogger("pipeline.serve")
    logger.setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # invalid requests would otherwise fill the log
    arguments.token = token_of(arguments, os.environ)
    check_access(arguments, on_vertex="AIP_HTTP_PORT" in os.environ)
    manifest_key()
    if isinstance(model, Versions):
        model.resolve()  # before TensorFlow is imported, which takes seconds
    if arguments.grpc_port is not None:
        listen(arguments.host, arguments.grpc_port, "--grpc-port").close()  # gRPC takes no socket that listens
    with listen(arguments.host, arguments.port, "--port") as sock:
        host, port = sock.getsockname()[:2]
        address = f"http://{host}:{port}/v1/models/{arguments.name}:predict"
        signed = "signed" if manifest_key() else f"not signed: no ${MANIFEST_KEY}"
        number = arguments.processes
        in_all = f", {number} processes" if number > 1 else ""

        def say_version(version: int) -> None:
            logger.info("version %d answers at %s (%s%s)", version, address, signed, in_all)

        if number == 1:
            answer(model, arguments, sock, say_version)
    if number > 1:
        arguments.port = port
        serve_in_processes(model, arguments, say_version)


def serve_in_processes(model: Versions | str, arguments: argparse.Namespace, on_start: Callable[[int], object]) -> None:
    """Serve in several processes until a signal ends them all, or one of them ends."""
    logger, lines = logging.getLogger("pipeline"), logging.getLogger().handlers
    # The handlers of this logger receive the log records of each process, so the process must not print them as well.
    logger.handlers, logger.propagate = list(lines), False
    names = [f"process {place + 1} of {arguments.processes}" for place in range(arguments.processes)]
    loaded: list[int] = []
    each_in_turn, asked_to = threading.Lock(), threading.Event()
    with tempfile.TemporaryDirectory(prefix="metrics-") as folder:
        os.environ[METRICS] = folder
        with silence_stderr():
            from concurrent.futures import ThreadPoolExecutor, as_completed

            import tensorflow  # noqa: F401  # loaded once for all

            import pipeline.serving.app  # noqa: F401
        with processes.processes() as made:
            if made is None:
                raise UserError("--processes needs Linux and two cores; leave it out")

            def is_ready(version: int) -> None:
                with each_in_turn:
                    loaded.append(version)
                    if len(loaded) == arguments.processes:
                        on_start(max(loaded))

            def end(*_: object) -> None:
                asked_to.set()
                made.kill_all(names, signal.SIGTERM)

            with ThreadPoolExecutor(arguments.processes) as pool:
                for one in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(one, end)
                ended = {
                    pool.submit(made.run, serve_in_process, model, arguments, name=name, answer=is_ready): name
                    for name in names
                }
                first = next(as_completed(ended))
                made.kill_all(names, signal.SIGTERM)
    # A process that is ended while it loads gives no reason.
    if (error := first.exception()) and not asked_to.is_set():
        raise UserError(f"{ended[first]}: {error}")


def serve_in_process(model: Versions | str, arguments: argparse.Namespace) -> None:
    """Serve in one of several processes that share the ports, and the cores."""
    import tensorflow as tf

    cores = max(1, len(os.sched_getaffinity(0)) // arguments.processes)
    tf.config.threading.set_inter_op_parallelism_threads(cores)
    tf.config.threading.set_intra_op_parallelism_threads(cores)
    with listen(arguments.host, arguments.port, "--port", shared=True) as sock:
        answer(model, arguments, sock, processes.ask)


def answer(
    model: Versions | str, arguments: argparse.Namespace, sock: socket.socket, on_start: Callable[[int], object]
) -> None:
    """Answer at a socket that listens, until a signal stops the server."""
    logger = logging.getLogger("pipeline.serve")
    with silence_stderr():
        import uvicorn

        from pipeline.serving.answering import Answering
        from pipeline.serving.app import create_app
        from pipeline.serving.bodies import Limits
        from pipeline.serving.connections import LOOPBACK, Connection, Guard
        from pipeline.serving.current import Current
        from pipeline.serving.metrics import Metrics

        limits = Limits(arguments.max_body_bytes, arguments.max_instances)
        metrics = Metrics(shared=arguments.processes > 1)
        current = Current(model, arguments.name, metrics, limits.rows_waiting)
        served = current.start()
    for problem in current.problems:
        logger.error("%s", problem)
    health_route = os.environ.get("AIP_HEALTH_ROUTE", "/health")
    log, without = arguments.request_log, frozenset(arguments.log_without)
    settings = {"days": arguments.log_days, "day_bytes": arguments.log_bytes, "without": without}
    answering = Answering(current, metrics, limits, log and RequestLog(log, arguments.log_share, **settings))
    app = create_app(
        answering,
        health_route=health_route,
        predict_route=os.environ.get("AIP_PREDICT_ROUTE", "/predict"),
        look_every=LOOK_EVERY,
        beside=functools.partial(also_by_grpc, answering, arguments),
    )
    open_to_all = arguments.token is not None or arguments.no_token or "AIP_HTTP_PORT" in os.environ
    guard = Guard(app, arguments.token, () if open_to_all else LOOPBACK | {arguments.host}, {health_route})
    config = uvicorn.Config(
        guard,
        http=Connection,
        ws="none",  # upgraded connections would have no limits
        log_config=None,
        access_log=False,
        proxy_headers=False,  # no code here uses the client address behind a proxy
        timeout_graceful_shutdown=arguments.grace_seconds,
    )
    # uvicorn answers the requests that have begun, and then raises the signal again, which is no failure.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    on_start(served.model.number)
    uvicorn.Server(config).run(sockets=[sock])
    if guard.cut_off:
        logger.error("ended; %d requests under way were cut off after %d s", guard.cut_off, arguments.grace_seconds)
    else:
        logger.info("ended, with every request under way answered")


@contextlib.asynccontextmanager
async def also_by_grpc(answering: Answering, arguments: argparse.Namespace) -> AsyncIterator[None]:
    """Answer gRPC calls while the block runs, if there is a port for them."""
    if arguments.grpc_port is None:
        yield
        return
    from pipeline.serving.grpc_server import grpc_server

    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    address, shared = f"{host}:{arguments.grpc_port}", arguments.processes > 1
    async with grpc_server(answering, address, arguments.token, arguments.grace_seconds, shared=shared) as port:
        logging.getLogger("pipeline.serve").info("gRPC calls are answered at %s:%d", host, port)
        yield


def token_of(arguments: argparse.Namespace, environment: Mapping[str, str]) -> str | None:
    """Return the token that requests must bring; None if none is set."""
    token, where = environment.get(TOKEN), f"${TOKEN}"
    if arguments.token_file:
        where = str(arguments.token_file)
        try:
            token = arguments.token_file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise UserError(f"the token in {where} cannot be read: {error}") from error
    if token is not None and (len(token) < 16 or not token.isascii() or not token.isprintable()):
        raise UserError(
            f"the token in {where} must be 16 or more letters, digits and signs; one is made by: openssl rand -hex 32"
        )
    return token


def check_access(arguments: argparse.Namespace, on_vertex: bool) -> None:
    """Raise a UserError if everybody in the network could send requests, unless that is intended."""
    try:
        local = ipaddress.ip_address(socket.gethostbyname(arguments.host)).is_loopback
    except OSError:
        local = arguments.host == "::1"
    if not (local or arguments.token is not None or arguments.no_token or on_vertex):
        raise UserError(
            f"on {arguments.host} everybody in the network could ask. Set a token that requests must bring, in "
            f"${TOKEN} or --token-file, or say --no-token where something in front of the server checks who asks"
        )


def listen(host: str, port: int, flag: str, *, shared: bool = False) -> socket.socket:
    """Return a socket that listens, before anything slow starts."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, reuse_port=shared)
    except (OSError, OverflowError) as error:
        reason = "a port is a number from 0 to 65535"
        if isinstance(error, OSError):
            reason = str(error.strerror).partition(" (while")[0]
        raise UserError(
            f"cannot listen on {host}, port {port}: {reason}; choose another with {flag} or --host"
        ) from error


def name_of(address: str) -> str:
    """Return the name of a model: the name of its folder, without the number of a version."""
    path = PurePosixPath(address.rstrip("/"))
    return path.parent.name if path.name.isdecimal() else path.name
