"""From sources to a Program: kernels compiled side by side, each distinct one once; one that fails
is interpreted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from torchweld.codegen.source import DescriptorArg, KernelBundle, KernelSource
from torchweld.core.errors import BuildError, EnvironmentProblem
from torchweld.core.events import warn_once
from torchweld.core.options import Options
from torchweld.ir.nodes import Extern, Graph
from torchweld.runtime import dispatch
from torchweld.runtime.build import compile_cpp, load_function
from torchweld.runtime.cache import Artifacts, open_cache
from torchweld.runtime.externs import operator
from torchweld.runtime.graphs import GraphedProgram, with_graph
from torchweld.runtime.library_calls import LIBRARY
from torchweld.runtime.loaded import Loaded
from torchweld.runtime.native import native_for
from torchweld.runtime.order import by_memory
from torchweld.runtime.placement import buffer_bytes, peak_bytes, place
from torchweld.runtime.program import Program
from torchweld.runtime.record import note
from torchweld.templates.library.calls import workspace_bytes


def load(
    graph: Graph,
    bundles: Mapping[str, KernelBundle],
    constants: Mapping[str, torch.Tensor],
    options: Options,
    *,
    kind: str = "inference",
    static_inputs: frozenset[int] = frozenset(),
    loose_outputs: frozenset[int] = frozenset(),
    record=None,
) -> Program | GraphedProgram:
    """A program that runs `graph`. `bundles`: the kernels of each Comp, by its name; a Comp without
    one is interpreted. `constants`: tensors by buffer name. `static_inputs`: positions whose
    storage stays the same between calls. `loose_outputs`: positions that only the backward sees.
    `kind`: inference, forward or backward. `record`: an object with a list `events`, or None.
    """
    frees_inputs = kind == "backward"
    calls = [n for n in graph.nodes if isinstance(n, Extern)]
    workspaces = {n.name: workspace_bytes(n, graph) for n in calls}
    graph = _reordered(graph, constants, workspaces, frees_inputs)
    bundles = first_in_turn(graph, bundles)
    artifacts = open_cache(options)
    on_gpu = any(b.device.startswith("cuda") for b in graph.buffers.values())
    with ThreadPoolExecutor(1) as aside:  # compiled beside the kernels, if not before
        native = aside.submit(native_for, artifacts, on_gpu)
        functions = load_kernels(bundles, artifacts, options, record)
    walked = any(s.language == "cpp" for s in functions)
    keeps_temporaries = on_gpu and options.cuda_graphs and kind == "inference"
    loaded = Loaded(
        graph=graph,
        bundles=bundles,
        placement=place(graph, bundles, constants, workspaces, frees_inputs, keeps_temporaries),
        functions=functions,
        calls={n.name: _call(n, record) for n in calls},
        helpers=dispatch.helpers(artifacts) if walked else None,
        static_buffers=_static_names(graph, static_inputs) - frozenset(constants),
        keeps_arena=kind == "inference",  # what follows in training wants the memory
        frees_inputs=frees_inputs,
        has_tail=kind == "inference",  # in training what is handed out must stay where it is
        native=native.result(),
        record=record,
    )
    return with_graph(Program(loaded, constants), kind, options.cuda_graphs, loose_outputs)


def first_in_turn(graph: Graph, bundles: Mapping[str, KernelBundle]) -> Mapping[str, KernelBundle]:
    """The first kernel does not begin early: when it does, the kernels in front have ended, which
    may have written parameters. So those behind it may read parameters before they wait."""
    names = (n.name for n in graph.nodes if n.name in bundles and bundles[n.name].sources)
    first = next(names, None)
    if first is None or not bundles[first].sources[0].early:
        return bundles
    source, *others = bundles[first].sources
    made = replace(bundles[first], sources=(replace(source, early=False), *others))
    return {**bundles, first: made}


def _reordered(graph: Graph, constants, workspaces, frees_inputs: bool) -> Graph:
    sizes = {n: buffer_bytes(b, graph.hints) for n, b in graph.buffers.items()}
    return by_memory(
        graph, sizes, frees_inputs, lambda g: peak_bytes(g, constants, workspaces, frees_inputs)
    )


def _static_names(graph: Graph, positions: frozenset[int]) -> frozenset[str]:
    return frozenset(n for p, n in enumerate(graph.inputs) if p in positions and n is not None)


def load_kernels(
    bundles: Mapping[str, KernelBundle],
    artifacts: Artifacts,
    options: Options,
    record=None,
) -> dict[KernelSource, object]:
    """Every source that compiles -> its function. Sources that differ in arguments only share one
    compilation."""
    users = {s: b.comp for b in bundles.values() for s in b.sources}
    made: dict[tuple, object] = {}
    jobs = {_identity(s): s for s in users}
    with ThreadPoolExecutor(max(1, min(options.compile_jobs, len(jobs)))) as workers:
        futures = {i: workers.submit(_load_one, s, artifacts) for i, s in jobs.items()}
        for identity, future in futures.items():
            try:
                made[identity] = future.result()
            except (BuildError, EnvironmentProblem) as error:
                _report(users[jobs[identity]], error, record)
    return {s: made[_identity(s)] for s in users if _identity(s) in made}


def _identity(source: KernelSource) -> tuple:
    """What decides the binary."""
    return (
        source.language,
        source.name,
        source.text,
        source.constants,
        source.signature,
        source.num_warps,
        source.num_stages,
        source.max_registers,
        source.early,
        tuple(a.block for a in source.args if isinstance(a, DescriptorArg)),
    )


def _load_one(source: KernelSource, artifacts: Artifacts):
    if source.language == "cpp":
        library, _ = compile_cpp(source.text, artifacts)
        return load_function(library, source.name)
    from torchweld.runtime.triton_compile import compile_triton  # Triton comes with CUDA builds

    return compile_triton(source)


def _report(comp: str, error: Exception, record) -> None:
    warn_once(f"build {error}", f"kernel {comp} runs as separate operations: {error}")
    note(record, "fallback", comp, str(error))


def _call(node: Extern, record) -> Callable:
    factory = LIBRARY.get(node.target)
    return operator(node.target) if factory is None else factory(node, record)
