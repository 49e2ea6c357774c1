"""The set-up's edit of two shared objects, on small ones that ask for the same symbols and on the real ones."""

import ctypes
import hashlib
import importlib.metadata
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.programs import require

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has glibc, and objects to edit for it")
if sys.platform == "linux":
    from tools.older_glibc import DIGESTS, OBJECTS, UnknownObject, UnknownSymbol, make_loadable

VERSIONS = """
GLIBC_2.2.5 { strtol; strtoul; };
GLIBC_2.38 { __isoc23_strtol; __isoc23_scanf; } GLIBC_2.2.5;
GLIBC_2.43 { fresh; } GLIBC_2.38;
"""


@pytest.fixture
def build(tmp_path):
    """Compiles C code against a libc.so.6 that claims to be newer than any."""
    names = re.findall(r"([a-z_]\w+);", VERSIONS)
    (tmp_path / "libc.c").write_text("".join(f"long {name}() {{ return 0; }}\n" for name in names))
    (tmp_path / "libc.map").write_text(VERSIONS)
    gcc = [require("gcc", "gcc"), "-shared", "-fPIC", "-nostdlib", "-fno-builtin", "-w"]
    libc = tmp_path / "libc.so.6"
    subprocess.run(
        [*gcc, "-Wl,-soname,libc.so.6", f"-Wl,--version-script={tmp_path}/libc.map", "-o", libc, tmp_path / "libc.c"],
        check=True,
    )

    def compile_object(code: str) -> Path:
        (tmp_path / "object.c").write_text(code)
        subprocess.run([*gcc, "-o", tmp_path / "object.so", tmp_path / "object.c", libc], check=True)
        return tmp_path / "object.so"

    return compile_object


def test_a_c23_function_becomes_the_one_every_glibc_has(build):
    path = build(
        "long __isoc23_strtol(const char *, char **, int); long strtol(const char *, char **, int);"
        "long old(const char *text) { return strtol(text, 0, 10); }"
        "long parse(const char *text) { return __isoc23_strtol(text, 0, 10); }"
    )
    assert make_loadable(path) == ["__isoc23_strtol"]
    assert ctypes.CDLL(str(path)).parse(b"42") == 42  # loaded, and bound to the real strtol


def test_a_second_time_changes_nothing(build):
    path = build("long __isoc23_strtol(); long strtol(); long f() { return __isoc23_strtol() + strtol(); }")
    make_loadable(path)
    before = path.read_bytes(), path.stat().st_ino
    assert make_loadable(path) == []
    assert (path.read_bytes(), path.stat().st_ino) == before


def test_an_object_for_an_old_glibc_is_not_touched(build):
    path = build("long strtol(); long f() { return strtol(); }")
    before = path.read_bytes(), path.stat().st_ino
    assert make_loadable(path) == []
    assert (path.read_bytes(), path.stat().st_ino) == before


@pytest.mark.parametrize(
    ("unknown", "named"), [("__isoc23_scanf", r"__isoc23_scanf \(GLIBC_2\.38\)"), ("fresh", r"GLIBC_2\.43")]
)
def test_a_symbol_without_a_stand_in_is_refused_and_the_file_left_alone(build, unknown, named):
    path = build(
        f"long {unknown}(); long __isoc23_strtol(); long strtol();"
        f"long f() {{ return {unknown}() + __isoc23_strtol() + strtol(); }}"
    )
    before = path.read_bytes()
    with pytest.raises(UnknownSymbol, match=rf"object\.so needs {named}.*Debian 13"):
        make_loadable(path)
    assert path.read_bytes() == before


def test_an_object_of_another_digest_before_or_after_is_refused_and_the_file_left_alone(build):
    path = build("long __isoc23_strtol(); long strtol(); long f() { return __isoc23_strtol() + strtol(); }")
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    for before, after in (("0" * 64, "1" * 64), (digest, "1" * 64)):
        with pytest.raises(UnknownObject, match=rf"object\.so .*expected {before if before != digest else after}"):
            make_loadable(path, before, after)
        assert path.read_bytes() == content
    make_loadable(path)
    after = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_bytes(content)
    assert make_loadable(path, digest, after) == ["__isoc23_strtol"]
    assert make_loadable(path, digest, after) == []


def test_there_are_digests_for_every_python():
    assert {name: sorted(found) for name, found in DIGESTS.items()} == {
        name: ["cp311", "cp312", "cp313"] for name in OBJECTS
    }


def test_a_file_shared_with_the_installers_cache_keeps_its_content_there(build, tmp_path):
    path = build("long __isoc23_strtol(); long strtol(); long f() { return __isoc23_strtol() + strtol(); }")
    (tmp_path / "cache.so").hardlink_to(path)
    original = path.read_bytes()
    make_loadable(path)
    assert (tmp_path / "cache.so").read_bytes() == original
    assert path.read_bytes() != original


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or tuple(map(int, platform.libc_ver()[1].split("."))) >= (2, 39),
    reason="glibc 2.39 or newer loads them as they are, and the set-up leaves them so",
)
@pytest.mark.parametrize("name", OBJECTS if sys.platform == "linux" else ())
def test_the_installed_objects_are_done(name, tmp_path):
    copy = Path(shutil.copy(Path(sysconfig.get_path("platlib"), name), tmp_path))
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert make_loadable(copy, *DIGESTS[name][tag]) == []
    assert hashlib.sha256(copy.read_bytes()).hexdigest() == DIGESTS[name][tag][1]


def test_no_other_installed_package_needs_a_newer_glibc_than_2_34():
    # The set-up lets uv take wheels for glibc 2.39, because of these two.
    newer = set()
    for distribution in importlib.metadata.distributions():
        tags = re.findall(r"^Tag: \S+-manylinux_2_(\d+)_", distribution.read_text("WHEEL") or "", re.MULTILINE)
        if tags and min(map(int, tags)) > 34:
            newer.add(distribution.name)
    assert newer <= {"tensorflow-data-validation", "ml-metadata", "tensorflow_data_validation", "ml_metadata"}
