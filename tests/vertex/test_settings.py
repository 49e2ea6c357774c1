"""Flags and environment become settings; all that is wrong is said together, at once and without Google Cloud."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli.vertex import settings
from pipeline.cli.vertex.arguments import parse_arguments
from pipeline.errors import UserError
from pipeline.packaging import fingerprints
from pipeline.settings.machines import Job, Machines, Resources
from pipeline.settings.target import Vertex
from pipeline.vertex.cloud import Cloud
from tests.fakes.google_cloud import GoogleCloud

ROOT = Path(__file__).resolve().parents[2]
COMPLETE = ("--project=demo", "--region=us-central1", "--bucket=demo-bucket")


def read(*flags: str, **environment: str) -> Vertex:
    return settings.read(parse_arguments(["compile", "out", *flags], environment), ROOT)


def test_without_settings_every_missing_one_is_named_with_its_remedy_at_once(tmp_path):
    process = subprocess.run(
        [sys.executable, "-X", "importtime", str(ROOT / "vertex_runner.py")],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 2
    assert process.stdout == ""
    lines = [line for line in process.stderr.splitlines() if not line.startswith("import time:")]
    assert [line.split(" is missing: ")[0] for line in lines[:-1]] == [
        "vertex_runner.py: --project (or GOOGLE_CLOUD_PROJECT)",
        "vertex_runner.py: --region (or GOOGLE_CLOUD_REGION)",
        "vertex_runner.py: --bucket (or VERTEX_BUCKET)",
    ]
    assert "gcloud storage buckets create" in lines[2]
    assert "vertex_runner.py rehearse" in lines[-1]
    timed = (line for line in process.stderr.splitlines() if line.startswith("import time:"))
    imported = {line.rpartition("|")[2].strip() for line in timed}
    assert "pipeline.errors" in imported
    heavy = {"tensorflow", "tfx", "kfp", "pandas", "google.cloud.aiplatform"}
    assert not imported & heavy


def test_the_image_is_the_one_that_make_image_builds_from_this_code():
    assert read(*COMPLETE).image == f"us-central1-docker.pkg.dev/demo/{fingerprints.image_name()}"
    assert read(*COMPLETE, "--image=eu.gcr.io/p/other:2").image == "eu.gcr.io/p/other:2"


def test_dataflow_and_vizier_get_the_image_with_root_as_its_user_and_the_tasks_do_not():
    vertex = read(*COMPLETE, "--dataflow=on")
    assert vertex.dataflow is not None
    assert vertex.dataflow.image == vertex.image_as_root == f"{vertex.image}-root"
    named = read(*COMPLETE, "--image=eu.gcr.io/p/i@sha256:12", "--root-image=eu.gcr.io/p/i@sha256:34", "--dataflow=on")
    assert named.image == "eu.gcr.io/p/i@sha256:12"
    assert named.dataflow.image == named.image_as_root == "eu.gcr.io/p/i@sha256:34"


@pytest.mark.parametrize("needs_root", [["--dataflow=on"], ["--tuner-workers=2", "--search-with=vizier"]])
def test_an_image_named_by_its_digest_needs_the_name_of_the_one_with_root(needs_root):
    with pytest.raises(UserError, match=r"^--root-image \(or VERTEX_ROOT_IMAGE\) is missing: eu.gcr.io/p/i@sha256:12"):
        read(*COMPLETE, "--image=eu.gcr.io/p/i@sha256:12", *needs_root)
    assert read(*COMPLETE, "--image=eu.gcr.io/p/i@sha256:12").image.endswith("12")


def test_a_flag_goes_before_its_variable_and_a_blank_variable_is_none():
    vertex = read(*COMPLETE, "--project=flag", GOOGLE_CLOUD_PROJECT="variable", VERTEX_NETWORK=" ")
    assert vertex.project == "flag"
    assert vertex.network is None


def test_every_setting_may_come_from_the_environment():
    vertex = read(
        GOOGLE_CLOUD_PROJECT="demo",
        GOOGLE_CLOUD_LOCATION="europe-west4",
        VERTEX_BUCKET="gs://demo-bucket/",
        VERTEX_SERVICE_ACCOUNT="p@demo.iam.gserviceaccount.com",
        VERTEX_NETWORK="projects/12/global/networks/default",
        VERTEX_ENCRYPTION_KEY="projects/demo/locations/europe-west4/keyRings/r/cryptoKeys/k",
        VERTEX_LABELS="team=flights, stage=test",
        VERTEX_CACHING="off",
        VERTEX_EXPERIMENT="late-flights",
        VERTEX_FAILURE_POLICY="fast",
        VERTEX_DATAFLOW="on",
        VERTEX_DATAFLOW_MAX_WORKERS="7",
    )
    assert (vertex.region, vertex.bucket) == ("europe-west4", "demo-bucket")
    assert vertex.labels == {"team": "flights", "stage": "test"}
    assert (vertex.caching, vertex.experiment, vertex.failure_policy) == (False, "late-flights", "fast")
    assert vertex.dataflow is not None
    assert (vertex.dataflow.max_workers, vertex.dataflow.service_account) == (7, "p@demo.iam.gserviceaccount.com")
    assert f"--dataflow_kms_key={vertex.encryption_key}" in vertex.dataflow.beam_args
    assert "--labels=team=flights" in vertex.dataflow.beam_args


def test_all_that_is_wrong_is_said_together():
    with pytest.raises(UserError) as caught:
        read(
            "--project=Demo",
            "--bucket=gs://b/folder",
            "--service-account=me",
            "--network=default",
            "--image=https://europe-west4-docker.pkg.dev/p/r/i:1",
            "--encryption-key=k",
            "--labels=team,Stage=x",
            "--caching=maybe",
            "--failure-policy=never",
            "--experiment=abc",
            "--dataflow-max-workers=none",
        )
    text = str(caught.value)
    for expected in (
        "--region (or GOOGLE_CLOUD_REGION) is missing",
        "--project must be a project id, such as my-project, got 'Demo'",
        "--bucket must be the name of a bucket without gs://, such as my-bucket, got 'b/folder'",
        "--service-account must be its e-mail address",
        "--network must be projects/PROJECT_NUMBER/global/networks/NAME, got 'default'",
        "--image must be an image with its tag or digest, such as REGION-docker.pkg.dev/p/r/i:tag, got 'https://",
        "--encryption-key must be projects/PROJECT/locations/REGION/keyRings/RING/cryptoKeys/KEY, got 'k'",
        "--labels must be key=value,key=value, got 'team'",
        "such as team=flights, got Stage=x",
        "--caching must be on or off, got 'maybe'",
        "--failure-policy must be fast or slow, got 'never'",
        "--experiment must be 4 to 128 lower-case letters, digits and -, got 'abc'",
        "--dataflow-max-workers must be a whole number of 1 or more, got 'none'",
    ):
        assert expected in text, expected


@pytest.mark.parametrize(
    ("table", "flags", "sentence"),
    [
        (
            'training=Job("n9-standard-8")',
            [],
            "training.machine_type: .* no machine type 'n9-standard-8'; the nearest is",
        ),
        (
            "tuning=Job('n2-standard-9')",
            [],
            r"tuning.machine_type: .*; the nearest is n2-standard-.*into its \[shapes\]",
        ),
        ("", ["--dataflow-machine-type=n2-standrd-4"], "--dataflow-machine-type: .*; the nearest is n2-standard-4"),
        ("", ["--dataflow=on", "--dataflow-machine-type=big"], "(?m)^--dataflow-machine-type must be a machine type"),
    ],
)
def test_a_machine_type_that_does_not_exist_is_refused_before_anything_is_compiled(tmp_path, table, flags, sentence):
    (tmp_path / "machines.py").write_text(f"from pipeline.config import Job, Machines\nMACHINES = Machines({table})\n")
    with pytest.raises(UserError, match=sentence):
        read(*COMPLETE, f"--machines={tmp_path / 'machines.py'}", *flags)


def test_machine_types_without_a_price_and_hosts_of_tpus_are_taken(tmp_path):
    for job in ('Job("c3-standard-8")', 'Job("ct5lp-hightpu-4t")'):
        (tmp_path / "machines.py").write_text(
            f"from pipeline.config import Job, Machines\nMACHINES = Machines(training={job})\n"
        )
        assert read(*COMPLETE, f"--machines={tmp_path / 'machines.py'}").machines.training


def test_an_encryption_key_of_another_region_is_refused():
    with pytest.raises(UserError, match="must be in the region us-central1"):
        read(*COMPLETE, "--encryption-key=projects/p/locations/us-east1/keyRings/r/cryptoKeys/k")


def test_addresses_of_services_come_from_gclouds_variables(there: GoogleCloud):
    assert Cloud.connect("demo", "us-central1").endpoints == there.endpoints


def test_a_table_with_gpus_takes_the_image_with_cuda():
    assert not Machines().gpus
    assert not Machines(training=Job("ct5lp-hightpu-4t")).gpus
    assert Machines(tasks={"Trainer": Resources(8, 32, "NVIDIA_TESLA_T4", 1)}).gpus
    assert Machines(tuning=Job("g2-standard-8", "NVIDIA_L4", 1)).gpus
    assert fingerprints.image_name("gpu") == f"{fingerprints.image_name()}-gpu"


def test_problems_of_the_machines_are_said_with_the_rest(tmp_path):
    process = subprocess.run(
        [sys.executable, str(ROOT / "vertex_runner.py"), "--project=demo", "--training-workers=none"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 2
    assert "--bucket (or VERTEX_BUCKET) is missing" in process.stderr
    assert "--training-workers must be a whole number of 1 or more, got 'none'" in process.stderr
    assert process.stderr.endswith("run: python vertex_runner.py rehearse\n")


def test_a_rehearsal_is_named_only_to_whom_a_project_is_missing(tmp_path):
    (tmp_path / "machines.py").write_text("MACHINES = 1")
    process = subprocess.run(
        [sys.executable, str(ROOT / "vertex_runner.py"), "check", *COMPLETE, f"--machines={tmp_path / 'machines.py'}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 2
    assert "defines no MACHINES = Machines(...), found int" in process.stderr
    assert "rehearse" not in process.stderr
