"""Folder of pushed versions, as TensorFlow Serving watches one: ``<folder>/<number>/``, the greatest is served.

A version appears completely or not at all. A rollback moves the newest out of the folder, so that every server that
watches it changes over: only the folder decides what is served.
"""

import contextlib
import fcntl
import hmac
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import filesystem
from pipeline.errors import UserError, first_line
from pipeline.settings.names import shortened
from pipeline.settings.repository import runner, shown

MANIFEST = "manifest.json"
# Environment variable: what pushes signs manifests with it, and what has it loads signed versions only.
MANIFEST_KEY = "PIPELINE_MANIFEST_KEY"
# Model servers look for folders whose name is a number, so they ignore these.
STAGING, WITHDRAWN, LOCK = ".being-pushed", ".withdrawn", ".lock"


@dataclass(frozen=True)
class Versions:
    """Versions of one model; the folder need not exist yet."""

    folder: Path

    @property
    def withdrawn(self) -> "Versions":
        """Return the versions withdrawn by rollbacks."""
        return Versions(self.folder / WITHDRAWN)

    def path(self, number: int) -> Path:
        """Return the folder of a version."""
        return self.folder / str(number)

    def numbers(self) -> list[int]:
        """Return the complete versions, oldest first; folders without a SavedModel and links do not count."""
        return [number for number in self._folders() if is_saved_model(self.path(number))]

    def resolve(self, version: str = "latest") -> int:
        """Return the number of "latest", "previous" or a number as text."""
        numbers, where = self.numbers(), shown(self.folder)
        if not numbers:
            incomplete = ", ".join(map(str, self._folders()))
            found = f"only {incomplete}, without saved_model.pb" if incomplete else "nothing pushed yet"
            if links := sorted(path.name for path in _numbered(self.folder) if path.is_symlink()):
                found += f" ({shortened(links, 3)} is a link, and none is followed)"
            raise UserError(f"no version in {where}: {found}; run {runner()}, which pushes one")
        there = f"there {'are' if len(numbers) > 1 else 'is'} {', '.join(map(str, numbers))}"
        if version == "latest":
            return numbers[-1]
        if version == "previous":
            if len(numbers) < 2:
                raise UserError(f"no previous version in {where}: {there} only")
            return numbers[-2]
        if not version.isdecimal() or int(version) not in numbers:
            raise UserError(f"no version {version} in {where}: {there}; expected one of them, latest or previous")
        return int(version)

    def manifest(self, number: int) -> dict[str, Any]:
        """Return the manifest of a version; empty for one that our Pusher has not written."""
        try:
            return _manifest(self.path(number))
        except ValueError as error:
            raise UserError(f"{self.path(number)}: {error}") from error

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """Yield an empty folder on the same filesystem to gather a version in; UserError: another push is running."""
        with self._locked():
            staging = self.folder / STAGING
            shutil.rmtree(staging, ignore_errors=True)  # of a push that was killed
            staging.mkdir()
            try:
                yield staging
            finally:
                shutil.rmtree(staging, ignore_errors=True)

    def publish(self, staged: Path, number: int, manifest: Mapping[str, Any], keep: int) -> Path:
        """Make a gathered model a version, synced to disk and then visible in one step; delete the oldest ones.

        The number becomes greater than every existing or withdrawn one. The manifest gets "version", "files" (SHA-256
        by path) and "signature", an HMAC-SHA256 of all of it with the key in MANIFEST_KEY, or null.
        """
        taken = (*_numbered(self.folder), *_numbered(self.withdrawn.folder))
        number = max([number, *(int(path.name) + 1 for path in taken)])
        facts = {"version": number, **manifest, "files": filesystem.digests(staged)}
        key = manifest_key()
        signed = {**facts, "signature": _signature(facts, key) if key else None}
        (staged / MANIFEST).write_text(json.dumps(signed, indent=2) + "\n", encoding="utf-8")
        for folder, _, names in os.walk(staged, topdown=False):
            for path in (*(Path(folder, name) for name in names), Path(folder)):
                _sync(path)
        staged.rename(self.path(number))
        _sync(self.folder)
        for old in self.numbers()[:-keep]:
            # Moved first: deleted file by file, a server could find half of it.
            self.path(old).rename(self.folder / STAGING / str(old))
        for old in self.withdrawn.numbers()[:-keep]:
            shutil.rmtree(self.withdrawn.path(old))
        return self.path(number)

    def roll_back(self, dry_run: bool = False) -> tuple[int, int]:
        """Withdraw the newest version; return it and the previous one, which is then served."""
        self.resolve("previous")  # before a lock is made in a folder without versions
        with self._locked():
            latest, previous = self.resolve("latest"), self.resolve("previous")
            if not dry_run:
                self.withdrawn.folder.mkdir(exist_ok=True)
                shutil.rmtree(self.withdrawn.path(latest), ignore_errors=True)
                self.path(latest).rename(self.withdrawn.path(latest))
                _sync(self.folder)
            return latest, previous

    def restore(self) -> int:
        """Put the version that was withdrawn last back; it is served again if it is the greatest."""
        if not self.withdrawn.numbers():
            raise UserError(f"nothing to restore in {shown(self.folder)}: no version was taken back by a rollback")
        with self._locked():
            number = self.withdrawn.numbers()[-1]
            self.withdrawn.path(number).rename(self.path(number))
            _sync(self.folder)
            return number

    def _folders(self) -> list[int]:
        """Return the numbers of all folders of versions, oldest first, also of incomplete ones."""
        return sorted(int(path.name) for path in _numbered(self.folder) if path.is_dir() and not path.is_symlink())

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        for link in filter(Path.is_symlink, (self.folder / name for name in (STAGING, WITHDRAWN, LOCK))):
            raise UserError(
                f"{link} is a link to {os.readlink(link)}, and what a push or a rollback moves and deletes there would "
                "be moved and deleted elsewhere; remove the link"
            )
        with (self.folder / LOCK).open("a", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(
                    f"another process is pushing to or rolling back {self.folder}; try again when it has ended"
                ) from error
            yield


def _numbered(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.isdecimal()] if folder.is_dir() else []


def is_saved_model(folder: Path) -> bool:
    """Return whether a folder holds a SavedModel."""
    return (folder / "saved_model.pb").is_file() or (folder / "saved_model.pbtxt").is_file()


def model_at(address: str) -> Versions | str:
    """Return a folder of versions; or the address as it is, where a SavedModel lies there or it is in a bucket."""
    return address if "://" in address or is_saved_model(Path(address)) else Versions(Path(address))


def changed_since_push(version: str | Path) -> str:
    """Return how the files of a version, if our Pusher wrote it, differ from those pushed, for a message, or ""."""
    try:
        pushed: dict[str, str] = _manifest(version).get("files", {})
    except ValueError as error:
        return str(error)
    there = filesystem.digests(version)
    changed = [
        f"{_one_line(name)} is {'another' if name in there else 'gone'}"
        for name in pushed
        if there.get(name) != pushed[name]
    ]
    return shortened(changed, 5)


def _one_line(name: str) -> str:
    """Return a file name from a manifest, which may be any text, for a message."""
    shown = name if name.isprintable() else ascii(name)
    return shown if len(shown) <= 100 else f"{shown[:100]}..."


def not_signed(version: str | Path) -> str:
    """Return why a version's files do not match their signature, for the end of a message, or "".

    Nothing is checked without a key. Files that were added are not signed. A folder whose name is a number must be the
    version that was signed: a copied older one would be served as the newest.
    """
    key = manifest_key()
    if not key:
        return ""
    try:
        manifest = _manifest(version)
    except ValueError as error:
        return str(error)
    signature = manifest.pop("signature", None)
    if not isinstance(signature, str):
        return f"it has no signature, which ${MANIFEST_KEY} asks for; push it with the key set"
    if not hmac.compare_digest(signature.encode(), _signature(manifest, key).encode()):
        return f"its {MANIFEST} was changed, or signed with another key than that in ${MANIFEST_KEY}"
    folder = Path(version).name
    if folder.isdecimal() and folder != str(manifest.get("version")):
        return f"it was signed as version {manifest.get('version')}, and its folder is {folder}; push it again"
    added = sorted(filesystem.digests(version).keys() - manifest.get("files", {}).keys() - {MANIFEST})
    return f"{shortened(added, 3)} is not signed" if added else ""


def manifest_key() -> bytes | None:
    """Return the key that signs manifests, if one is set; raise a UserError if it is short."""
    key = os.environ.get(MANIFEST_KEY, "").strip().encode()
    if key and len(key) < 16:
        raise UserError(f"the key in ${MANIFEST_KEY} has {len(key)} bytes, expected 16 or more: openssl rand -hex 32")
    return key or None


def _signature(manifest: Mapping[str, Any], key: bytes) -> str:
    """Return the HMAC-SHA256 (RFC 2104) of a manifest in canonical form."""
    return hmac.digest(key, json.dumps(manifest, sort_keys=True).encode(), "sha256").hex()


def _manifest(version: str | Path) -> dict[str, Any]:
    """Return a version's manifest, empty without one (always in a bucket); ValueError: it is damaged."""
    file = Path(version) / MANIFEST
    if filesystem.is_remote(version) or not file.exists():
        return {}
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(manifest, dict) and isinstance(manifest.get("files", {}), dict):
            return manifest
        problem = "it has other fields than ours"
    except (OSError, ValueError, RecursionError) as error:
        problem = first_line(error)
    raise ValueError(f"its {MANIFEST} cannot be read: {problem}")


def was_withdrawn(version: Path) -> bool:
    """Return whether a version that is no longer in its folder was taken back by a rollback."""
    return (version.parent / WITHDRAWN / version.name).is_dir()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
