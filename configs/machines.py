"""Machines of the default pipeline's components on Vertex AI; the settings: pipeline/settings/machines.py."""

from pipeline.config import Machines, Resources

MACHINES = Machines(
    tasks={
        "default": Resources(cpu=4, memory_gib=16),
        "Transform": Resources(cpu=8, memory_gib=32),
        "Tuner": Resources(cpu=8, memory_gib=32),
        "Trainer": Resources(cpu=8, memory_gib=32),
    },
)
