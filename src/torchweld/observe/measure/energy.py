"""Joules of a step, where the device counts them: NVIDIA's driver does, for the whole GPU."""

from __future__ import annotations

import ctypes
import time
from ctypes.util import find_library

import torch

from torchweld.observe.measure.subject import Subject
from torchweld.observe.record.profile import Energy

_WINDOW_S = 2.0  # the counter moves about every 100 ms
_LIBRARY = "libnvidia-ml.so.1"


def energy_of(subject: Subject) -> Energy:
    """Steps one after the other for some seconds, between two readings of the counter."""
    if subject.device != "cuda":
        return Energy(None, None, 0.0, "torchweld reads no energy counter on this device")
    counter = _counter()
    if isinstance(counter, str):
        return Energy(None, None, 0.0, counter)
    torch.cuda.synchronize()
    before, start, steps = counter(), time.perf_counter(), 0
    while time.perf_counter() - start < _WINDOW_S:
        subject.timed_step()
        steps += 1
    joules, window = (counter() - before) * 1e-3, time.perf_counter() - start
    return Energy(joules / steps, joules / window, window)


def _counter():
    """A function that gives the millijoules spent so far on the current GPU, or why there is
    none."""
    try:
        library = ctypes.CDLL(find_library("nvidia-ml") or _LIBRARY)
        handle = _handle(library)
    except (OSError, RuntimeError) as error:
        return f"NVML gives no answer: {error}"

    def read() -> int:
        spent = ctypes.c_ulonglong()
        _check(library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(spent)))
        return spent.value

    try:
        read()
    except RuntimeError as error:
        return f"the GPU does not count energy: {error}"
    return read


def _handle(library: ctypes.CDLL) -> ctypes.c_void_p:
    """Of the GPU that torch uses now, by its UUID: torch may see fewer than the driver."""
    _check(library.nvmlInit_v2())
    handle = ctypes.c_void_p()
    uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
    _check(library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)))
    return handle


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"NVML status {status}")
