"""Read, find and write files on this machine and in buckets.

An address such as ``gs://bucket/name`` is passed to Apache Beam's ``FileSystems``, which Dataflow workers and Vertex AI
tasks have too; Beam is imported for the first address. What TensorFlow reads and writes itself stays with
``tf.io.gfile``.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast


def is_remote(path: str | Path) -> bool:
    """Return whether a path is an address such as ``gs://bucket/data``."""
    return "://" in str(path)


def open_file(path: str | Path) -> IO[bytes]:
    """Open a file for reading bytes; it is seekable."""
    if is_remote(path):
        return cast(IO[bytes], _beam().open(str(path), compression_type=_uncompressed()))
    return open(path, "rb")


def read_bytes(path: str | Path) -> bytes:
    """Return the content of a file."""
    with open_file(path) as file:
        return file.read()


def read_text(path: str | Path) -> str:
    """Return the content of a UTF-8 file."""
    return read_bytes(path).decode("utf-8")


def exists(path: str | Path) -> bool:
    """Return whether there is such a file; a bucket has no folders."""
    return bool(_beam().exists(str(path))) if is_remote(path) else os.path.exists(path)


def size(path: str | Path) -> int:
    """Return the bytes of a file as it is stored."""
    return int(_match(str(path))[0].size_in_bytes) if is_remote(path) else os.path.getsize(path)


def find_files(folder: str | Path, pattern: str) -> list[str]:
    """Return the files below a folder that match a pattern ("*" in one name, "**" across folders), sorted."""
    if is_remote(folder):
        return sorted(item.path for item in _match(f"{str(folder).rstrip('/')}/{pattern}"))
    return sorted(str(path) for path in Path(folder).glob(pattern) if path.is_file())


def stamps(folder: str | Path, paths: Iterable[str]) -> Iterator[tuple[str, tuple[int, float] | None]]:
    """Yield each path below a folder with size and modification time of its file, or None if it does not exist."""
    if is_remote(folder):
        # One listing, for a request for each of a million files takes hours.
        found = _match(f"{str(folder).rstrip('/')}/**")
        listed = {item.path: (item.size_in_bytes, item.last_updated_in_seconds) for item in found}
        yield from ((path, listed.get(path)) for path in paths)
        return
    for path in paths:
        try:
            status = os.stat(path)
            yield path, (status.st_size, status.st_mtime_ns)
        except (OSError, ValueError):
            yield path, None


def digests(folder: str | Path) -> dict[str, str]:
    """Return the SHA-256 of every file below a folder, in hexadecimal, by its path relative to it."""
    found = find_files(folder, "**" if is_remote(folder) else "**/*")  # Beam's "**/*" leaves out those directly in it
    names = {path[len(str(folder).rstrip("/")) + 1 :]: path for path in found}
    return {name: digest(path) for name, path in names.items()}


def digest(path: str | Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def write(path: str | Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8, atomically, with the folders above it."""
    with new_file(path) as partial:
        Path(partial).write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextlib.contextmanager
def new_file(path: str | Path, partial_folder: str | Path | None = None) -> Iterator[str]:
    """Yield a local path; its file appears complete at ``path`` when the block ends without an error.

    ``partial_folder``, on the same filesystem, hides the remains of a killed process from readers of the folder.
    """
    if is_remote(path):
        with tempfile.TemporaryDirectory() as folder:
            yield f"{folder}/new"
            with (
                open(f"{folder}/new", "rb") as source,
                _beam().create(str(path), compression_type=_uncompressed()) as target,
            ):
                shutil.copyfileobj(source, target, 16 << 20)
        return
    path = Path(path)
    # Two processes may write the same file, so each uses another name. Some writers go by the ending.
    partial = Path(partial_folder or path.parent) / f".{uuid.uuid4().hex}.partial{path.suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield str(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def copy(source: str, target: str) -> None:
    """Link or copy a file that does not change to another place, with the folders above it."""
    if not is_remote(source) and not is_remote(target):
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        # Not between two disks; and a task that was tried before has left a file there.
        with contextlib.suppress(OSError):
            os.link(source, target)
            return
    with open_file(source) as stream, new_file(target) as partial, open(partial, "wb") as copied:
        shutil.copyfileobj(stream, copied, 16 << 20)


def _match(pattern: str) -> Any:
    return _beam().match([pattern])[0].metadata_list


def _beam() -> Any:
    from apache_beam.io.filesystems import FileSystems

    return FileSystems


def _uncompressed() -> str:
    from apache_beam.io.filesystem import CompressionTypes

    return cast(str, CompressionTypes.UNCOMPRESSED)
