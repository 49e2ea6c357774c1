"""Sample how busy the NVIDIA GPUs of this machine are, by the program that comes with their driver."""

import contextlib
import os
import shutil
import statistics
import subprocess
import threading

# nvidia-smi's own words for what is asked, documented by `nvidia-smi --help-query-gpu`: percent of the last second in
# which a kernel ran, and MiB. With these options it answers a line per GPU, "37, 1024, 15360", again every second; what
# a GPU does not count, as one that is divided, is "[N/A]".
QUERY = "utilization.gpu,memory.used,memory.total"
MILLISECONDS = 1000


class Accelerators:
    """The latest answers of nvidia-smi; nothing where there is no such program or this process may use no GPU."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        program, visible = shutil.which("nvidia-smi"), os.environ.get("CUDA_VISIBLE_DEVICES")
        if program is None or visible in ("", "-1", "NoDevFiles"):
            return
        command = [program, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits", f"--loop-ms={MILLISECONDS}"]
        if visible:
            command.append(f"--id={visible}")
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True
            )
            threading.Thread(target=self._read, name="nvidia-smi", daemon=True).start()

    def sample(self) -> dict[str, float]:
        """Return ``accelerator_used`` and ``accelerator_memory_used``, shares from 0 to 1, means over the GPUs."""
        with self._lock:
            lines, self._lines = self._lines, []
        used, memory = [], []
        for line in lines:
            values = [_number(text) for text in line.split(",")]
            if len(values) != 3:
                continue
            busy, taken, total = values
            if busy is not None:
                used.append(busy / 100)
            if taken is not None and total:
                memory.append(taken / total)
        columns = {"accelerator_used": used, "accelerator_memory_used": memory}
        return {name: statistics.mean(values) for name, values in columns.items() if values}

    def close(self) -> None:
        """End the program."""
        if self._process:
            self._process.terminate()
            self._process.wait()

    def _read(self) -> None:
        assert self._process
        assert self._process.stdout
        for line in self._process.stdout:
            with self._lock:
                self._lines.append(line)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
