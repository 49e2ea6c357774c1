"""gs:// for TFX's file functions as folders here: TensorFlow's own client asks Google and no emulator."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from tfx.dsl.io.plugins.local import LocalFilesystem


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
        def walk(top: Any, topdown: bool = True, onerror: Any = None) -> Iterable[Any]:
            for path, folders, names in os.walk(here(top), topdown):
                yield f"gs://{Path(path).relative_to(folder)}", folders, names

    for name in ("exists", "isdir", "listdir", "makedirs", "mkdir", "remove", "rmtree", "stat"):
        ours = getattr(LocalFilesystem, name)
        setattr(Buckets, name, staticmethod(lambda path, ours=ours: ours(here(path))))
    return cast(type[LocalFilesystem], Buckets)
