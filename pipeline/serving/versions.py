"""The folder of pushed versions, as TensorFlow Serving watches one: ``<folder>/<number>/``, the greatest is served.

A version appears whole or not at all, and a rollback takes the newest out of the folder, so that every server that
watches it, TensorFlow Serving or ours, comes to the same conclusion. What is served is said by nothing but the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.settings.repository import runner, shown

MANIFEST = "manifest.json"
# Model servers look for folders whose name is a number, so they pass over these.
STAGING, WITHDRAWN, LOCK = ".being-pushed", ".withdrawn", ".lock"


@dataclass(frozen=True)
class Change:
    """What a rollback does, or with ``--dry-run`` would do.

    Attributes:
        withdrawn: The version that is no longer served.
        served: The one that is instead.
        kept_in: Where the withdrawn one lies.
    """

    withdrawn: int
    served: int
    kept_in: Path


@dataclass(frozen=True)
class Versions:
    """The versions of one model.

    Attributes:
        folder: Holds ``<number>/``; need not exist yet.
    """

    folder: Path

    def numbers(self) -> list[int]:
        """The whole versions, oldest first; a folder without a SavedModel is none."""
        return [number for number in self._all() if is_whole(self.path(number))]

    def incomplete(self) -> list[int]:
        """Versions that are no SavedModel, which no push of ours leaves behind."""
        return [number for number in self._all() if not is_whole(self.path(number))]

    def path(self, number: int) -> Path:
        """The folder of a version."""
        return self.folder / str(number)

    def resolve(self, which: str = "latest") -> int:
        """The number of "latest", "previous" or a number as text.

        Raises:
            UserError: there is no such version.
        """
        numbers = self.numbers()
        there = f"there {'are' if len(numbers) > 1 else 'is'} {', '.join(map(str, numbers))}" if numbers else ""
        if not numbers:
            half = self.incomplete()
            found = f"only {', '.join(map(str, half))}, without saved_model.pb" if half else "nothing pushed yet"
            raise UserError(f"no version in {shown(self.folder)}: {found}; run {runner()}, which pushes one")
        if which == "latest":
            return numbers[-1]
        if which == "previous":
            if len(numbers) < 2:
                raise UserError(f"no previous version in {shown(self.folder)}: {there} only")
            return numbers[-2]
        if not which.isdecimal() or int(which) not in numbers:
            where = shown(self.folder)
            raise UserError(f"no version {which} in {where}: {there}; expected one of them, latest or previous")
        return int(which)

    def manifest(self, number: int) -> dict[str, Any]:
        """What is known of a version; empty for one that our Pusher has not written."""
        with contextlib.suppress(FileNotFoundError):
            text = (self.path(number) / MANIFEST).read_text(encoding="utf-8")
            found: dict[str, Any] = json.loads(text)
            return found
        return {}

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """An empty folder to gather a version in, on the same filesystem; a push that was cut off is cleared away.

        Raises:
            UserError: another push is at work.
        """
        with self._locked():
            staging = self.folder / STAGING
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir()
            yield staging
            shutil.rmtree(staging, ignore_errors=True)

    def publish(self, staged: Path, number: int, manifest: Mapping[str, Any], keep: int) -> Path:
        """Makes a gathered model a version: on the disk first, then visible at once. Older ones than ``keep`` go.

        Args:
            staged: Below ``staging``.
            number: At least; it becomes greater than all that is there, or was withdrawn.
            manifest: What is to be known of it; "version" is added.
            keep: Newest versions that stay, and as many withdrawn ones.

        Returns:
            The version's folder.
        """
        taken = [*self._all(), *self.withdrawn()]
        number = max(number, *(one + 1 for one in taken)) if taken else number
        text = json.dumps({"version": number, **manifest}, indent=2)
        (staged / MANIFEST).write_text(text + "\n", encoding="utf-8")
        _to_disk(staged)
        version = self.path(number)
        staged.rename(version)
        _sync(self.folder)
        for old in self.numbers()[:-keep]:
            _remove(self.path(old), self.folder / STAGING)
        for old in self.withdrawn()[:-keep]:
            shutil.rmtree(self.folder / WITHDRAWN / str(old))
        return version

    def roll_back(self, dry_run: bool = False) -> Change:
        """Takes the newest version out of the folder, so that the previous one is served again.

        Raises:
            UserError: there is no previous version, or a push is at work.
        """
        self.resolve("previous")  # before a lock is made in a folder that is none
        with self._locked():
            latest, previous = self.resolve("latest"), self.resolve("previous")
            change = Change(latest, previous, self.folder / WITHDRAWN / str(latest))
            if not dry_run:
                change.kept_in.parent.mkdir(exist_ok=True)
                shutil.rmtree(change.kept_in, ignore_errors=True)
                self.path(latest).rename(change.kept_in)
                _sync(self.folder)
            return change

    def restore(self) -> int:
        """Puts the version that was withdrawn last back; it is served again if it is the greatest.

        Raises:
            UserError: there is none.
        """
        if not self.withdrawn():
            raise UserError(f"nothing to restore in {shown(self.folder)}: no version was taken back by a rollback")
        with self._locked():
            number = self.withdrawn()[-1]
            (self.folder / WITHDRAWN / str(number)).rename(self.path(number))
            _sync(self.folder)
            return number

    def withdrawn(self) -> list[int]:
        """Versions taken back, oldest first."""
        return _numbers_in(self.folder / WITHDRAWN)

    def _all(self) -> list[int]:
        return _numbers_in(self.folder)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LOCK).open("a", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(
                    f"another process is pushing to or rolling back {self.folder}; try again when it has ended"
                ) from error
            yield


def is_whole(folder: Path) -> bool:
    """Whether a folder holds a SavedModel."""
    return (folder / "saved_model.pb").is_file() or (folder / "saved_model.pbtxt").is_file()


def model_at(address: str) -> Versions | str:
    """A folder of versions; or, where a SavedModel lies there or it is in a bucket, its address as it is."""
    return address if "://" in address or is_whole(Path(address)) else Versions(Path(address))


def was_withdrawn(version: Path) -> bool:
    """Whether a version that is no longer in its folder was taken back by a rollback."""
    return (version.parent / WITHDRAWN / version.name).is_dir()


def _numbers_in(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal() and path.is_dir())


def _remove(version: Path, staging: Path) -> None:
    """Out of sight at once; deleted file by file, a server could find half of it."""
    staging.mkdir(exist_ok=True)
    version.rename(staging / version.name)
    shutil.rmtree(staging / version.name)


def _to_disk(folder: Path) -> None:
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            _sync(Path(path, name))
        _sync(Path(path))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
