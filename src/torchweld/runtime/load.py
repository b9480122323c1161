"""From sources to a Program: kernels compiled side by side, each distinct one once; one that fails
is interpreted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache
from threading import Thread
from types import ModuleType
from typing import Protocol

import torch

from torchweld.codegen.source import DescriptorArg, KernelBundle, KernelSource
from torchweld.core.errors import BuildError, EnvironmentProblem
from torchweld.core.events import warn_once
from torchweld.core.options import Options
from torchweld.core.stages import untimed
from torchweld.ir.nodes import Extern, Graph
from torchweld.runtime import dispatch, triton_workers
from torchweld.runtime.build import compile_cpp, load_function
from torchweld.runtime.cache import Artifacts, open_cache
from torchweld.runtime.graphs import GraphedProgram, with_graph
from torchweld.runtime.huge_pages import keep_freed_memory
from torchweld.runtime.library_calls import called
from torchweld.runtime.loaded import Loaded
from torchweld.runtime.native import native_for, native_library
from torchweld.runtime.order import by_memory
from torchweld.runtime.placement import buffer_bytes, peak_bytes, place
from torchweld.runtime.program import Program
from torchweld.runtime.record import note
from torchweld.templates.library.calls import workspace_bytes

_FIRST_WORKERS = 2  # get ready while a graph is planned; further ones as kernels wait


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
    timed: Callable = untimed,
    compilers: Compilers | None = None,
) -> Program | GraphedProgram:
    """A program that runs `graph`. `bundles`: the kernels of each Comp, by its name; a Comp without
    one is interpreted. `constants`: tensors by buffer name. `static_inputs`: positions whose
    storage stays the same between calls. `loose_outputs`: positions that only the backward sees.
    `kind`: inference, forward or backward. `record`: an object with a list `events`, or None.
    `timed`: runs the wait for compilers as a stage of its own. `compilers`: at work on some of the
    kernels already.
    """
    frees_inputs = kind == "backward"
    calls = [n for n in graph.nodes if isinstance(n, Extern)]
    workspaces = {n.name: workspace_bytes(n, graph) for n in calls}
    graph = _reordered(graph, constants, workspaces, frees_inputs)
    bundles = first_in_turn(graph, bundles)
    binaries = compilers or Compilers(open_cache(options), options.compile_jobs)
    return load_ordered(
        graph, bundles, constants, options, binaries, kind=kind, static_inputs=static_inputs,
        loose_outputs=loose_outputs, record=record, timed=timed,
    )  # fmt: skip


class Binaries(Protocol):
    """Where a program's machine code comes from; entered while it is fetched."""

    def __enter__(self) -> Binaries: ...

    def __exit__(self, *error) -> None: ...

    def functions(
        self, bundles: Mapping[str, KernelBundle], record=None
    ) -> dict[KernelSource, object]:
        """The function of each source that has one."""

    def helpers(self) -> dispatch.Helpers:
        """The walker over C++ kernels."""

    def native(self, on_gpu: bool) -> ModuleType | None:
        """What native.py tells."""


def load_ordered(
    graph: Graph, bundles: Mapping[str, KernelBundle], constants: Mapping[str, torch.Tensor],
    options: Options, binaries: Binaries, *, kind: str = "inference",
    static_inputs: frozenset[int] = frozenset(), loose_outputs: frozenset[int] = frozenset(),
    record=None, timed: Callable = untimed,
) -> Program | GraphedProgram:  # fmt: skip
    """As `load`, of a graph whose nodes are in the order in which they are to run."""
    frees_inputs = kind == "backward"
    calls = [n for n in graph.nodes if isinstance(n, Extern)]
    workspaces = {n.name: workspace_bytes(n, graph) for n in calls}
    on_gpu = any(b.device.startswith("cuda") for b in graph.buffers.values())
    if not on_gpu:
        keep_freed_memory()
    with ThreadPoolExecutor(1) as aside, binaries:  # compiled beside the kernels, if not before
        native = aside.submit(binaries.native, on_gpu)
        functions = timed("compile", binaries.functions, bundles, record)
    walked = any(s.language == "cpp" for s in functions)
    keeps_temporaries = on_gpu and options.cuda_graphs and kind == "inference"
    loaded = Loaded(
        graph=graph,
        bundles=bundles,
        placement=place(graph, bundles, constants, workspaces, frees_inputs, keeps_temporaries),
        functions=functions,
        calls={n.name: called(n, record) for n in calls},
        helpers=binaries.helpers() if walked else None,
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
    """Every source that compiles -> its function."""
    with Compilers(artifacts, options.compile_jobs) as compilers:
        return compilers.functions(bundles, record)


class Compilers:
    """Makes functions of sources, `jobs` at a time, beside whatever else the process does. Sources
    that differ in arguments only share one compilation."""

    def __init__(self, artifacts: Artifacts, jobs: int) -> None:
        self._artifacts = artifacts
        self._workers = ThreadPoolExecutor(max(1, jobs), "torchweld-compile")
        self._begun: dict[tuple, Future] = {}

    def __enter__(self) -> Compilers:
        return self

    def __exit__(self, *error) -> None:
        self._workers.shutdown(cancel_futures=True)

    def expect_triton(self) -> None:
        """Sources in Triton's language will come, which its cache may lack."""
        with suppress(triton_workers.CannotStart):  # told where they are needed
            triton_workers.begin(_FIRST_WORKERS)

    def start(self, bundle: KernelBundle) -> None:
        """Begins with those of its sources that are new."""
        for source in bundle.sources:
            identity = _identity(source)
            if identity not in self._begun:
                job = self._workers.submit(_load_one, source, self._artifacts)
                self._begun[identity] = job

    def functions(
        self, bundles: Mapping[str, KernelBundle], record=None
    ) -> dict[KernelSource, object]:
        """Waits for them: every source that compiles -> its function."""
        for bundle in bundles.values():
            self.start(bundle)
        users = {s: b.comp for b in bundles.values() for s in b.sources}
        wanted = {_identity(s): comp for s, comp in reversed(users.items())}
        made: dict[tuple, object] = {}
        for identity, comp in reversed(wanted.items()):
            try:
                made[identity] = self._begun[identity].result()
            except (BuildError, EnvironmentProblem) as error:
                _report(comp, error, record)
        return {s: made[_identity(s)] for s in users if _identity(s) in made}

    def helpers(self) -> dispatch.Helpers:
        return dispatch.helpers(self._artifacts)

    def native(self, on_gpu: bool) -> ModuleType | None:
        return native_for(self._artifacts, on_gpu)


def begin(options: Options) -> None:
    """Starts to compile what every program needs, if the cache lacks it; returns at once."""
    _begun(open_cache(options))


@cache
def _begun(artifacts: Artifacts) -> None:
    Thread(target=_compile_ahead, args=(artifacts,), name="torchweld-begin").start()


def _compile_ahead(artifacts: Artifacts) -> None:
    for make in (native_library, dispatch.library):
        with suppress(BuildError, EnvironmentProblem, OSError):  # told where it is needed
            make(artifacts)


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
    warn_once(f"build {error}", f"kernel {comp} runs as separate operations, unfused: {error}")
    note(record, "fallback", comp, str(error))
