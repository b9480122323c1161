"""Kernels of a whole plan: each distinct computation is decided and generated once.

Repeated layers differ in the names of buffers only, so kernels are made for the canonical form of a
Comp and then bound to the buffers of each use.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from torchweld.codegen.source import (
    DescriptorArg,
    KernelArg,
    KernelBundle,
    KernelSource,
    SizeArg,
)
from torchweld.core.errors import TorchweldError
from torchweld.core.events import warn_once
from torchweld.ir.canonical import canonical, signature
from torchweld.ir.memo import Memo
from torchweld.ir.nodes import Buffer, Comp, Graph
from torchweld.ir.windows import windowed
from torchweld.targets.target import Target
from torchweld.templates import registry
from torchweld.templates.gemm.choice import choose
from torchweld.templates.template import Choose, Kernel, Problem


def kernels_of(graph: Graph, target: Target, choose: Choose = choose) -> tuple[Kernel, ...]:
    """The kernels of a planned graph, each with all its uses. A Comp that no template makes has
    none, nor has one on the CPU amid a GPU's, whose templates are not its own: the runtime
    interprets them."""
    known: dict[tuple, Kernel | None] = {}
    uses: dict[tuple, list[tuple[str, tuple[str, ...]]]] = {}
    offsets: dict[tuple, dict[str, dict[str, int]]] = {}
    frozen, memo = _never_written(graph), Memo(graph.buffers)
    for comp in _of_main_device(graph):
        title = re.sub(r"_\d+$", "", comp.name)
        offset_bytes, identity = memo.of("identity", (comp,), lambda c=comp: _identity(c, graph))
        order = tuple(dict.fromkeys(comp.reads + comp.writes))
        key = title, identity, tuple(n in frozen for n in order)
        if key not in known:
            known[key] = _chosen(_problem(comp, title, graph, frozen, target, choose))
        uses.setdefault(key, []).append((comp.name, order))
        if offset_bytes:
            offsets.setdefault(key, {})[comp.name] = {order[k]: n for k, n in offset_bytes}
    return tuple(
        replace(k, uses=tuple(uses[key]), offsets=offsets.get(key, {}))
        for key, k in known.items()
        if k is not None
    )


def _of_main_device(graph: Graph) -> list[Comp]:
    """The GPU's, if any of the graph's buffers are on one. A Comp has all on one device."""
    comps = [n for n in graph.nodes if isinstance(n, Comp)]
    if len({b.device for b in graph.buffers.values()}) <= 1:
        return comps
    return [n for n in comps if graph.buffers[n.writes[0]].device != "cpu"]


def _identity(comp: Comp, graph: Graph) -> tuple[tuple[tuple[int, int], ...], str]:
    """What one kernel can be made for: the signature of `comp` on the windows that it reads. Before
    it, where windows begin: (place among the buffers, bytes)."""
    window = windowed(comp, graph.buffers)
    order = tuple(dict.fromkeys(comp.reads + comp.writes))
    starts = tuple((order.index(name), start) for name, start in window.offset_bytes.items())
    return starts, signature(window.comp, {**graph.buffers, **window.buffers})


def _problem(
    comp: Comp, title: str, graph: Graph, frozen: frozenset[str], target: Target, choose: Choose
) -> Problem:
    window = windowed(comp, graph.buffers)
    named, order = canonical(window.comp)
    buffers = _canonical_buffers(order, {**graph.buffers, **window.buffers}, frozen)
    return Problem(replace(named, name=title), buffers, target, graph.hints, choose)


def generate_all(
    kernels: Iterable[Kernel], made: Callable[[KernelBundle], object] = lambda bundle: None
) -> dict[str, KernelBundle]:
    """The bundle of each Comp that `kernels` make, by its name. `made` is told of each distinct
    bundle at once: it may compile while the next is generated."""
    bundles = {}
    for kernel in kernels:
        bundle = _generated(kernel)
        if bundle is not None:
            made(bundle)
            bundles |= {
                name: _bound(bundle, name, order, kernel.offsets.get(name, {}))
                for name, order in kernel.uses
            }
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


def _chosen(problem: Problem) -> Kernel | None:
    try:
        return registry.chosen(problem)
    except TorchweldError as error:
        return _told(problem.comp.name, error)


def _generated(kernel: Kernel) -> KernelBundle | None:
    try:
        return registry.generate(kernel)
    except TorchweldError as error:
        return _told(kernel.problem.comp.name, error)


def _told(name: str, error: TorchweldError) -> None:
    warn_once(f"codegen {name} {error}", f"kernel {name} runs as separate operations: {error}")


def _bound(
    bundle: KernelBundle, name: str, order: tuple[str, ...], offsets: Mapping[str, int]
) -> KernelBundle:
    """`bundle` on the buffers of one use, some from `offsets` in bytes on; scratch is its own."""
    names = {f"b{k}": buffer for k, buffer in enumerate(order)}
    names |= {s.name: f"{name}.{s.name}" for s in bundle.scratch}
    return _on(bundle, name, names, offsets)


def _on(
    bundle: KernelBundle, name: str, names: Mapping[str, str], offsets: Mapping[str, int]
) -> KernelBundle:
    return replace(
        bundle,
        comp=name,
        sources=tuple(_bound_source(s, names, offsets) for s in bundle.sources),
        scratch=tuple(replace(s, name=names[s.name]) for s in bundle.scratch),
        zeroed=tuple(names[z] for z in bundle.zeroed),
        prefill=tuple((names.get(b, b), names.get(v, v)) for b, v in bundle.prefill),
    )


def with_uses(
    kernels: Iterable[Kernel], comps: Mapping[str, tuple[str, Mapping[str, str]]]
) -> tuple[Kernel, ...]:
    """`kernels` with the uses that a larger plan has for them. `comps`: by the name of each there,
    the name of one that has a kernel, and those of its buffers that have other names."""
    copies: dict[str, list[tuple[str, Mapping[str, str]]]] = defaultdict(list)
    for name, (of, buffers) in comps.items():
        copies[of].append((name, buffers))
    return tuple(_with_uses(k, copies) for k in kernels)


def _with_uses(kernel: Kernel, copies: Mapping[str, list[tuple[str, Mapping[str, str]]]]) -> Kernel:
    uses, offsets = [], {}
    for of, order in kernel.uses:
        for name, buffers in copies[of]:
            uses.append((name, tuple(buffers.get(b, b) for b in order)))
            if of in kernel.offsets:
                offsets[name] = {buffers.get(b, b): n for b, n in kernel.offsets[of].items()}
    return replace(kernel, uses=tuple(uses), offsets=offsets)


def renamed(bundle: KernelBundle, name: str, buffers: Mapping[str, str]) -> KernelBundle:
    """The kernels of a Comp for another of that name, with other buffers."""
    if name == bundle.comp and not buffers:
        return bundle
    scratch = {s.name: name + s.name.removeprefix(bundle.comp) for s in bundle.scratch}
    return _on(bundle, name, {**buffers, **scratch}, {})


def _bound_source(
    source: KernelSource, names: Mapping[str, str], offsets: Mapping[str, int]
) -> KernelSource:
    args = tuple(_bound_arg(a, names, offsets) for a in source.args)
    otherwise = source.otherwise and _bound_source(source.otherwise, names, offsets)
    return replace(source, args=args, otherwise=otherwise)


def _bound_arg(arg: KernelArg, names: Mapping[str, str], offsets: Mapping[str, int]) -> KernelArg:
    if isinstance(arg, SizeArg):
        return arg
    name = names.get(arg.buffer, arg.buffer)
    further = offsets.get(name, 0)
    if isinstance(arg, DescriptorArg):
        return replace(arg, buffer=name, offset=arg.offset + further // arg.item_bytes)
    return replace(arg, buffer=name, offset_bytes=arg.offset_bytes + further)
