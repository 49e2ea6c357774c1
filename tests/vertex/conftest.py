"""One fake Google Cloud for all tests of a session, emptied before each, and one compiled job."""

import os
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.cli.vertex.arguments import GRAPH
from pipeline.packaging import fingerprints
from pipeline.settings.config import PipelineConfig, load_config
from pipeline.settings.target import Target, Vertex
from pipeline.vertex.cloud import Cloud
from pipeline.vertex.pipelines.compile import compile
from tests.fakes.buckets import fake_buckets
from tests.fakes.google_cloud import BUCKET, PROJECT, REGION, GoogleCloud, google_cloud
from tests.preloaded import Preloaded
from tests.vertex.serving import Pushes, answers_right

ROOT = Path(__file__).resolve().parents[2]
ACCOUNT = f"pipeline@{PROJECT}.iam.gserviceaccount.com"


@pytest.fixture(scope="session")
def _google_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoogleCloud]:
    with google_cloud(tmp_path_factory.mktemp("google_cloud")) as cloud:
        yield cloud


@pytest.fixture
def sigterm_is_caught() -> Iterator[None]:
    """A SIGTERM that the code under test does not catch fails the test, and does not end pytest."""

    def reached(*_: object) -> None:
        raise AssertionError("SIGTERM was not caught")

    before = signal.signal(signal.SIGTERM, reached)
    yield
    assert signal.signal(signal.SIGTERM, before) is reached, "the handler of before was not put back"


@pytest.fixture
def there(_google_cloud: GoogleCloud, monkeypatch: pytest.MonkeyPatch) -> GoogleCloud:
    """A Google Cloud with the project and the bucket and nothing else; this process' environment leads to it."""
    _google_cloud.empty()
    for name, value in _google_cloud.environment.items():
        monkeypatch.setenv(name, value)
    return _google_cloud


@pytest.fixture
def cloud(there: GoogleCloud) -> Cloud:
    """Our way to it."""
    return Cloud.connect(PROJECT, REGION)


@pytest.fixture
def vertex(there: GoogleCloud) -> Vertex:
    """Settings with which everything is in order there."""
    image = f"localhost:{there.rest.port}/{PROJECT}/{fingerprints.image_name()}"
    there.rest.project.images[image.partition("/")[2]] = {
        "pipeline.lock-sha256": fingerprints.lock_digest(),
        "pipeline.library-fingerprint": fingerprints.library_fingerprint(),
    }
    there.rest.project.accounts.add(ACCOUNT)
    for role in ("roles/aiplatform.user", "roles/storage.objectAdmin"):
        there.rest.project.roles[role] = {f"serviceAccount:{ACCOUNT}"}
    return Vertex(PROJECT, REGION, BUCKET, image, service_account=ACCOUNT)


@pytest.fixture
def pushes(there: GoogleCloud, vertex: Vertex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pushes:
    """Models to push to a bucket that is a folder here; every version answers as in the model check."""
    fake_buckets(monkeypatch, tmp_path / "buckets")
    answers_right(there, *map(str, range(1, 9)))
    return Pushes(there, vertex, tmp_path / "buckets")


@pytest.fixture(scope="session")
def config(few_flights: Path) -> PipelineConfig:
    """The default pipeline on a few flights."""
    config = load_config(ROOT / "configs/flights.py").with_paths_from(ROOT)
    return replace(config, data=replace(config.data, path=str(few_flights), prepare=None))


@pytest.fixture(scope="session")
def compiled_once(config: PipelineConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    vertex = Vertex(PROJECT, REGION, BUCKET, f"{REGION}-docker.pkg.dev/{PROJECT}/pipelines/pipeline:1")
    compile(config, Target.on_vertex(vertex, config.name, folder / "upload"), folder)
    return folder


@pytest.fixture
def compiled(compiled_once: Path, tmp_path: Path) -> Path:
    """A folder with the compiled job, to change at will."""
    return Path(shutil.copytree(compiled_once, tmp_path / "compiled"))


@pytest.fixture
def runner(there: GoogleCloud, vertex, few_flights: Path, tmp_path: Path):
    """Runs a command of vertex_runner.py on a few flights; returns its exit code and all it prints."""
    variables = {
        "GOOGLE_CLOUD_PROJECT": PROJECT,
        "GOOGLE_CLOUD_REGION": REGION,
        "VERTEX_BUCKET": BUCKET,
        "VERTEX_SERVICE_ACCOUNT": ACCOUNT,
        "VERTEX_IMAGE": vertex.image,
    }

    def run(command: str, *arguments: str) -> tuple[int, str]:
        flags = [f"--output={tmp_path / 'output'}"]
        if command in GRAPH:
            flags.append(f"--data={few_flights}")
        if command in ("run", "watch", "batch-predict"):
            flags.append("--poll=0.01")
        # With the internet: google-auth asks Google about the account behind the program's back.
        environment = {**os.environ, **there.environment, **there.internet, **variables}
        process = Preloaded("vertex_runner.py", [command, *flags, *arguments], ROOT, environment)
        with process.stdout:
            text = process.stdout.read()
        # On a slow machine a log has lines about what runs for ten seconds and more, too.
        return process.wait(), re.sub(r"^.* running +\d\d+\.\d s.*\n", "", text, flags=re.MULTILINE)

    return run
