"""Preflight looks at the images that a run takes, at registries that may see Google's token and others."""

import re
import socket
from pathlib import Path

import pytest
from google.api_core import exceptions

from pipeline.errors import UserError
from pipeline.settings.machines import Job, Machines
from pipeline.settings.target import Dataflow, Target
from pipeline.vertex.cloud import Cloud, is_googles, is_private
from pipeline.vertex.pipelines import preflight
from pipeline.vertex.pipelines.preflight import read_image
from tests.fakes.google_cloud import BUCKET, PROJECT, REGION, GoogleCloud
from tests.fakes.image_registry import STRANGER, THIEF

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("pipeline.lock-sha256", "holds other package versions than here"),
        ("pipeline.library-fingerprint", "holds another state of pipeline/ than here"),
    ],
)
def test_an_image_of_other_code_is_refused(label, expected, checked, vertex, there: GoogleCloud):
    there.rest.project.images[vertex.image.partition("/")[2]][label] = "0"
    image = checked()["image"]
    assert image.state == "wrong"
    assert expected in image.text
    assert image.remedy == f"make image IMAGE={vertex.image}"


def test_what_runs_is_the_image_that_was_looked_at(all_checked, checked, config, vertex, internet, there, tmp_path):
    image = internet("us-central1-docker.pkg.dev")
    there.rest.project.images[f"{image.partition('/')[2]}-root"] = there.rest.project.images[image.partition("/")[2]]
    dataflow = Dataflow(PROJECT, REGION, f"gs://{BUCKET}/temp", f"{image}-root")
    machines = Machines(training=Job("n1-standard-8"), tuning=Job("n1-standard-8"), search_with="vizier")
    pinned = all_checked(image=image, dataflow=dataflow, machines=machines).vertex
    for address in (pinned.image, pinned.image_as_root, pinned.dataflow.image):
        assert re.fullmatch(r"us-central1-docker\.pkg\.dev/demo/pipelines/tfx-pipeline@sha256:[0-9a-f]{64}", address)
    from pipeline.vertex.pipelines.compile import compile  # and TFX with it

    compile(config, Target.on_vertex(pinned, config.name, tmp_path / "upload"), tmp_path)
    job = (tmp_path / "pipeline_job.json").read_text()
    assert pinned.image in job
    assert f"--sdk_container_image={pinned.dataflow.image}" in job
    assert "tfx-pipeline:" not in job, "no tag is left"
    # A digest is one, too.
    assert checked(image=pinned.image)["image"].state == "ok"


def test_the_digest_is_that_of_the_tag_also_where_it_is_a_list_of_platforms(all_checked, internet, there: GoogleCloud):
    image = internet("gcr.io")
    path = image.partition("/")[2]
    single = all_checked(image=image).vertex.image
    there.rest.project.platforms[path] = ("arm64", "amd64")
    both = all_checked(image=image)
    assert {finding.state for finding in both.findings if finding.subject == "image"} == {"ok"}
    assert both.vertex.image != single
    there.rest.project.platforms[path] = ("arm64",)
    only_arm = all_checked(image=image)
    (finding,) = (finding for finding in only_arm.findings if finding.subject == "image")
    assert finding.text == f"{image} is not for x86-64, which Vertex AI runs"


def test_a_root_image_that_is_none_is_refused(checked, vertex, there: GoogleCloud):
    path = f"{vertex.image.partition('/')[2]}-root"
    there.rest.project.images[path] = there.rest.project.images[vertex.image.partition("/")[2]]
    there.rest.project.users[path] = "pipeline"
    dataflow = Dataflow(PROJECT, REGION, f"gs://{BUCKET}/temp", f"{vertex.image}-root")
    image = checked(dataflow=dataflow)["image"]
    assert image.state == "wrong"
    assert image.text.endswith("runs as pipeline, not as root")


def test_where_a_registry_does_not_show_the_image_the_job_names_it_by_its_tag(all_checked, internet, there):
    there.rest.project.expired = False
    image = internet("private.invalid")
    found = all_checked(image=image)
    (finding,) = (finding for finding in found.findings if finding.subject == "image")
    assert finding.state == "unsure"
    assert finding.text.startswith(f"{image} cannot be looked at, jobs name it by its tag: ")
    assert found.vertex.image == image


def test_google_s_token_is_shown_to_google_s_registries_over_tls_and_to_nobody_else(
    checked, vertex, internet, there: GoogleCloud
):
    def seen() -> set[str]:
        # Not what google-auth asks about the account, nor the services here.
        services = {f"http://localhost:{there.rest.port}", "https://iamcredentials.googleapis.com"}
        return there.rest.saw_token - services

    assert checked(image=internet("us-central1-docker.pkg.dev"))["image"].state == "ok"
    assert seen() == {"https://us-central1-docker.pkg.dev"}, "and not to the address of the blob"
    assert checked(image=internet("eu.gcr.io"))["image"].state == "ok"
    assert seen() == {"https://us-central1-docker.pkg.dev", "https://eu.gcr.io"}
    there.rest.saw_token.clear()
    assert checked(image=internet(STRANGER.removeprefix("https://")))["image"].state == "ok"
    assert checked(image=internet(THIEF.removeprefix("https://")))["image"].state == "unsure"
    assert seen() == set()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://us-central1-docker.pkg.dev/v2/", True),
        ("https://gcr.io/v2/", True),
        ("https://EU.gcr.io/v2/", True),
        ("https://iam.googleapis.com/", True),
        ("http://us-central1-docker.pkg.dev/v2/", False),
        ("https://us-central1-docker.pkg.dev.example.com/", False),
        ("https://us-central1-docker.pkg.dev@example.com/", False),
        ("https://notgcr.io/", False),
        ("https://example.com/gcr.io", False),
    ],
)
def test_only_hosts_of_google_over_tls_are_google_s(url, expected):
    assert is_googles(url) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://example.com", True),
        ("http://localhost:80/", True),
        ("http://127.0.0.1/", True),
        ("http://[::1]:5000/", True),
        ("http://localhost.evil.com/", False),
        ("http://localhost@evil.com/", False),
        ("http://127.0.0.1.evil.com/", False),
    ],
)
def test_only_this_machine_is_asked_without_tls(url, expected):
    assert is_private(url) == expected


def test_a_registry_on_this_machine_is_asked_without_tls_and_without_a_token(vertex, cloud, there, monkeypatch):
    for host in ("localhost", "127.0.0.1"):
        read_image(vertex.image.replace("localhost", host), cloud)
    assert not any("127.0.0.1" in site for site in there.rest.saw_token)

    def unknown(*_: object) -> None:
        raise socket.gaierror("no such host")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # a real resolver may wait for its servers
    with pytest.raises(exceptions.ServiceUnavailable, match="HTTPSConnection"):
        read_image(vertex.image.replace("localhost", "localhost.evil.invalid"), cloud)


def test_an_address_of_a_service_without_tls_is_refused(there: GoogleCloud, monkeypatch):
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_IAM", "http://iam.example.com/")
    with pytest.raises(UserError, match="IAM is http://iam.example.com/; expected an address that starts with https"):
        Cloud.connect(PROJECT, REGION)


def test_the_labels_that_are_checked_are_those_the_dockerfile_writes():
    dockerfile = (Path(__file__).resolve().parents[3] / "Dockerfile").read_text()
    assert f"LABEL {preflight.FINGERPRINT_LABEL}=" in dockerfile
    assert f"{preflight.VERSIONS_LABEL}=" in dockerfile
