"""The worker that samples the GPUs through NVML, and sends each Xid as it comes.

It asks the driver, which may hang in the kernel: so it is a process with a deadline. Messages: `sample` every
few seconds, and `xid`. It ends with the result {"absent": why} where the machine has no NVIDIA driver. While
it runs, it holds the driver's devices open.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import pynvml as nvml

from stoker.kit.workers.child import Report, run_worker
from stoker.store.errors import UnavailableError

ABSENT = (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
VANISHED = (nvml.NVML_ERROR_UNINITIALIZED, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
LACKING = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def ecc_errors(handle: Any) -> dict[str, int]:
    """Returns the memory errors that ECC has met in the card's life, by whether it could correct them."""
    kinds = {"corrected": nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED}
    kinds |= {"uncorrected": nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED}
    ever = nvml.NVML_AGGREGATE_ECC
    return {name: nvml.nvmlDeviceGetTotalEccErrors(handle, kind, ever) for name, kind in kinds.items()}


def processes(handle: Any) -> dict[int, int]:
    """Returns the bytes of each process that computes on the card, by pid."""
    found = {each.pid: each.usedGpuMemory for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    if None in found.values():  # Windows keeps these books itself
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    return found


FIGURES: Mapping[str, Callable[[Any], Any]] = {
    "memory_used_bytes": lambda handle: nvml.nvmlDeviceGetMemoryInfo(handle).used,
    "memory_total_bytes": lambda handle: nvml.nvmlDeviceGetMemoryInfo(handle).total,
    "processes": processes,
    "utilization_ratio": lambda handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
    "temperature_celsius": lambda handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
    "power_watts": lambda handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    "energy_joules_total": lambda handle: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
    "sm_clock_hertz": lambda handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 10**6,
    "clock_event": nvml.nvmlDeviceGetCurrentClocksEventReasons,
    "ecc_errors_total": ecc_errors,
    "remap_pending": lambda handle: nvml.nvmlDeviceGetRemappedRows(handle)[2],
}


class Device:
    """A card of this session with the driver; `handle` is None where the driver does not give it out."""

    def __init__(self, index: int) -> None:
        self.index, self.uuid, self.name = index, "", ""
        self.handle: Any = None
        self.has_events = False
        with contextlib.suppress(nvml.NVMLError):
            self.handle = nvml.nvmlDeviceGetHandleByIndex(index)
            self.uuid = nvml.nvmlDeviceGetUUID(self.handle)
            self.name = nvml.nvmlDeviceGetName(self.handle)

    def registers(self, events: Any) -> bool:
        """Has the driver put the card's Xids into a set of events; returns whether it does."""
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlDeviceRegisterEvents(self.handle, nvml.nvmlEventTypeXidCriticalError, events)
            self.has_events = True
            return True
        return False

    def sample(self) -> dict[str, Any]:
        """Returns the card's figures; a card that says it is lost, or answers nothing, has none."""
        figures: dict[str, Any] = {}
        lacks = [] if self.has_events else ["xid_total"]
        is_lost = self.handle is None
        for name, read in () if is_lost else FIGURES.items():
            try:
                figures[name] = read(self.handle)
            except nvml.NVMLError as error:
                if error.value in VANISHED:
                    raise
                is_lost |= error.value == nvml.NVML_ERROR_GPU_IS_LOST
                if error.value in LACKING:
                    lacks.append(name)
                else:
                    figures[name] = None
        is_lost |= bool(figures) and all(value is None for value in figures.values())
        about = {"index": self.index, "uuid": self.uuid, "name": self.name, "is_lost": is_lost}
        return {**about, "figures": {} if is_lost else figures, "lacks": lacks}


class Xids:
    """Waits for the Xids of all devices; the driver keeps what comes between two waits."""

    def __init__(self, devices: list[Device]) -> None:
        self._devices = devices
        self._set: Any = None
        self._register()

    def wait(self, seconds: float, report: Report) -> None:
        """Sends the Xids of the next seconds."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            if self._set is None:
                time.sleep(left_s)
                continue
            try:
                event = nvml.nvmlEventSetWait(self._set, int(left_s * 1000) + 1)
            except nvml.NVMLError as error:
                if error.value != nvml.NVML_ERROR_TIMEOUT:  # such as a card that is lost: wait for the others
                    time.sleep(left_s)
                    self._register()
                continue
            self._send(event, report)

    def _send(self, event: Any, report: Report) -> None:
        for device in self._devices:
            if device.handle is not None and _address(device.handle) == _address(event.device):
                report("xid", index=device.index, uuid=device.uuid, number=event.eventData)

    def _register(self) -> None:
        """Asks for the Xids of every device that has them; without any there is no set."""
        old, self._set = self._set, None
        with contextlib.suppress(nvml.NVMLError):
            if old is not None:
                nvml.nvmlEventSetFree(old)
            new = nvml.nvmlEventSetCreate()
            for device in self._devices:
                if device.handle is not None and device.registers(new):
                    self._set = new


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    # A stop ends it inside a call of the driver, where no handler runs: it leaves nothing behind.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        nvml.nvmlInit()
        devices = [Device(index) for index in range(nvml.nvmlDeviceGetCount())]
        xids = Xids(devices)
        while True:
            report("sample", cards=[device.sample() for device in devices])
            xids.wait(task["every_s"], report)
    except nvml.NVMLError as error:
        if error.value in ABSENT:
            return {"absent": str(error)}
        raise UnavailableError(f"NVML: {error}") from error


if __name__ == "__main__":
    run_worker(main)
