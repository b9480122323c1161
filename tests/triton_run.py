"""Generates and runs a test case's kernels, on a GPU or (slowly) in Triton's interpreter."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor

import torch

from torchweld.codegen.source import BufferArg, KernelBundle, KernelSource
from torchweld.core import dtypes
from torchweld.ir.access import addressed
from torchweld.ir.contraction import contraction_of
from torchweld.ir.size import evaluate
from torchweld.runtime.dispatch import Pointer
from torchweld.runtime.launcher import grid_of, launch_plan
from torchweld.targets.find import named_target
from torchweld.templates.gemm.schedule import ProductSchedule
from torchweld.templates.gemm.triton import generate as triton_product
from torchweld.templates.gemm.triton import schedule as product_triton
from torchweld.templates.pointwise_reduce.gpu.default import schedule
from torchweld.templates.pointwise_reduce.gpu.generate import generate
from torchweld.templates.pointwise_reduce.gpu.schedule import Schedule
from triton_cases import Case

H100 = named_target("H100")


def product_bundle(case: Case, chosen: ProductSchedule | None = None) -> KernelBundle:
    """The Triton product kernel of a case, by default with the default tiles of an H100."""
    chosen = chosen or case.schedule
    if chosen is None:
        accesses = addressed(case.comp, case.buffers, case.sizes)
        found = contraction_of(accesses)
        chosen = next(product_triton.candidates(accesses, found, H100, case.sizes))
    return triton_product.generate(case.comp, case.buffers, chosen, case.sizes)


def bundle_of(case: Case, chosen: Schedule | None = None) -> KernelBundle:
    chosen = chosen or case.schedule or schedule(case.comp, case.buffers, H100, case.sizes)
    return generate(case.comp, case.buffers, chosen, case.sizes)


def prepare(case: Case, bundle: KernelBundle, tensors: dict[str, torch.Tensor]) -> None:
    """Adds scratch (filled with junk) and fills what stores combine with."""
    device = next(iter(tensors.values())).device
    for name, init in bundle.prefill:
        tensors[name].copy_(tensors[init] if isinstance(init, str) else torch.tensor(init))
    for scratch in bundle.scratch:
        count = evaluate(scratch.shape[0], case.sizes)
        junk = float("nan") if scratch.dtype.is_float else int(scratch.name not in bundle.zeroed)
        dtype = dtypes.to_torch(scratch.dtype)
        tensors[scratch.name] = torch.full((count,), junk, device=device).to(dtype)


def launches(case: Case, bundle: KernelBundle, tensors: Mapping[str, torch.Tensor], start) -> None:
    """`start(source, grid, arguments)` for each kernel with something to do; arguments are tensors
    and sizes."""
    for source in bundle.sources:
        grid = grid_of(source.grid, case.sizes)
        if 0 not in grid:
            start(source, grid, [_argument(a, tensors, case.sizes) for a in source.args])


def _argument(argument, tensors, sizes):
    if isinstance(argument, BufferArg):
        return tensors[argument.buffer]
    return evaluate(argument.size, sizes)


def gpu_starter(compiled: Mapping[KernelSource, object]):
    """Starts kernels by their launchers on the current stream."""

    def start(source: KernelSource, grid, arguments) -> None:
        values = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments]
        compiled[source](grid, torch.cuda.current_stream().cuda_stream, values)

    return start


def launch(
    case: Case, bundle: KernelBundle, tensors: Mapping[str, torch.Tensor],
    compiled: Mapping[KernelSource, object],
) -> None:  # fmt: skip
    """All kernels as the runtime starts them: with TMA's descriptors, and with Triton's kernel in
    the place of one in Gluon where these cannot be."""
    slots, bases = {n: i for i, n in enumerate(tensors)}, [t.data_ptr() for t in tensors.values()]
    for source in bundle.sources:
        plan = launch_plan(source, compiled[source], lambda n: Pointer(slots[n]), case.sizes)
        plan(bases, torch.cuda.current_device(), torch.cuda.current_stream().cuda_stream)


def compile_in_processes(sources: Iterable[KernelSource]) -> Mapping[KernelSource, object]:
    """Launchers of all; other processes fill Triton's cache first, as many as there are cores. In
    one of several workers that share the tests, each when it is first asked for: there are as many
    processes already, and what is compiled by one is not by the others."""
    from torchweld.runtime.triton_compile import compile_triton

    if "PYTEST_XDIST_WORKER" in os.environ:
        return WhenAsked()
    sources = list(dict.fromkeys(sources))
    processes = min(len(sources), os.cpu_count() or 1)
    major, minor = torch.cuda.get_device_capability()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile, sources, [10 * major + minor] * len(sources)))
    return {s: compile_triton(s) for s in sources}


class WhenAsked(dict):
    """Source -> launcher, compiled when it is first asked for."""

    def __missing__(self, source: KernelSource):
        from torchweld.runtime.triton_compile import compile_triton

        self[source] = compile_triton(source)
        return self[source]


def _compile(source: KernelSource, arch: int) -> None:
    from torchweld.runtime.triton_compile import compile_source

    compile_source(source, arch)
