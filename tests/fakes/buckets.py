"""gs:// as folders here, for TFX's and Beam's file functions: TensorFlow's own client asks Google and no emulator."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import tensorflow as tf
from apache_beam.io.filesystem import FileMetadata
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.localfilesystem import LocalFileSystem
from tfx.dsl.io.filesystem_registry import DEFAULT_FILESYSTEM_REGISTRY
from tfx.dsl.io.plugins.local import LocalFilesystem


def fake_buckets(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let gs://bucket/name be ``folder/bucket/name`` for the rest of the test."""
    schemes = DEFAULT_FILESYSTEM_REGISTRY._preferred_filesystem_by_scheme
    monkeypatch.setitem(schemes, "gs://", buckets_in(folder))
    real = FileSystems.get_filesystem
    fake = BeamBuckets(folder)
    monkeypatch.setattr(
        FileSystems, "get_filesystem", staticmethod(lambda path: fake if path.startswith("gs://") else real(path))
    )


class BeamBuckets(LocalFileSystem):
    """A Beam file system as the one of Google Cloud Storage: objects only, no folders, and an object has no parts."""

    def __init__(self, folder: Path):
        super().__init__(None)
        self._folder = folder

    @classmethod
    def scheme(cls) -> str:
        return "test-buckets"  # Beam takes one class for a scheme, and gs is taken

    def _here(self, address: str) -> str:
        return str(self._folder / address.removeprefix("gs://"))

    def has_dirs(self) -> bool:
        return False

    def _list(self, dir_or_prefix: str) -> Iterator[FileMetadata]:
        for path in sorted(self._folder.rglob("*")):
            address = f"gs://{path.relative_to(self._folder)}"
            if path.is_file() and address.startswith(dir_or_prefix):
                yield FileMetadata(address, path.stat().st_size, path.stat().st_mtime)

    def exists(self, path: str) -> bool:
        return Path(self._here(path)).is_file()

    def metadata(self, path: str) -> FileMetadata:
        return FileMetadata(path, Path(self._here(path)).stat().st_size)

    def open(self, path: str, *args: Any, **more: Any) -> Any:
        return super().open(self._here(path), *args, **more)

    def create(self, path: str, *args: Any, **more: Any) -> Any:
        return super().create(self._here(path), *args, **more)


def buckets_in(folder: Path) -> type[LocalFilesystem]:
    """A file system for TFX's registry, with gs://bucket/name at ``folder/bucket/name``."""

    def here(address: Any) -> str:
        return str(folder / str(address).removeprefix("gs://"))

    class Buckets(LocalFilesystem):
        SUPPORTED_SCHEMES = ["gs://"]  # noqa: RUF012

        @staticmethod
        def open(name: Any, mode: str = "r") -> Any:
            if "w" in mode:  # a bucket has no folders to make first
                Path(here(name)).parent.mkdir(parents=True, exist_ok=True)
            return LocalFilesystem.open(here(name), mode)

        @staticmethod
        def copy(src: Any, dst: Any, overwrite: bool = False) -> None:
            Path(here(dst)).parent.mkdir(parents=True, exist_ok=True)
            LocalFilesystem.copy(here(src), here(dst), overwrite)

        @staticmethod
        def glob(pattern: Any) -> list[Any]:
            return [f"gs://{Path(path).relative_to(folder)}" for path in LocalFilesystem.glob(here(pattern))]

        @staticmethod
        def stat(path: Any) -> Any:
            return tf.io.gfile.stat(here(path))  # TFX asks it for the length

        @staticmethod
        def walk(top: Any, topdown: bool = True, onerror: Any = None) -> Iterable[Any]:
            for path, folders, names in os.walk(here(top), topdown):
                yield f"gs://{Path(path).relative_to(folder)}", folders, names

    for name in ("exists", "isdir", "listdir", "makedirs", "mkdir", "remove", "rmtree"):
        ours = getattr(LocalFilesystem, name)
        setattr(Buckets, name, staticmethod(lambda path, ours=ours: ours(here(path))))
    return cast(type[LocalFilesystem], Buckets)
