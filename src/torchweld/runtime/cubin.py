"""Kernels of a GPU from their binaries alone, through the driver: neither Triton nor a compiler
has a part in it. Triton's launcher is C that is compiled when it is first used; here consecutive
kernels are a table (`launch_table.py`), and what that cannot start is started by ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import torch

from torchweld.codegen.source import DescriptorArg, KernelSource
from torchweld.core.errors import EnvironmentProblem, UsageError
from torchweld.runtime.launch_table import Handle
from torchweld.runtime.native import DRIVER

_MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_USUAL_SHARED = 48 << 10  # beyond it a kernel must ask
_SCRATCH = 2  # addresses that Triton's kernels end in
_NUMBERS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64}  # all others are addresses


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled kernel. `name`: of its function. `code`: where its cubin is. `unaligned`: the
    positions of pointers that need not be multiples of 16 bytes. `handle`: how it is launched, with
    no function yet."""

    name: str
    code: str
    unaligned: tuple[int, ...]
    handle: Handle


@dataclass(frozen=True)
class DriverKernel:
    """In the place of triton_compile.Launcher. `codes`: the cubin of each binary, by its `code`."""

    source: KernelSource
    binaries: tuple[Binary, ...]
    codes: Mapping[str, bytes]
    loaded: dict = field(default_factory=dict)  # (device, number of a binary) -> Handle

    def __call__(
        self, grid: tuple[int, int, int], stream: int, values: list, device: int | None = None,
        aligned: bool = False,
    ) -> None:  # fmt: skip
        """As Launcher's. Raises UsageError where no binary takes these addresses."""
        device = torch.cuda.current_device() if device is None else device
        handle = self._loaded(device, self._number(values, aligned))
        _start(handle, grid, stream, self.source.signature, values)

    def handle(self, device: int) -> Handle | None:
        """For aligned pointers, on the current device, number `device`."""
        return self._loaded(device, 0)

    def otherwise(self) -> DriverKernel:
        """For addresses that TMA does not take: none are kept."""
        return replace(self, source=self.source.otherwise, binaries=(), loaded={})

    def _number(self, values: Sequence, aligned: bool) -> int:
        pointers = [i for i, kind in enumerate(self.source.signature) if kind.startswith("*")]
        odd = set() if aligned else {i for i in pointers if values[i] & 15}
        described = any(isinstance(a, DescriptorArg) for a in self.source.args)
        for number, binary in enumerate(self.binaries):
            if odd <= set(binary.unaligned) and not described:
                return number
        raise UsageError(f"the archive has no {self.source.name} for addresses that are no "
                         "multiples of 16 bytes", do="give tensors that begin at such addresses")

    def _loaded(self, device: int, number: int) -> Handle:
        found = self.loaded.get((device, number))
        if found is None:
            binary = self.binaries[number]
            function = load_function(self.codes[binary.code], binary.name,
                                     binary.handle.shared_bytes)
            found = self.loaded[device, number] = replace(binary.handle, function=function)
        return found


def load_function(code: bytes, name: str, shared_bytes: int) -> int:
    """The function `name` of a cubin, on the current device, as the driver knows it; it stays
    loaded. Raises EnvironmentProblem."""
    torch.empty(1, device="cuda")  # makes the device's context current in this thread
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _call("cuModuleLoadData", ctypes.byref(module), code)
    _call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
    if shared_bytes > _USUAL_SHARED:
        _call("cuFuncSetAttribute", function, _MOST_SHARED, shared_bytes)
    return function.value


def _start(handle: Handle, grid, stream: int, signature: Sequence[str], values: Sequence) -> None:
    """One that was compiled to begin early waits for nothing here: it begins in its turn."""
    given = [_NUMBERS.get(kind, ctypes.c_uint64)(v) for kind, v in zip(signature, values)]
    given += [ctypes.c_uint64(0)] * _SCRATCH
    addresses = (ctypes.c_void_p * len(given))(*map(ctypes.addressof, given))
    block, size = (handle.threads, 1, 1), (handle.shared_bytes, ctypes.c_void_p(stream))
    function = ctypes.c_void_p(handle.function)
    if handle.together:
        _call("cuLaunchCooperativeKernel", function, *grid, *block, *size, addresses)
    else:
        _call("cuLaunchKernel", function, *grid, *block, *size, addresses, None)


def _call(name: str, *args) -> None:
    code = getattr(_driver(), name)(*args)
    if code:
        raise EnvironmentProblem(f"the CUDA driver refuses {name} with code {code}",
                                 do="load the archive on the kind of GPU that it was exported on")


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(DRIVER)
    except OSError as error:
        raise EnvironmentProblem(f"there is no CUDA driver: {error}",
                                 do="install NVIDIA's driver") from None
