"""Kernels of a whole graph: each distinct computation is scheduled and generated once.

Repeated layers differ in the names of buffers only, so kernels are made for the canonical form of a
Comp and then bound to the buffers of each use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from torchweld.codegen import cuda
from torchweld.codegen.cpp import convolution as cpp_convolution
from torchweld.codegen.cpp import generate as cpp
from torchweld.codegen.cpp import pooling as cpp_pooling
from torchweld.codegen.cpp import tensor_list as cpp_tensor_list
from torchweld.codegen.source import KernelBundle, KernelSource, SizeArg
from torchweld.codegen.triton import tensor_list as triton_tensor_list
from torchweld.core.device import DeviceTable
from torchweld.core.errors import TorchweldError
from torchweld.core.events import warn_once
from torchweld.ir.canonical import canonical, signature
from torchweld.ir.nodes import Buffer, Comp, Graph
from torchweld.kernels.convolutions import has_vectors
from torchweld.schedule import cpu
from torchweld.schedule.cpu_convolution import cpu_convolution
from torchweld.schedule.cpu_pooling import cpu_pooling
from torchweld.schedule.product_choice import Choose, choose
from torchweld.schedule.tensor_list import tensor_list


def generate_all(
    graph: Graph, table: DeviceTable, choose: Choose = choose
) -> dict[str, KernelBundle]:
    """The bundle of each Comp of a planned graph, by its name; products on a GPU are tiled as
    `choose` says. A Comp that cannot be generated has none: the runtime interprets it."""
    known: dict[tuple, KernelBundle | None] = {}
    bundles = {}
    frozen = _never_written(graph)
    for comp in (n for n in graph.nodes if isinstance(n, Comp)):
        title = re.sub(r"_\d+$", "", comp.name)
        named, order = canonical(comp)
        key = title, signature(comp, graph.buffers), tuple(n in frozen for n in order)
        if key not in known:
            buffers = _canonical_buffers(order, graph.buffers, frozen)
            known[key] = _generate(
                replace(named, name=title), buffers, graph.hints, table, choose
            )
        if known[key] is not None:
            bundles[comp.name] = _bound(known[key], comp.name, order)
    return bundles


def _never_written(graph: Graph) -> frozenset[str]:
    """Parameters and constants that no kernel of the program writes: one may read them before the
    kernels in front of it have ended."""
    written = {name for node in graph.nodes for name in node.writes}
    return frozenset(n for n, b in graph.buffers.items() if b.frozen and n not in written)


def _canonical_buffers(
    order: tuple[str, ...], buffers: Mapping[str, Buffer], frozen: frozenset[str]
) -> dict[str, Buffer]:
    return {
        f"b{k}": replace(buffers[name], name=f"b{k}", frozen=name in frozen)
        for k, name in enumerate(order)
    }


def _generate(
    comp: Comp, buffers: Mapping[str, Buffer], hints, table: DeviceTable, choose: Choose
):
    try:
        tensors, on_gpu = tensor_list(comp, buffers), table.kind == "cuda"
        if tensors is not None and on_gpu:
            return triton_tensor_list.generate(comp, tensors, table)
        if tensors is not None:
            return cpp_tensor_list.generate(comp, tensors)
        if next(iter(buffers.values())).device.startswith("cuda"):
            return cuda.generate(comp, buffers, table, hints, choose)
        convolution = cpu_convolution(comp, buffers, hints)
        if convolution is not None:
            return cpp_convolution.generate(comp, convolution, buffers)
        pooling = cpu_pooling(comp, buffers) if has_vectors(table) else None
        if pooling is not None:
            return cpp_pooling.generate(comp, pooling)
        return cpp.generate(comp, buffers, cpu.schedule(comp, buffers, hints, table.units), hints)
    except TorchweldError as error:
        warn_once(f"codegen {comp.name} {error}", f"{comp.name} runs interpreted: {error}")
        return None


def _bound(bundle: KernelBundle, name: str, order: tuple[str, ...]) -> KernelBundle:
    """`bundle` on the buffers of one use; scratch is its own."""
    names = {f"b{k}": buffer for k, buffer in enumerate(order)}
    names |= {s.name: f"{name}.{s.name}" for s in bundle.scratch}
    return replace(
        bundle,
        comp=name,
        sources=tuple(_bound_source(s, names) for s in bundle.sources),
        scratch=tuple(replace(s, name=names[s.name]) for s in bundle.scratch),
        zeroed=tuple(names[z] for z in bundle.zeroed),
        prefill=tuple((names[b], names.get(v, v)) for b, v in bundle.prefill),
    )


def _bound_source(source: KernelSource, names: Mapping[str, str]) -> KernelSource:
    args = tuple(
        a if isinstance(a, SizeArg) else replace(a, buffer=names[a.buffer]) for a in source.args
    )
    otherwise = source.otherwise and _bound_source(source.otherwise, names)
    return replace(source, args=args, otherwise=otherwise)
