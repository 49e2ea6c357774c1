"""Machines on Vertex AI: ``configs/machines.py`` holds one ``MACHINES = Machines(...)``."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pipeline.settings.checks import ConfigError, check_settings, number, text, whole

SearchService = Literal["keras_tuner", "vizier"]
DEFAULT = "default"
# Tasks of the compiled job that run a container, in the order of the graph (importers and resolvers run none), and the
# monitoring task, which is a separate job. Add new components of the graph here.
TASKS = (
    *("ExampleGen", "StatisticsGen", "SchemaGen", "ExampleValidator", "DataGate", "Baselines", "Transform", "Tuner"),
    *("Trainer", "ModelCheck", "Evaluator", "Pusher", "Verdict", "Report"),
)
MONITOR = "Monitor"

# Accelerators and how many of them a machine type takes (cloud.google.com/vertex-ai/docs/training/configure-compute).
_N1 = {
    "NVIDIA_TESLA_T4": (1, 2, 4),
    "NVIDIA_TESLA_P4": (1, 2, 4),
    "NVIDIA_TESLA_P100": (1, 2, 4),
    "NVIDIA_TESLA_V100": (1, 2, 4, 8),
}
ACCELERATORS: dict[str, dict[str, tuple[int, ...]]] = {
    r"n1-(standard|highmem|highcpu)-\d+": _N1,
    r"g2-standard-(4|8|12|16|32)": {"NVIDIA_L4": (1,)},
    r"g2-standard-24": {"NVIDIA_L4": (2,)},
    r"g2-standard-48": {"NVIDIA_L4": (4,)},
    r"g2-standard-96": {"NVIDIA_L4": (8,)},
    **{rf"a2-highgpu-{count}g": {"NVIDIA_TESLA_A100": (count,)} for count in (1, 2, 4, 8)},
    r"a2-megagpu-16g": {"NVIDIA_TESLA_A100": (16,)},
    **{rf"a2-ultragpu-{count}g": {"NVIDIA_A100_80GB": (count,)} for count in (1, 2, 4, 8)},
    **{rf"a3-highgpu-{count}g": {"NVIDIA_H100_80GB": (count,)} for count in (1, 2, 4, 8)},
    r"a3-megagpu-8g": {"NVIDIA_H100_MEGA_80GB": (8,)},
    r"a3-ultragpu-8g": {"NVIDIA_H200_141GB": (8,)},
    r"a4-highgpu-8g": {"NVIDIA_B200": (8,)},
    # TPU hosts: the chips are part of the type, and a topology says how they are connected.
    r"ct5lp-hightpu-[148]t": {},
    r"cloud-tpu": {"TPU_V2": (8,), "TPU_V3": (8,)},
}
# Machines that boot from no Persistent Disk (DiskSpec.boot_disk_type; cloud.google.com/compute/docs/gpus).
HYPERDISK_ONLY = r"a3-ultragpu-8g|a4-highgpu-8g"
TPU_HOST = r"ct\w+-\w+-\dt"
# The one topology that the chips of a host have (cloud.google.com/vertex-ai/docs/training/configure-compute#tpu).
TOPOLOGIES = {"ct5lp-hightpu-1t": "1x1", "ct5lp-hightpu-4t": "2x2", "ct5lp-hightpu-8t": "2x4"}
GPU_COUNTS = (1, 2, 4, 8, 16)
Disk = Literal["pd-ssd", "pd-standard", "hyperdisk-balanced"]
Hours = Annotated[float, number("above 0 and at most 168", lambda value: 0 < value <= 168)]
MachineType = Annotated[str, text("a machine type, such as n2-standard-4", r"[a-z0-9]+-[a-z0-9-]+")]
Dollars = Annotated[float, number("US dollars, a number above 0", lambda value: value > 0)]
ServiceAccount = Annotated[
    str, text("its e-mail address, ...gserviceaccount.com", r"[^@\s]+@[^@\s]+\.gserviceaccount\.com")
]
TensorBoard = Annotated[
    str,
    text("projects/PROJECT/locations/REGION/tensorboards/ID", r"projects/[^/]+/locations/[^/]+/tensorboards/[^/]+"),
]


@dataclass(frozen=True)
class Resources:
    """CPU, memory and GPUs of a task of the pipeline; Vertex AI picks a machine type that has it.

    Attributes:
        cpu: Cores.
        memory_gib: Memory in GiB.
        accelerator: Such as "NVIDIA_TESLA_T4"; None: no accelerator.
        accelerators: Number of accelerators.
    """

    cpu: Annotated[int, whole(1, 224)] = 4
    memory_gib: Annotated[int, whole(1, 3072)] = 16
    accelerator: str | None = None
    accelerators: int = 0

    def __post_init__(self) -> None:
        check_settings("", self)
        _check_count(self.accelerator, self.accelerators)
        known = sorted({name for taken in ACCELERATORS.values() for name in taken if not name.startswith("TPU")})
        if self.accelerator and self.accelerator not in known:
            raise ConfigError(
                f"no accelerator {self.accelerator!r} for a task; expected one of {', '.join(known)}. "
                "A TPU needs a separate job: training=Job(...)"
            )
        if self.accelerator and self.accelerators not in GPU_COUNTS:
            raise ConfigError(f"accelerators must be one of {_listed(GPU_COUNTS)}, got {self.accelerators!r}")


@dataclass(frozen=True)
class Job:
    """The Trainer or the Tuner as a separate job; its worker pools are derived from these settings.

    Attributes:
        machine_type: Machine type of every replica.
        accelerator: Accelerator of every replica, such as "NVIDIA_L4"; None: none. The type of a TPU host implies it.
        accelerators: Number of accelerators per replica.
        replicas: Number of processes, including the chief, that train together or search in parallel.
        reduction_servers: Machines without accelerators that add up the gradients of GPU replicas:
            cloud.google.com/vertex-ai/docs/training/distributed-training
        reduction_machine_type: Machine type of the reduction servers.
        spot: Use spot machines, at a fraction of the price; the job continues after a preemption.
        restart: Start all replicas again when one is lost.
        boot_disk_gib: Size of the disk, which also holds what does not fit into memory.
        boot_disk_type: Kind of the disk.
        tensorboard: "projects/P/locations/L/tensorboards/T" to show the training live; it needs a service account.
        timeout_hours: Time after which the job is ended, whatever its state; Vertex AI allows at most 168.
    """

    machine_type: MachineType = "n1-standard-8"
    accelerator: str | None = None
    accelerators: int = 0
    replicas: Annotated[int, whole(1, 1000)] = 1
    reduction_servers: Annotated[int, whole(0, 1000)] = 0
    reduction_machine_type: MachineType = "n1-highcpu-16"
    spot: bool = False
    restart: bool = True
    boot_disk_gib: Annotated[int, whole(100, 64_000)] = 100
    boot_disk_type: Disk = "pd-ssd"
    tensorboard: TensorBoard | None = None
    timeout_hours: Hours = 24

    def __post_init__(self) -> None:
        check_settings("", self)
        check_accelerator(self.machine_type, self.accelerator, self.accelerators)
        if self.tpu and self.machine_type not in (*TOPOLOGIES, "cloud-tpu"):
            raise ConfigError(
                f"machine_type is {self.machine_type!r}: TensorFlow trains on TPU v5e and older on Vertex AI, not from "
                f"v6e on (cloud.google.com/vertex-ai/docs/training/training-with-tpu-vm); take {', '.join(TOPOLOGIES)}"
            )
        if self.tpu and self.replicas > 1:
            raise ConfigError(
                f"replicas is {self.replicas} on {self.machine_type}: TPUStrategy drives the TPU of one host; set "
                "replicas=1 and take a host with more chips"
            )
        if self.reduction_servers and not (self.replicas > 1 and self.accelerator):
            raise ConfigError(
                f"reduction_servers is {self.reduction_servers}: Reduction Server adds up gradients between replicas "
                f"with GPUs, and there are {self.replicas} replicas with {self.accelerators} each; set replicas to 2 "
                "or more and give them GPUs, or leave reduction_servers out"
            )
        if re.fullmatch(HYPERDISK_ONLY, self.machine_type) and self.boot_disk_type != "hyperdisk-balanced":
            raise ConfigError(
                f'boot_disk_type is {self.boot_disk_type!r}: {self.machine_type} boots from "hyperdisk-balanced" only'
            )
        if self.spot and not self.restart:
            raise ConfigError("restart is False on spot machines: the job would end with the first one taken away")

    @property
    def tpu(self) -> bool:
        """Return whether the replicas have TPUs."""
        return is_tpu(self.machine_type)


@dataclass(frozen=True)
class Machines:
    """The machines of each component.

    Attributes:
        tasks: Resources by component, such as "Transform"; "default" is for those not named.
        training: The Trainer as a CustomJob; None: in its task, with that task's accelerators.
        tuning: The Tuner as a job; None: in its task.
        search_with: What chooses the values of the Tuner's job: "keras_tuner", or "vizier": Vertex AI Vizier, with
            ``tuning.replicas`` trials at the same time.
        max_cost: Largest estimate of one run in US dollars, without the monthly cost of endpoint and storage. None: no
            limit. --max-cost goes first.
    """

    tasks: Mapping[str, Resources] = field(default_factory=dict)
    training: Job | None = None
    tuning: Job | None = None
    search_with: SearchService = "keras_tuner"
    max_cost: Dollars | None = None

    def __post_init__(self) -> None:
        check_settings("", self)
        for name in sorted({*self.tasks} - {*TASKS, MONITOR, DEFAULT}):
            (near,) = difflib.get_close_matches(name, TASKS, 1, cutoff=0)
            raise ConfigError(
                f"tasks names {name!r}, which is no task of the pipeline; the nearest is {near!r}. There are "
                f"{', '.join((*TASKS, MONITOR, DEFAULT))}"
            )
        if self.search_with == "vizier" and self.tuning is None:
            raise ConfigError('search_with is "vizier" without a job to run trials on; set tuning=Job(...)')
        if self.tuning and self.tuning.reduction_servers:
            raise ConfigError("tuning.reduction_servers: trials do not train together; leave it out")
        for component, job in (("Trainer", self.training), ("Tuner", self.tuning)):
            if job and component in self.tasks and self.tasks[component].accelerator:
                raise ConfigError(
                    f"the {component} runs as a job, and its task, which only waits for that, has an accelerator; "
                    f"take it out of tasks[{component!r}]"
                )

    @property
    def gpus(self) -> bool:
        """Return whether a task or job has GPUs, so that the image must have CUDA."""
        machines = (*self.tasks.values(), self.training, self.tuning)
        return any(machine and (machine.accelerator or "").startswith("NVIDIA") for machine in machines)

    def task(self, component: str) -> Resources:
        """Return the resources of a component's task, little for one that only waits for a job."""
        waits = (component == "Trainer" and self.training) or (component == "Tuner" and self.tuning)
        return WAITING if waits else self.tasks.get(component) or self.tasks.get(DEFAULT, Resources())

    def check_strategy(self, strategy: str) -> None:
        """Raise ConfigError unless the training strategy can use the machines and leaves none of them idle."""
        job = self.training
        replicas = job.replicas if job else 1
        accelerators = job.accelerators if job else self.task("Trainer").accelerators
        tpu = bool(job and job.tpu)
        where = f"training=Job(machine_type={job.machine_type!r}, replicas={replicas})" if job else "the Trainer's task"
        if strategy == "multi_worker" and replicas < 2:
            raise ConfigError(
                f'training.strategy is "multi_worker" and {where} is one process; give it training=Job(replicas=2) or '
                'more, or take the strategy "auto"'
            )
        if strategy in ("one_device", "mirrored", "tpu") and replicas > 1:
            raise ConfigError(
                f"training.strategy is {strategy!r} and {where} has {replicas} processes, which would each train a "
                'model of their own; take "auto" or "multi_worker", or replicas=1'
            )
        if (strategy == "tpu" and not tpu) or (tpu and strategy not in ("auto", "tpu")):
            raise ConfigError(
                f"training.strategy is {strategy!r} and {where} has {'a' if tpu else 'no'} TPU; "
                + ('take "auto" or "tpu"' if tpu else 'take a TPU host, such as ct5lp-hightpu-4t, or "auto"')
            )
        if strategy == "one_device" and accelerators > 1:
            raise ConfigError(
                f'training.strategy is "one_device" and {where} has {accelerators} accelerators, of which all but one '
                'would be idle; take "auto" or "mirrored", or accelerators=1'
            )


def is_tpu(machine_type: str) -> bool:
    """Return whether a machine type is a TPU host."""
    return machine_type == "cloud-tpu" or bool(re.fullmatch(TPU_HOST, machine_type))


def check_accelerator(machine_type: str, accelerator: str | None, count: int) -> None:
    """Raise ConfigError unless the machine type takes ``count`` of the accelerator, or needs no accelerator."""
    _check_count(accelerator, count)
    taken = next((taken for pattern, taken in ACCELERATORS.items() if re.fullmatch(pattern, machine_type)), {})
    if accelerator is None:
        if taken and taken is not _N1:
            raise ConfigError(
                f"{machine_type} comes with accelerators; say which: accelerator={next(iter(taken))!r}, "
                f"accelerators={taken[next(iter(taken))][0]}"
            )
        return
    if accelerator not in taken:
        others = [_example(pattern) for pattern, those in ACCELERATORS.items() if accelerator in those]
        remedy = f"machine types that do: {', '.join(others)}" if others else "no machine type known here does"
        offer = f"it takes {', '.join(taken)}" if taken else "it takes none"
        raise ConfigError(f"{machine_type} does not take the accelerator {accelerator!r}: {offer}; {remedy}")
    if count not in taken[accelerator]:
        raise ConfigError(f"{machine_type} takes {_listed(taken[accelerator])} of {accelerator}, got {count!r}")


def _check_count(accelerator: str | None, count: int) -> None:
    if (accelerator is None) != (count == 0):
        raise ConfigError(
            f"accelerator is {accelerator!r} and accelerators is {count!r}; give both, such as "
            'accelerator="NVIDIA_TESLA_T4", accelerators=1, or neither'
        )


def _example(pattern: str) -> str:
    """Return a machine type of a pattern of ACCELERATORS: of each choice the first."""
    return re.sub(r"\((\w+)\|[^)]*\)", r"\1", pattern).replace(r"\d+", "8").replace("[148]", "4")


def _listed(numbers: tuple[int, ...]) -> str:
    return " or ".join(map(str, numbers))


# Resources of a task whose work a job does.
WAITING = Resources(2, 8)
