"""Sample how busy processors, memory and accelerators are while a training runs."""

import contextlib
import statistics
import threading
from collections.abc import Callable
from types import TracebackType

import psutil

from pipeline.training.accelerators import Accelerators
from pipeline.training.control_groups import free_memory, usable_cores

# Seconds between two looks at the machine, and between two at what Python does. Finding the processes below this one
# reads a file of every process of the machine, 20 ms for 500 of them: that is done every so many looks only.
EVERY, LOOK_EVERY, FIND_PROCESSES_EVERY = 1.0, 0.05, 10
# Columns of history.csv in which the highest of an epoch is kept, or the lowest; of the others the mean.
PEAKS = {"cpu_used": "cpu_used_peak", "accelerator_used": "accelerator_used_peak"}
HIGHEST, LOWEST = ("memory_bytes", "accelerator_memory_used"), ("memory_bytes_free",)


class Utilisation:
    """A thread that samples the machine until the block ends.

    Args:
        look: Called every ``LOOK_EVERY`` seconds, too.
    """

    def __init__(self, look: Callable[[], None] = lambda: None):
        self._look = look
        self._processes = [psutil.Process()]
        self._accelerators = Accelerators()
        self._cores = usable_cores()
        self._samples: list[dict[str, float]] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="utilisation", daemon=True)

    def __enter__(self) -> "Utilisation":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._accelerators.close()

    def take(self) -> dict[str, float]:
        """Return the columns of history.csv for the samples since the last call; none where there was no sample.

        ``cpu_used`` is this process and those below it, ``machine_cpu_used`` all of the machine, each as a share of the
        cores; ``memory_bytes`` the highest resident set, ``memory_bytes_free`` the least that was left to it;
        ``accelerator_used`` the share of the time in which a kernel ran, ``accelerator_memory_used`` the highest share.
        """
        with self._lock:
            samples, self._samples = self._samples, []
        columns = {}
        for name in dict.fromkeys(name for sample in samples for name in sample):
            values = [sample[name] for sample in samples if name in sample]
            if name in HIGHEST:
                columns[name] = max(values)
            elif name in LOWEST:
                columns[name] = min(values)
            else:
                columns[name] = statistics.mean(values)
                if name in PEAKS:
                    columns[PEAKS[name]] = max(values)
        return columns

    def _run(self) -> None:
        self._sample(0)  # psutil counts from the call before: the first answers nothing
        looks = round(EVERY / LOOK_EVERY)
        number = 0
        while not self._ended.wait(LOOK_EVERY):
            self._look()
            number += 1
            if number % looks == 0:
                sample = self._sample(number // looks)
                with self._lock:
                    self._samples.append(sample)

    def _sample(self, number: int) -> dict[str, float]:
        if number % FIND_PROCESSES_EVERY == 0:
            known = {process.pid: process for process in self._processes}
            with contextlib.suppress(psutil.Error):
                found = self._processes[0].children(recursive=True)
                self._processes[1:] = [known.get(process.pid, process) for process in found]
        busy = resident = 0.0
        for process in self._processes:
            with contextlib.suppress(psutil.Error):  # it has ended
                busy += process.cpu_percent() / 100
                resident += process.memory_info().rss
        return {
            "cpu_used": min(1.0, busy / self._cores),
            "machine_cpu_used": psutil.cpu_percent() / 100,
            "memory_bytes": resident,
            "memory_bytes_free": float(free_memory()),
            **self._accelerators.sample(),
        }
