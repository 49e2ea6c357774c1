"""Make the manylinux_2_39 wheels of TFDV and ml-metadata loadable where glibc is older (2.34 to 2.38).

Both were built on Ubuntu 24.04, yet of everything that is newer than glibc 2.34 and GCC 12 they ask for six symbols
only (``STAND_INS``). This rewrites the dynamic symbol table of the two shared objects, no byte moves:

- ``__isoc23_strtol`` and its three sisters become ``strtol`` and so on, which glibc has had since 2.2.5. They differ in
  C23's binary literals ("0b1"), which neither library parses.
- ``_ZSt21ios_base_library_initv`` is an empty marker and ``__cxa_call_terminate`` is reached only on the way to
  ``std::terminate``: both become weak, that is, allowed to be absent.

Does nothing on glibc 2.39 and later or to an object that is already done, and leaves an object alone that asks for any
newer symbol it does not know. See docs/decisions/0003-wheels-for-older-glibc.md.
"""

import hashlib
import io
import json
import os
import platform
import re
import struct
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

from elftools.elf.elffile import ELFFile
from elftools.elf.hash import ELFHashTable

OBJECTS = (
    "ml_metadata/metadata_store/pywrap/metadata_store_extension.so",
    "tensorflow_data_validation/pywrap/tensorflow_data_validation_extension.so",
)


class StandIn(NamedTuple):
    """Replacement of a symbol: its own name without a prefix, or nothing (weak)."""

    drop_prefix: int  # leading characters of the name to leave out
    weak: bool


_C23 = StandIn(drop_prefix=len("__isoc23_"), weak=False)
_ABSENT = StandIn(drop_prefix=0, weak=True)
STAND_INS = {
    "__isoc23_strtol": _C23,
    "__isoc23_strtoll": _C23,
    "__isoc23_strtoul": _C23,
    "__isoc23_strtoull": _C23,
    "_ZSt21ios_base_library_initv": _ABSENT,
    "__cxa_call_terminate": _ABSENT,
}
# What the oldest supported system has: glibc 2.34 and the libstdc++ of GCC 12.
NEWEST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13)}
# A newer version -> the one in the same library that the stand-ins are found under.
OLDER = {"GLIBC_2.38": "GLIBC_2.2.5", "GLIBCXX_3.4.32": "GLIBCXX_3.4", "CXXABI_1.3.15": "CXXABI_1.3"}


# SHA-256 of each object by Python's tag: as its wheel has it, and after the edit. Written by --record.
DIGESTS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


class UnknownSymbol(Exception):
    """The object needs something newer than this file knows a stand-in for."""


class UnknownObject(Exception):
    """The object is not one of those that this file was written for, or the edit made another than before."""


def main() -> int:
    """Makes both objects of the running interpreter's environment loadable."""
    if sys.argv[1:2] == ["--record"]:
        print(json.dumps(record([Path(wheel) for wheel in sys.argv[2:]]), indent=2))
        return 0
    libc, version = platform.libc_ver()
    if libc != "glibc" or _numbers(version) >= (2, 39):
        return 0
    site_packages = Path(sysconfig.get_path("platlib"))
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    for name in OBJECTS:
        try:
            changed = make_loadable(site_packages / name, *DIGESTS[name][tag])
        except (UnknownSymbol, UnknownObject) as error:
            print(error, file=sys.stderr)
            return 1
        if changed:
            print(f"made {name.split('/')[0]} loadable on glibc {version}: {', '.join(changed)}")
    return 0


def record(wheels: list[Path]) -> dict[str, dict[str, list[str]]]:
    """Returns DIGESTS of wheels: pip download --no-deps --python-version 3.12 --platform manylinux_2_39_x86_64 ..."""
    found: dict[str, dict[str, list[str]]] = {name: {} for name in OBJECTS}
    for wheel in sorted(wheels):
        with zipfile.ZipFile(wheel) as files, tempfile.TemporaryDirectory() as folder:
            for name in {*OBJECTS} & {*files.namelist()}:
                path = Path(files.extract(name, folder))
                before = _digest(path.read_bytes())
                make_loadable(path)
                found[name][wheel.name.split("-")[2]] = [before, _digest(path.read_bytes())]
    return found


def make_loadable(path: Path, before: str = "", after: str = "") -> list[str]:
    """Rewrites one shared object; returns the symbols that were given a stand-in (none: nothing to do).

    Args:
        path: Of the object.
        before: SHA-256 that it must have, in hexadecimal, unless it has ``after`` already; "" for any.
        after: SHA-256 that it must have in the end.

    Raises:
        UnknownSymbol: it needs a newer symbol that is not in ``STAND_INS``; the file is left as it was.
        UnknownObject: a digest is another; the file is left as it was.
    """
    data = bytearray(path.read_bytes())
    if before and _digest(data) not in (before, after):
        raise UnknownObject(
            f"{path} is not the object that was looked at: SHA-256 {_digest(data)}, expected {before}. Remove .venv "
            "and run make setup again; for other versions, see docs/decisions/0003-wheels-for-older-glibc.md"
        )
    elf = ELFFile(io.BytesIO(bytes(data)))
    try:
        changed = _replace_symbols(data, elf, too_new=_replace_versions(data, elf))
    except UnknownSymbol as error:
        raise UnknownSymbol(
            f"{path.name} needs {error}, for which no stand-in is known. Use a system with glibc 2.39 or newer "
            "(Ubuntu 24.04, Debian 13)."
        ) from None
    if after and _digest(data) != after:
        raise UnknownObject(f"{path} would become SHA-256 {_digest(data)}, expected {after}; it was left as it is")
    if changed:
        # A new file, not an edit in place: installers hard-link packages from a cache that other projects share.
        partial = path.with_suffix(".partial")
        partial.write_bytes(data)
        partial.chmod(path.stat().st_mode)
        os.replace(partial, path)
    return changed


def _replace_versions(data: bytearray, elf: ELFFile) -> dict[int, str]:
    """Asks for an older version in place of each too new one; returns those by the index symbols refer to them with."""
    needs = elf.get_section_by_name(".gnu.version_r")
    too_new: dict[int, str] = {}
    library_at = needs["sh_offset"] if needs else 0
    for library, version_needs in needs.iter_versions() if needs else ():
        versions = list(version_needs)
        name_at = {version.name: version["vna_name"] for version in versions}
        entry = library_at + library["vn_aux"]
        for version in versions:
            if _is_too_new(version.name):
                older = OLDER.get(version.name)
                if older not in name_at:
                    raise UnknownSymbol(f"{version.name} of {library.name}")
                too_new[version["vna_other"]] = version.name
                # struct Elf64_Vernaux: hash (4 bytes), flags (2), other (2), name (4), next (4)
                struct.pack_into("<I", data, entry, ELFHashTable.elf_hash(older))
                struct.pack_into("<I", data, entry + 8, name_at[older])
            entry += version["vna_next"]
        library_at += library["vn_next"]
    return too_new


def _replace_symbols(data: bytearray, elf: ELFFile, too_new: dict[int, str]) -> list[str]:
    """Puts a stand-in for every symbol of these versions; returns their names."""
    if not too_new:
        return []
    symbols = elf.get_section_by_name(".dynsym")
    version_of = elf.get_section_by_name(".gnu.version")
    changed = []
    for index, symbol in enumerate(symbols.iter_symbols()):
        version = too_new.get(version_of.get_symbol(index)["ndx"])
        if version is None:
            continue
        if symbol.name not in STAND_INS:
            raise UnknownSymbol(f"{symbol.name} ({version})")
        drop_prefix, weak = STAND_INS[symbol.name]
        # struct Elf64_Sym: name (4 bytes), info (1 byte: binding << 4 | type), ...
        entry = symbols["sh_offset"] + index * symbols["sh_entsize"]
        struct.pack_into("<I", data, entry, symbol["st_name"] + drop_prefix)
        if weak:
            data[entry + 4] = (2 << 4) | (data[entry + 4] & 0xF)  # STB_WEAK
        changed.append(symbol.name)
    return changed


def _is_too_new(version: str) -> bool:
    parts = re.fullmatch(r"(GLIBC|GLIBCXX|CXXABI)_([\d.]+)", version)
    return parts is not None and _numbers(parts[2]) > NEWEST[parts[1]]


def _digest(data: bytes | bytearray) -> str:
    return hashlib.sha256(data).hexdigest()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


if __name__ == "__main__":
    sys.exit(main())
