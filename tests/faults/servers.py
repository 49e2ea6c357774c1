"""What is done to the versions that a server answers from: all it may do is answer right, all the time."""

import contextlib
import json
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.model.versions import MANIFEST, Versions
from tests.e2e.run import Run
from tests.faults.workplace import NAME, Broken, Workplace, readable

# A server looks for versions every second; a model takes seconds to load.
SECONDS_TO_NOTICE = 8.0
ROWS = 5


def second_version(versions: Versions) -> Path:
    """Publish a copy of the newest version as a new version; return its folder."""
    newest = versions.resolve()
    with versions.staging() as staging:
        staged = staging / str(newest + 1)
        shutil.copytree(versions.path(newest), staged, ignore=shutil.ignore_patterns(MANIFEST))
        return versions.publish(staged, newest + 1, versions.manifest(newest), keep=5)


class Server:
    """A server of the workplace's model in a separate process, with requests all the time.

    Attributes:
        wrong: What it answered that was not right, at most a few.
        asked: Requests so far.
    """

    def __init__(self, workplace: Workplace, process: subprocess.Popen, address: str):
        rows = pd.read_csv(workplace.copy / f"data/{NAME}.csv").drop(columns="diagnosis").head(ROWS)
        self.process = process
        self.wrong: list[str] = []
        self.asked = 0
        self._expected = workplace.answers[:ROWS]
        self._url = f"{address}/v1/models/{NAME}:predict"
        self._body = json.dumps({"instances": rows.to_dict("records")}).encode()
        self._ended = threading.Event()
        self._asking = threading.Thread(target=self._ask_all_the_time, daemon=True)
        self._asking.start()

    def _ask_all_the_time(self) -> None:
        while not self._ended.wait(0.05) and len(self.wrong) < 3:
            self.asked += 1
            try:
                with urllib.request.urlopen(self._url, self._body, timeout=30) as response:
                    answers = [row["probability"] for row in json.load(response)["predictions"]]
            except urllib.error.HTTPError as error:
                self.wrong.append(f"{error.code} {error.read().decode()}")
            except OSError as error:
                self.wrong.append(str(error))
            else:
                if not np.allclose(answers, np.ravel(self._expected), atol=1e-5):
                    self.wrong.append(f"{answers}, expected {self._expected}")

    def stop_asking(self) -> None:
        """Ask no more, and wait for the last answer."""
        self._ended.set()
        self._asking.join()


@contextlib.contextmanager
def serving(workplace: Workplace) -> Iterator[Server]:
    """Start a server, send requests until the end of the block, then SIGTERM; raise Broken if an answer is wrong."""
    config = ("--config", f"configs/{NAME}.py", "--output", workplace.output, "--port", "0")
    with workplace.start("-m", "pipeline", "serve", *config) as process:
        lines: list[str] = []
        address = None
        for line in process.stdout:
            lines.append(line)
            if address := re.search(r"http://127\.0\.0\.1:\d+", line):
                break
        if not address:
            raise Broken(f"the server does not start\n{''.join(lines)}")
        rest = threading.Thread(target=lambda: lines.extend(process.stdout), daemon=True)
        rest.start()
        server = Server(workplace, process, address[0])
        try:
            yield server
        finally:
            server.stop_asking()
            process.send_signal(signal.SIGTERM)
            process.wait()
        rest.join()
    ended = Run(process.returncode, "".join(lines))
    readable(ended)
    if ended.code:
        raise Broken(f"the server ended with {ended.code}\n{ended.text}")
    if server.wrong or not server.asked:
        raise Broken(f"of {server.asked} answers: {'; '.join(server.wrong)}\n{ended.text}")


def while_served(act: Callable[[Workplace, Path], object]) -> Callable[[Workplace], None]:
    """Return a strike: with two versions, a server gets requests before, while and after ``act`` changes them.

    ``act`` gets the folder of the newer one.
    """

    def strike(workplace: Workplace) -> None:
        newer = second_version(workplace.versions)
        with serving(workplace) as server:
            act(workplace, newer)
            until, seen = time.monotonic() + SECONDS_TO_NOTICE, server.asked
            while time.monotonic() < until and not server.wrong:
                time.sleep(0.1)
            if server.asked == seen:
                raise Broken("the server no longer answers")

    return strike


def copied_slowly(workplace: Workplace, newer: Path) -> None:
    """A third version comes file by file, the largest last."""
    third = newer.with_name(str(int(newer.name) + 1))
    for file in sorted((path for path in newer.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size):
        to = third / file.relative_to(newer)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, to)
        time.sleep(0.5)


def copied_damaged(workplace: Workplace, newer: Path) -> None:
    """A third version comes with half a graph, and goes again."""
    third = newer.with_name(str(int(newer.name) + 1))
    shutil.copytree(newer, third)
    graph = third / "saved_model.pb"
    graph.write_bytes(graph.read_bytes()[: graph.stat().st_size // 2])
    time.sleep(SECONDS_TO_NOTICE)
    shutil.rmtree(third)


def manifest_halved(workplace: Workplace, newer: Path) -> None:
    """Half of the newer version's manifest is lost, and the version goes."""
    manifest = newer / MANIFEST
    manifest.write_bytes(manifest.read_bytes()[: manifest.stat().st_size // 2])
    time.sleep(SECONDS_TO_NOTICE)
    shutil.rmtree(newer)


def rolled_back(workplace: Workplace, newer: Path) -> None:
    """Roll back, and restore."""
    workplace.versions.roll_back()
    time.sleep(SECONDS_TO_NOTICE / 2)
    workplace.versions.restore()


def everything_at_once(workplace: Workplace, newer: Path) -> None:
    """A run, a clean and a rollback."""
    config = ("--config", f"configs/{NAME}.py", "--output", workplace.output)
    others: list[Run] = []
    threads = [
        threading.Thread(target=lambda command=command: others.append(workplace.command(*command)))
        for command in (
            ("local_runner.py", *config),
            ("-m", "pipeline", "runs", "clean", *config, "--keep", "1", "--yes"),
            ("-m", "pipeline", "serve", *config, "--rollback"),
        )
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ended in others:
        readable(ended)
        if ended.code not in (0, 1):
            raise Broken(f"exit code {ended.code}\n{ended.text}")


def killed(workplace: Workplace) -> None:
    """The server is killed while it answers, and started again."""
    second_version(workplace.versions)
    with contextlib.suppress(Broken), serving(workplace) as server:
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    with serving(workplace):
        time.sleep(1)


STRIKES: dict[str, Callable[[Workplace], None]] = {
    "a version is published": while_served(lambda workplace, newer: second_version(workplace.versions)),
    "a version is copied in slowly": while_served(copied_slowly),
    "a damaged version is copied in": while_served(copied_damaged),
    "the newest version is deleted": while_served(lambda workplace, newer: shutil.rmtree(newer)),
    "the newest version's manifest is halved": while_served(manifest_halved),
    "rolled back and restored": while_served(rolled_back),
    "a run, a clean and a rollback at the same time": while_served(everything_at_once),
    "killed and started again": killed,
}
