"""Everything that is done to a run, its files, its versions and what surrounds it."""

import contextlib
import itertools
import os
import random
import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.model.versions import changed_since_push
from tests.e2e.run import Run
from tests.faults.servers import STRIKES as SERVER_STRIKES
from tests.faults.workplace import EMPTY, END, NAME, START, Broken, Strike, Workplace, readable, send
from tests.programs import require

# Exit codes of a run that a fault may end, or not.
FAILED, INTERRUPTED = 1, 130


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        kind: What is broken.
        name: What exactly.
        moment: Of the output folder, when it begins.
        strike: Does it; what it returns is judged. It raises Broken when something is not as it must be.
        judge: What must hold afterwards, and returns the run that shows it.
    """

    kind: str
    name: str
    moment: str
    strike: Callable[[Workplace], Run | None]
    judge: Callable[[Workplace], Run] = Workplace.check_next_run

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}"

    def attempt(self, workplace: Workplace) -> Run:
        """Do it, and return the run that shows what must hold afterwards; raise Broken if something does not hold."""
        workplace.restore(self.moment)
        if ended := self.strike(workplace):
            readable(ended)
        if self.kind != "pushed version":
            workplace.check_versions()
        return self.judge(workplace)


def faults(workplace: Workplace, seed: int = 1) -> list[Fault]:
    """All faults, of a workplace that is prepared; the same in every one, but for the instants of kills."""
    makers = (kills, signals, full_disks, files, stores, together, surroundings, permissions, pushed, servers)
    return [fault for maker in makers for fault in maker(workplace, random.Random(seed))]


def expecting(ended: Run, *codes: int, words: str = "") -> Run:
    """Raise Broken unless a command has ended with one of these codes, and with a sentence with these words."""
    readable(ended)
    if ended.code not in codes:
        raise Broken(f"exit code {ended.code}, expected {' or '.join(map(str, codes))}\n{ended.text}")
    if words not in ended.text:
        raise Broken(f"nothing of {words!r}\n{ended.text}")
    return ended


def kills(workplace: Workplace, instants: random.Random) -> Iterator[Fault]:
    """Killed at the beginning of each step, and at any instant; the longer a step, the more often."""

    def killed(after: str, seconds: float) -> Callable[[Workplace], Run]:
        strike = Strike(after, seconds, lambda process: send(process, signal.SIGKILL, group=True))
        return lambda workplace: expecting(workplace.run(strike=strike), -signal.SIGKILL, 0)

    steps = list(workplace.steps)
    for before, step in itertools.pairwise(steps):
        yield Fault("kill", f"{step} begins", before, killed(before, 0))
    yield Fault("kill", "after Verdict", steps[-1], killed(steps[-1], 0))
    for moment in [None] * 30 + [EMPTY] * 5:
        share = instants.random()
        before, seconds = instant(workplace, share)
        name = f"at {share:.1%} of {'a first run' if moment else 'the run'}"
        yield Fault("kill", name, moment or before, killed(before, seconds))


def instant(workplace: Workplace, share: float) -> tuple[str, float]:
    """The step after which an instant of the first run is, and the seconds from there."""
    seconds = share * sum(list(workplace.steps.values())[1:])
    steps = list(workplace.steps)
    for before, step in itertools.pairwise(steps):
        if seconds < workplace.steps[step]:
            return before, seconds
        seconds -= workplace.steps[step]
    return steps[-1], 0


def signals(workplace: Workplace, instants: random.Random) -> Iterator[Fault]:
    """Send signals in the middle of each step: the run prints that it was interrupted, and how to go on."""
    told = {signal.SIGINT: (True, INTERRUPTED), signal.SIGTERM: (False, 143), signal.SIGHUP: (True, 129)}
    steps = list(workplace.steps)
    for before, step in itertools.pairwise(steps):
        for number, (group, code) in told.items():

            def strike(
                workplace: Workplace,
                before: str = before,
                step: str = step,
                number: signal.Signals = number,
                group: bool = group,
                code: int = code,
            ) -> Run:
                half = workplace.steps[step] / 2
                ended = workplace.run(strike=Strike(before, half, lambda process: send(process, number, group)))
                return expecting(ended, code, 0, words="" if ended.code == 0 else "run again")

            yield Fault(number.name, step, before, strike)
    for number, (group, code) in told.items():

        def strike_report(
            workplace: Workplace, number: signal.Signals = number, group: bool = group, code: int = code
        ) -> Run:
            ended = workplace.run(strike=Strike(steps[-1], 0.2, lambda process: send(process, number, group)))
            pushed = workplace.verdict().get("pushed_to")
            if bool(pushed) != (workplace.verdict()["exit_code"] == 0):
                raise Broken(f"verdict.json contradicts itself: {workplace.verdict()}")
            return expecting(ended, code, 0)

        yield Fault(number.name, "while the report is written", steps[-2], strike_report)


def full_disks(workplace: Workplace, instants: random.Random) -> Iterator[Fault]:
    """The disk is full from the beginning of each step on; then there is space again."""
    steps = list(workplace.steps)
    for before, step in itertools.pairwise(steps):

        def strike(workplace: Workplace, before: str = before) -> Run:
            with small_disk(workplace) as fill:
                ended = workplace.run(strike=Strike(before, 0, lambda process: fill()))
            return expecting(ended, FAILED, 0)

        yield Fault("disk full", step, before, strike)


@contextlib.contextmanager
def small_disk(workplace: Workplace) -> Iterator[Callable[[], None]]:
    """Put the output folder on a disk of 64 MB, and what is on it back at the end; yields what fills it."""
    disk, kept = workplace.output, workplace.folder / "kept"
    disk.rename(kept)
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=True, capture_output=True)
    filler = disk / ".filler"

    def fill() -> None:
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 12)):
                pass

    try:
        shutil.copytree(kept, disk, symlinks=True, dirs_exist_ok=True)
        yield fill
    finally:
        filler.unlink(missing_ok=True)
        shutil.rmtree(kept)
        shutil.copytree(disk, kept, symlinks=True)
        subprocess.run(["umount", str(disk)], check=True)
        disk.rmdir()
        kept.rename(disk)


def files(workplace: Workplace, instants: random.Random) -> Iterator[Fault]:
    """Lose a file of each artifact, truncate another, change one, and add a strange one."""
    artifacts = workplace.folder / "moments" / END / "artifacts"
    for folder in sorted(artifacts.glob("[!_]*/[!.]*/*")):
        found = [path.relative_to(artifacts) for path in sorted(folder.rglob("*")) if path.is_file()]
        for place, (what, damage) in enumerate(DAMAGES.items() if found else ()):
            name = found[place % len(found)]

            def strike(workplace: Workplace, name: Path = name, damage: Callable[[Path], None] = damage) -> None:
                damage(workplace.output / "artifacts" / name)

            yield Fault("file", f"{name.parts[0]}, {'/'.join((name.parts[1], *name.parts[3:]))} {what}", END, strike)


def truncated(file: Path) -> None:
    """Leave the first half."""
    os.truncate(file, file.stat().st_size // 2)


def changed(file: Path) -> None:
    """Change a byte in the middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)


def added(file: Path) -> None:
    """Put a copy next to it."""
    shutil.copy(file, file.with_name(f"{file.stem}-copy{file.suffix}"))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "lost": Path.unlink,
    "truncated": truncated,
    "changed": changed,
    "copied next to it": added,
}


def stores(workplace: Workplace, instants: random.Random) -> Iterator[Fault]:
    """The metadata store is damaged, moved away, or an older copy is put back."""

    def refused(damage: Callable[[Path], object]) -> Callable[[Workplace], Run]:
        def strike(workplace: Workplace) -> Run:
            store = workplace.output / "metadata.sqlite"
            damage(store)
            ended = expecting(workplace.run(), FAILED, words="move it away")
            store.unlink()
            return ended

        return strike

    def older(moment: str) -> Callable[[Workplace], None]:
        def strike(workplace: Workplace) -> None:
            shutil.copy(workplace.folder / "moments" / moment / "metadata.sqlite", workplace.output / "metadata.sqlite")

        return strike

    yield Fault("store", "garbage", END, refused(lambda store: store.write_bytes(random.Random(1).randbytes(50_000))))
    yield Fault("store", "halved", END, refused(truncated))

    def moved_away(workplace: Workplace) -> None:
        (workplace.output / "metadata.sqlite").unlink()

    yield Fault("store", "moved away", END, moved_away)
    yield Fault("store", "empty", END, lambda workplace: os.truncate(workplace.output / "metadata.sqlite", 0))
    for moment in ("StatisticsGen", "Transform", "Trainer", "Evaluator"):
        yield Fault("store", f"that after {moment} put back", END, older(moment))
        yield Fault("store", f"moved away after {moment}", moment, moved_away)


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Mount a file or folder over itself, so that no one may write to it, not even root."""
    subprocess.run(["mount", "--bind", str(path), str(path)], check=True, capture_output=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(path)], check=True, capture_output=True)
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


def permissions(workplace: Workplace, instants: random.Random) -> Iterator[Fault]:
    """A place becomes read-only, for root too, and then writable again."""
    for name, moment in (
        ("", END),
        ("metadata.sqlite", END),
        ("artifacts", "StatisticsGen"),
        ("logs", END),
        (f"serving/{NAME}", END),
    ):

        def strike(workplace: Workplace, name: str = name) -> Run:
            with read_only(workplace.output / name):
                return expecting(workplace.run(), FAILED, 0)

        yield Fault("read-only", name or "the output folder", moment, strike)


def servers(workplace: Workplace, instants: random.Random) -> Iterator[Fault]:
    """While a server answers."""
    for name, strike in SERVER_STRIKES.items():
        yield Fault("server", name, END, strike)


def together(workplace: Workplace, instants: random.Random) -> Iterator[Fault]:
    """Something else is done while it runs."""

    def meanwhile(*arguments: str, codes: tuple[int, ...]) -> Callable[[Workplace], Run]:
        def strike(workplace: Workplace) -> Run:
            others: list[Run] = []
            act = Strike("Transform", 0.5, lambda process: others.append(workplace.command(*arguments)))
            ended = expecting(workplace.run(strike=act), 0)
            expecting(others[0], *codes)
            return ended

        return strike

    config = ("--config", f"configs/{NAME}.py", "--output", str(workplace.output))
    yield Fault("together", "a second run", "ExampleValidator", meanwhile("local_runner.py", *config, codes=(FAILED,)))
    clean = ("-m", "pipeline", "runs", "clean", *config, "--keep", "1", "--yes")
    for moment in ("ExampleValidator", END):
        yield Fault("together", f"runs clean, {moment}", moment, meanwhile(*clean, codes=(0, 1)))


def surroundings(workplace: Workplace, instants: random.Random) -> Iterator[Fault]:
    """Odd paths, things in the way, little memory, a clock that is put back."""

    def at(name: str) -> Callable[[Workplace], Run]:
        def strike(workplace: Workplace) -> Run:
            odd = workplace.folder / name
            try:
                first = expecting(workplace.run("--output", odd), 0)
                if second := expecting(workplace.run("--output", odd), 0).ran:
                    raise Broken(f"executed again: {', '.join(sorted(second))}")
            finally:
                shutil.rmtree(odd, ignore_errors=True)
            return first

        return strike

    def refused(workplace: Workplace) -> Run:
        return expecting(workplace.run("--output", workplace.folder / "[brackets]*"), FAILED, words="for a pattern")

    yield Fault("path", "[brackets]*", START, refused)
    for name in ("with space", "ümläut-名前", "50%", "dash -- and 'quote'"):
        yield Fault("path", name, START, at(name))

    def in_the_way(name: str, make: Callable[[Path], object], words: str) -> Callable[[Workplace], Run]:
        def strike(workplace: Workplace) -> Run:
            there = workplace.output / name
            shutil.rmtree(there) if there.is_dir() else there.unlink(missing_ok=True)
            make(there)
            ended = workplace.run()
            shutil.rmtree(there) if there.is_dir() else there.unlink(missing_ok=True)
            return expecting(ended, FAILED, 0, words=words)

        return strike

    for name, make in (
        ("logs", Path.touch),
        ("verdict.json", Path.mkdir),
        (".lock", Path.mkdir),
        ("runs", Path.touch),
        ("artifacts", Path.touch),
        ("serving", Path.touch),
        ("metadata.sqlite", Path.mkdir),
    ):
        thing = "file" if make is Path.touch else "folder"
        moment = "Evaluator" if name == "serving" else END
        yield Fault("in the way", f"{name} is a {thing}", moment, in_the_way(name, make, name))

    def limited(what: int, limit: int) -> Callable[[Workplace], Run]:
        def strike(workplace: Workplace) -> Run:
            return expecting(
                workplace.run(preexec_fn=lambda: resource.setrlimit(what, (limit, limit))), FAILED, 0, -signal.SIGABRT
            )

        return strike

    for gigabytes in (2, 4, 6):
        yield Fault("memory", f"{gigabytes} GB", START, limited(resource.RLIMIT_AS, gigabytes << 30))
    yield Fault("open files", "64", START, limited(resource.RLIMIT_NOFILE, 64))

    def tomorrow(workplace: Workplace) -> Run:
        # For all of the process: gRPC waits by the system's clock until times that it takes from Python's.
        program = require("faketime", "faketime")
        variables = subprocess.run([program, "-f", "+1d", "env"], check=True, capture_output=True, text=True).stdout
        shifted = dict(
            line.split("=", 1) for line in variables.splitlines() if re.match("(LD_PRELOAD|FAKETIME)=", line)
        )
        for _ in range(10):
            ended = workplace.run(environment={**shifted, "FAKETIME_DONT_FAKE_MONOTONIC": "1"})
            # Python sleeps until a time; where that has passed before the call, on a busy machine, faketime refuses it
            # and Linux does not. The next run goes on there, on the same day.
            if "OSError: [Errno 22] Invalid argument" not in ended.text:
                break
        return expecting(ended, 0)

    for moment in (START, "Trainer"):
        yield Fault("clock", f"put back a day, first run from {moment}", moment, tomorrow)


def pushed(workplace: Workplace, instants: random.Random) -> Iterator[Fault]:
    """A file of the pushed version is damaged: run and server say so, and no other model is served for it."""
    (version,) = (workplace.folder / "moments" / END / "serving" / NAME).glob("[0-9]*")
    for file in sorted(path for path in version.rglob("*") if path.is_file()):
        name = file.relative_to(version)
        for what, damage in DAMAGES.items():

            def strike(
                workplace: Workplace, name: Path = name, damage: Callable[[Path], object] = damage
            ) -> Run | None:
                there = workplace.versions.path(workplace.versions.resolve())
                damage(there / name)
                if damage is added:  # the model does not have that file
                    workplace.check_versions()
                    return None
                if name.name == "manifest.json":
                    return None
                if not changed_since_push(there):
                    raise Broken("the damage goes unnoticed")
                config = ("--config", f"configs/{NAME}.py", "--output", workplace.output, "--port", "0")
                return expecting(workplace.command("-m", "pipeline", "serve", *config), FAILED)

            def judge(workplace: Workplace) -> Run:
                return expecting(workplace.run(), FAILED, 0)

            yield Fault("pushed version", f"{name} {what}", END, strike, judge)
