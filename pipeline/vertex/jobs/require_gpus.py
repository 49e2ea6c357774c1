"""Run a command on a machine with GPUs; fail if TensorFlow sees none, because it would compute on the CPU.

python -m pipeline.vertex.jobs.require_gpus python -m tfx.scripts.run_executor ...
"""

import ctypes
import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence

from pipeline.vertex import rehearsing

PREFIX = ("python", "-m", "pipeline.vertex.jobs.require_gpus")
COUNT_GPUS = "import tensorflow; print(len(tensorflow.config.list_physical_devices('GPU')))"


def on_gpus(command: Sequence[str], accelerator: str | None) -> list[str]:
    """Return a container's command, behind this module if the accelerator of its machine is a GPU."""
    return [*PREFIX, *command] if (accelerator or "").startswith("NVIDIA") else list(command)


def main() -> int:
    """Become the command in the arguments if TensorFlow sees a GPU; a rehearsal needs none."""
    if not rehearsing():
        # In a separate process: what a task imports first decides about its Keras. TensorFlow's messages about missing
        # libraries go to the log, above ours.
        counted = subprocess.run([sys.executable, "-c", COUNT_GPUS], stdout=subprocess.PIPE, text=True, check=False)
        if counted.returncode:
            return counted.returncode
        if int(counted.stdout.split()[-1]) == 0:
            print(
                "this machine has GPUs by the table of machines, and TensorFlow sees none: it would compute on the CPU "
                f"at the price of the GPUs. {_cause()}",
                file=sys.stderr,
            )
            return 1
    os.execvp(sys.argv[1], sys.argv[1:])


def _cause() -> str:
    if importlib.util.find_spec("nvidia") is None:
        return "This image has no CUDA: build and name the one for GPUs, with make image VARIANT=gpu"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        folders = os.environ.get("LD_LIBRARY_PATH")
        return (
            f"NVIDIA's driver cannot be loaded ({error}). Vertex AI puts it into /usr/local/nvidia/lib64, expected in "
            f"LD_LIBRARY_PATH, which is {folders!r}"
        )
    return "TensorFlow's reason stands above; expected are the versions of CUDA and cuDNN of requirements-gpu.lock"


if __name__ == "__main__":
    sys.exit(main())
