"""One fake Google Cloud for all tests of a session, emptied before each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.google_cloud import GoogleCloud, google_cloud


@pytest.fixture(scope="session")
def _google_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoogleCloud]:
    with google_cloud(tmp_path_factory.mktemp("google_cloud")) as cloud:
        yield cloud


@pytest.fixture
def cloud(_google_cloud: GoogleCloud, monkeypatch: pytest.MonkeyPatch) -> GoogleCloud:
    """A Google Cloud with the project and the bucket and nothing else; this process' environment leads to it."""
    _google_cloud.empty()
    for name, value in _google_cloud.environment.items():
        monkeypatch.setenv(name, value)
    return _google_cloud
