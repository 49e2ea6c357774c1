"""The table of machines: what exists, what agrees, and what a wrong setting says."""

from pathlib import Path

import pytest

from pipeline.settings.checks import ConfigError, read_settings
from pipeline.settings.machines import Job, Machines, Resources

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"machine_type": "n2-standard-8", "accelerator": "NVIDIA_TESLA_T4", "accelerators": 1},
            r"n2-standard-8 does not take the accelerator 'NVIDIA_TESLA_T4': it takes none; machine types that do: "
            "n1-standard-8$",
        ),
        (
            {"machine_type": "g2-standard-24", "accelerator": "NVIDIA_L4", "accelerators": 1},
            r"g2-standard-24 takes 2 of NVIDIA_L4, got 1",
        ),
        ({"machine_type": "a2-highgpu-1g"}, r"comes with accelerators; say which: accelerator='NVIDIA_TESLA_A100'"),
        ({"accelerator": "NVIDIA_TESLA_T4"}, r"accelerators is 0; give both"),
        ({"accelerators": 2}, r"accelerator is None and accelerators is 2; give both"),
        ({"machine_type": "large"}, r"machine_type must be a machine type, such as n2-standard-4, got 'large'"),
        ({"replicas": 0}, r"replicas must be a whole number from 1 to 1000, got 0"),
        (
            {"machine_type": "ct5lp-hightpu-4t", "replicas": 2},
            r"replicas is 2 on ct5lp-hightpu-4t: TPUStrategy drives the TPU of one host",
        ),
        (
            {"machine_type": "ct6e-standard-4t"},
            r"TensorFlow trains on TPU v5e and older on Vertex AI, not from v6e on .*; take ct5lp-hightpu-1t, ct5lp",
        ),
        (
            {"machine_type": "a3-ultragpu-8g", "accelerator": "NVIDIA_H200_141GB", "accelerators": 8},
            r"boot_disk_type is 'pd-ssd': a3-ultragpu-8g boots from \"hyperdisk-balanced\" only",
        ),
        ({"reduction_servers": 1}, r"reduction_servers is 1: .* there are 1 replicas with 0 each; set replicas to 2"),
        ({"spot": True, "restart": False}, r"restart is False on spot machines"),
        ({"boot_disk_gib": 50}, r"boot_disk_gib must be a whole number from 100"),
        ({"boot_disk_type": "ssd"}, r"boot_disk_type must be one of pd-ssd, .* got 'ssd'"),
        ({"tensorboard": "mine"}, r"tensorboard must be projects/PROJECT/locations/REGION/tensorboards/ID, got 'mine'"),
        ({"timeout_hours": 200}, r"timeout_hours must be above 0 and at most 168, got 200"),
    ],
)
def test_a_job_that_cannot_be_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Job(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cpu": 0}, r"cpu must be a whole number from 1 to 224, got 0"),
        ({"accelerator": "T4", "accelerators": 1}, r"no accelerator 'T4' for a task; expected one of NVIDIA_"),
        ({"accelerator": "TPU_V3", "accelerators": 8}, r"A TPU needs a separate job"),
        ({"accelerator": "NVIDIA_L4", "accelerators": 3}, r"accelerators must be one of 1 or 2 or 4"),
    ],
)
def test_resources_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Resources(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"search_with": "vizier"}, r"without a job to run trials on; set tuning=Job"),
        ({"search_with": "grid"}, r"search_with must be one of keras_tuner, vizier, got 'grid'"),
        (
            {"training": Job(), "tasks": {"Trainer": Resources(8, 32, "NVIDIA_TESLA_T4", 1)}},
            r"its task, which only waits for that, has an accelerator; take it out of tasks\['Trainer'\]",
        ),
        (
            {"tuning": Job("g2-standard-8", "NVIDIA_L4", 1, replicas=2, reduction_servers=1)},
            r"tuning.reduction_servers: trials do not train together",
        ),
        (
            {"tasks": {"Trainr": Resources()}},
            r"tasks names 'Trainr', which is no task of the pipeline; the nearest is 'Trainer'. There are Ex.*"
            "Report, Monitor, default",
        ),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Machines(**settings)


def test_a_task_that_only_waits_for_its_job_is_small():
    table = Machines({"default": Resources(16, 64), "Trainer": Resources(32, 96)}, training=Job(replicas=2))
    assert table.task("Trainer").memory_gib < table.task("Tuner").memory_gib == 64


def test_the_default_table_loads():
    assert read_settings(ROOT / "configs/machines.py", "MACHINES", Machines).task("Transform").cpu


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"no file .*machines.py; expected a Python file with MACHINES"),
        ("MACHINES = 3", r"defines no MACHINES = Machines\(...\), found int"),
        ("import nothing_of_that_name", r"does not run: ModuleNotFoundError"),
        (
            "from pipeline.config import Job, Machines\nMACHINES = Machines(training=Job(replicas=0))",
            r"machines.py: replicas must be",
        ),
    ],
)
def test_a_file_without_a_table_is_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / "machines.py").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_settings(tmp_path / "machines.py", "MACHINES", Machines)


@pytest.mark.parametrize("limit", [0, -1, float("nan"), "5"])
def test_a_budget_that_is_no_amount_is_refused(limit):
    with pytest.raises(ConfigError, match="max_cost must be US dollars, a number above 0, got"):
        Machines(max_cost=limit)
