"""Triton sources to compiled kernels, ahead of time and with or without a GPU, and what they cost.

What Triton's cache lacks is compiled by other processes (triton_workers.py), and here only where
there are none. All that differs between Triton's versions (3.6 and later) is in this module and in
triton_worker.py; here, the order of a launcher's arguments."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import torch

from torchweld.codegen.source import BufferArg, DescriptorArg, KernelSource, SizeArg
from torchweld.core.errors import BuildError
from torchweld.core.events import record
from torchweld.runtime import sass, triton_worker
from torchweld.runtime.cache import digest
from torchweld.runtime.launch_table import Handle, TileMap
from torchweld.runtime.triton_worker import (
    NotCached,
    Request,
    compiled,
    import_triton,
    last_line,
)
from torchweld.runtime.triton_workers import CannotStart, compile_aside


@dataclass(frozen=True, slots=True)
class Resources:
    """Of one thread (registers, spills in bytes), of one block (shared memory in bytes), and the
    number of global loads and stores in the PTX by width."""

    registers: int
    spill_bytes: int
    shared_bytes: int
    wide_loads: int
    wide_stores: int


@dataclass(frozen=True)
class Launcher:
    """A kernel that can be started on any device of one architecture, with pointers of any
    alignment: one binary takes all to be multiples of 16 bytes, others are compiled when needed."""

    source: KernelSource
    arch: int
    pointers: tuple[int, ...]  # positions among the arguments
    compiled: dict = field(default_factory=dict)  # positions of unaligned pointers -> binary
    loaded: dict = field(default_factory=dict)  # (device, those positions) -> loaded binary
    handles: dict = field(default_factory=dict)  # device -> Handle

    def __call__(
        self,
        grid: tuple[int, int, int],
        stream: int,
        values: list[int],
        device: int | None = None,
        aligned: bool = False,
    ) -> None:
        """Starts `grid` blocks on `stream` of the current device; `values`: addresses and sizes, in
        the source's order. `device`: its number, where that is known; `aligned`: the addresses are
        known to be multiples of 16. Raises BuildError if a binary that is needed only now fails."""
        device = torch.cuda.current_device() if device is None else device
        unaligned = () if aligned else tuple(i for i in self.pointers if values[i] & 15)
        kernel = self._loaded(device, unaligned)
        run, function, metadata = kernel.run, kernel.function, kernel.packed_metadata
        run(*grid, stream, function, metadata, None, None, None, *values)

    def handle(self, device: int) -> Handle | None:
        """For aligned pointers, on the current device, number `device`; None for what only Triton
        launches: clusters of blocks, kernels that need memory for themselves. Without Triton's
        launcher, whose C code takes a fifth of a second to compile."""
        if device not in self.handles:
            self.handles[device] = _handle(self.binary(), self.source, device)
        return self.handles[device]

    def _loaded(self, device: int, unaligned: tuple[int, ...]):
        found = self.loaded.get((device, unaligned))
        if found is None:
            found = self.loaded[device, unaligned] = _loaded(self.binary(unaligned))
        return found

    def otherwise(self) -> Launcher:
        """Of the source for addresses that TMA does not take; compiled when it is first needed."""
        return _launcher(self.source.otherwise, self.arch)

    def binary(self, unaligned: tuple[int, ...] = ()):
        """Triton's CompiledKernel, compiled at the first call."""
        if unaligned not in self.compiled:
            self.compiled[unaligned] = compile_source(self.source, self.arch, unaligned)
        return self.compiled[unaligned]


def compile_source(source: KernelSource, arch: int, unaligned: Collection[int] = ()):
    """Triton's CompiledKernel of `source` for compute capability `arch` (80, 90, ...); no GPU
    needed.

    Pointers are taken to be multiples of 16 bytes, except arguments at positions `unaligned`.
    A kernel that Triton cannot compile may have other numbers of warps: passes of Triton's have
    faults (in 3.6, triton-lang/triton#8257) that depend on how elements lie in threads, and the
    text of a Triton kernel does not know of its warps. Raises BuildError."""
    try:
        import_triton()
    except ImportError as error:
        raise BuildError(f"there is no Triton: {error}") from error
    try:
        made = _compiled_somehow(source, arch, unaligned)
        return _mended(made, arch) if sass.is_suspect(made.asm["ptx"]) else made
    except BuildError:
        raise
    except Exception as error:
        raise BuildError(
            f"{source.name} does not compile for sm_{arch}: {last_line(error)}"
        ) from error


def _compiled_somehow(source: KernelSource, arch: int, unaligned: Collection[int]):
    try:
        return _compiled(request_for(source, arch, unaligned))
    except Exception:
        for warps in _other_warps(source):
            with suppress(Exception):  # the first is told
                made = _compiled(request_for(replace(source, num_warps=warps), arch, unaligned))
                record("triton warps", f"{source.name} compiles only with {warps} warps")
                return made
        raise


def _other_warps(source: KernelSource) -> tuple[int, ...]:
    """None in Gluon, where layouts are written for their warps."""
    if source.language != "triton":
        return ()
    return (2, 4) if source.num_warps == 1 else (2 * source.num_warps, source.num_warps // 2)


def _compiled(request: Request):
    """What another process makes is in Triton's cache then, if that can be written to."""
    try:
        return compiled(request, cached=True)
    except NotCached:
        pass
    try:
        compile_aside(request)
    except CannotStart as error:
        _tell(f"kernels are compiled in this process: {error}")
    return compiled(request)


@cache
def _tell(message: str) -> None:
    record("triton workers", message)


def request_for(source: KernelSource, arch: int, unaligned: Collection[int] = ()) -> Request:
    """`unaligned`: as in `compile_source`."""
    options = {
        "num_warps": source.num_warps,
        "num_stages": source.num_stages,
        "enable_reflect_ftz": False,  # denormals stay, as in eager's kernels
        "enable_fp_fusion": True,  # the default changes in Triton 3.10
    }
    if source.max_registers is not None:
        options["maxnreg"] = source.max_registers
    if source.early:
        options["launch_pdl"] = True
    return Request(
        source.language,
        source.name,
        source.text,
        tuple(map(_type, source.args, source.signature)),
        tuple(i for i, a in enumerate(source.args) if i not in unaligned and _aligned(a)),
        source.constants,
        tuple(options.items()),
        arch,
    )


def _mended(made, arch: int):
    """`made` with a binary that lacks a fault of ptxas (runtime/sass.py), which Triton's cache
    keeps beside the first. Raises BuildError if it does not lack it."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend
    from triton.runtime.cache import get_cache_manager

    ptx, told = sass.in_two_steps(made.asm["ptx"]), made.metadata
    files, name = get_cache_manager(made.hash), f"{made.name}.{digest(ptx)}.mended"
    kept = files.get_file(name)
    if kept:
        made.kernel = Path(kept).read_bytes()
    else:
        backend = make_backend(GPUTarget("cuda", arch, 32))
        made.kernel = backend.make_cubin(ptx, told._asdict(), told, arch)
        if fault := sass.fault(made.kernel):
            raise BuildError(f"ptxas loses a register: {fault}")
        with suppress(OSError):  # the cache may be for reading only
            files.put(made.kernel, name)
    made.asm["cubin"] = made.kernel
    return made


def _type(argument, named: str) -> str:
    """The type of an argument as a signature has it; `named`: of a descriptor, its elements'."""
    if not isinstance(argument, DescriptorArg):
        return named
    from triton.experimental.gluon import language as gl

    dtype = {"bf16": gl.bfloat16, "fp16": gl.float16, "fp32": gl.float32}[named]
    layout = gl.NVMMASharedLayout.get_default_for(list(argument.block), dtype)
    return f"tensordesc<{named}[{','.join(map(str, argument.block))}],{layout!r}>"


def jit_function(source: KernelSource):
    """The @triton.jit function that `source.text` defines."""
    return triton_worker.jit_function(source.name, source.text)


def compile_triton(source: KernelSource) -> Launcher:
    """A launcher for the architecture of the current device; its common binary is compiled now.
    Raises BuildError, also where the kernel would not fit."""
    return _PROVIDED.get(source) or compile_here(source)


def compile_here(source: KernelSource) -> Launcher:
    """As `compile_triton`, whatever was provided."""
    major, minor = torch.cuda.get_device_capability()
    launcher = _launcher(source, 10 * major + minor)
    _check_fits(source, launcher.binary())
    return launcher


_PROVIDED: dict[KernelSource, object] = {}


def provide(source: KernelSource, launcher) -> None:
    """From now on `compile_triton` gives `launcher` for `source`: it was compiled elsewhere."""
    _PROVIDED[source] = launcher


def _check_fits(source: KernelSource, compiled) -> None:
    """Raises BuildError where the device has not that much shared memory."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    most = getattr(properties, "shared_memory_per_block_optin", None)
    if most is not None and compiled.metadata.shared > most:
        needs = f"needs {compiled.metadata.shared} bytes of shared memory of {most}"
        raise BuildError(f"{source.name} {needs}")


def _launcher(source: KernelSource, arch: int) -> Launcher:
    pointers = tuple(i for i, a in enumerate(source.args) if isinstance(a, BufferArg))
    return Launcher(source, arch, pointers)


def resources(compiled) -> Resources:
    """What a compiled kernel takes, read in its binary, and its PTX. Spills are its whole stack."""
    ptx, said = compiled.asm["ptx"], _resource_usage(compiled.kernel)
    registers, stack = (int(re.search(rf" {n}:(\d+)", said).group(1)) for n in ("REG", "STACK"))
    return Resources(
        registers,
        stack,
        compiled.metadata.shared,
        len(re.findall(r"ld\.global\S*\.v4\.b32|ld\.global\S*\.v2\.b64", ptx)),
        len(re.findall(r"st\.global\S*\.v4\.b32|st\.global\S*\.v2\.b64", ptx)),
    )


def _aligned(argument) -> bool:
    if isinstance(argument, SizeArg):
        return argument.divisible_by_16
    return isinstance(argument, BufferArg)


def _loaded(compiled):
    """`compiled` on the current device; a CompiledKernel belongs to one device, so each gets its
    own."""
    from triton.compiler import CompiledKernel

    own = CompiledKernel(compiled.src, compiled.metadata_group, compiled.hash)
    own.asm, own.kernel = compiled.asm, compiled.kernel  # which may be mended
    assert own.run is not None  # which loads it
    return own


def _function(compiled, device: int) -> int:
    """The kernel as the driver knows it, loaded for `device`, the current one."""
    from triton.runtime import driver

    load = driver.active.utils.load_binary
    _, function, *_ = load(compiled.name, compiled.kernel, compiled.metadata.shared, device)
    return function


def _handle(compiled, source: KernelSource, device: int) -> Handle | None:
    told = launchable(compiled, source)
    return told and replace(told, function=_function(compiled, device))


def launchable(compiled, source: KernelSource) -> Handle | None:
    """How a CompiledKernel is launched, with no function yet; None for what only Triton
    launches."""
    told = compiled.metadata
    maps = tuple(map(_tile_map, told.tensordesc_meta or ()))
    described = [a for a in source.args if isinstance(a, DescriptorArg)]
    for_itself = told.global_scratch_size or told.profile_scratch_size
    if told.num_ctas != 1 or for_itself or None in maps or len(maps) != len(described):
        return None
    threads, early = 32 * told.num_warps, told.launch_pdl
    return Handle(0, threads, told.shared, early, told.launch_cooperative_grid, maps)


def _tile_map(told: Mapping | None) -> TileMap | None:
    """None where the kernel takes no TMA descriptor, or one of 4-bit numbers."""
    from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

    if told is None or told["fp4_padded"]:
        return None
    element = TMA_DTYPE_DEVICE_TO_HOST[told["elem_type"]]
    return TileMap(element, told["swizzle"], told["elem_size"], tuple(told["block_size"]))


def _resource_usage(binary: bytes) -> str:
    """What cuobjdump, which Triton brings, says of a binary. Raises BuildError."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"cuobjdump: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
