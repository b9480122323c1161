"""`torchweld.export`: a model for one kind of call, as a file that runs without a compiler."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchweld import pipeline
from torchweld.api import unfuse
from torchweld.capture.decoding.calls import has_cache
from torchweld.capture.export_ import LiveState
from torchweld.capture.torch_private import plain_surroundings
from torchweld.core.errors import TorchweldError, UsageError
from torchweld.core.machine import device_name, versions
from torchweld.core.options import Options
from torchweld.core.torch_private import pytree
from torchweld.deploy import machine, weights
from torchweld.deploy.archive import Writer, write
from torchweld.deploy.arguments import apart, arguments_of
from torchweld.deploy.binaries import Shipper
from torchweld.deploy.capture import Traced, returned, trace
from torchweld.deploy.records import FORMAT, Manifest
from torchweld.exact.trees import as_arguments
from torchweld.fused.later import takes
from torchweld.ir.nodes import Comp
from torchweld.runtime.loaded import Loaded
from torchweld.runtime.plan_cache import StoredPlan, plan_text

INSIDE, REFERENCE = "inside", "reference"
_CONSTANT = "torchweld_constant"  # a name that no model gives


@dataclass(frozen=True)
class Exported:
    """What was written. `sha256`: of the manifest, which has the hash of all else: a caller of
    `torchweld.load` may demand it. `interpreted`: kernels that did not compile, and run as ATen
    operations."""

    path: Path
    sha256: str
    bytes: int
    kernels: int
    calls: int
    interpreted: int


def export(
    model: Any,
    inputs: Any,
    path: str | Path,
    *,
    dynamic: Any = None,
    weights: str | Path = INSIDE,
    options: Options | None = None,
    **overrides: Any,
) -> Exported:
    """Writes `model`, compiled for inference with inputs such as these, to the archive `path`.
    `torchweld.load(path)` runs it in another process, without a compiler and without Dynamo.

    `model`: a module in evaluation mode, or what `fuse` made of one. `inputs`: a tensor, a tuple of
    arguments, a dict of keyword arguments, or ((...), {...}).

    `dynamic`: sizes that vary between calls: `{"x": {0: "batch"}}` by the name of the argument and
    the dimension. The string is for the reader; a `Dim` of torch.export sets limits. True: each
    size that the model does not fix. What the model asks of its sizes (that two are equal, that one
    is even) is kept, and checked at each call.

    `weights`: "inside" the archive; "reference": in a file beside it, PATH.weights; or the path of
    a file that has them already (safetensors, or torch.save of a state_dict), by the model's
    names. The archive keeps the hash of the file.

    `overrides`: fields of `Options`, by name. Raises UsageError for what cannot be exported, and
    where `path` cannot be written.
    """
    original, chosen = unfuse(model), (options or Options()).with_(**overrides)
    args, kwargs = as_arguments(inputs)
    _check(original, args, kwargs)
    given = arguments_of(original, *apart(original, args, kwargs))
    traced = trace(original, given, dynamic, takes if chosen.fuse else None)
    leaves = pytree.tree_leaves(dict(given.values))
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    program = _compiled(original, traced, chosen)
    job = _Job(original, traced, program, Path(path), weights, chosen, tensors)
    sha256 = write(Path(path), job.fill)
    return job.told(sha256)


def _check(model, args: tuple, kwargs: dict) -> None:
    """Errors: UsageError for what an archive could not do as the model does."""
    if not isinstance(model, torch.nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise UsageError(f"cannot export a {type(model).__name__}", do="give an nn.Module")
    name = type(model).__name__
    if any(module.training for module in model.modules()):
        raise UsageError(f"{name} is in training mode, and an archive is for inference",
                         do="call model.eval() first")
    if LiveState(model).has_hooks():
        raise UsageError(f"{name} has forward hooks, which an archive does not call",
                         do="remove them, or fuse the model instead")
    if not plain_surroundings():
        raise UsageError("autocast or another mode is on, which an archive does not have",
                         do="export outside of it, with the model in the wanted dtype")
    if has_cache(args, kwargs):
        raise UsageError(f"{name} is called with a cache, which an archive does not hold",
                         do="export a call without one, or fuse the model instead")


def _compiled(model: torch.nn.Module, traced: Traced, options: Options):
    try:
        return pipeline.compile_graph(traced.captured, options)
    except TorchweldError as error:
        raise UsageError(f"{type(model).__name__} cannot be exported: {error}",
                         do="fuse it instead, or export the part of it that can be") from error


@dataclass(frozen=True)
class _Job:
    """One archive on its way. `weights`: as `export` has it. `tensors`: of the example call."""

    model: torch.nn.Module
    traced: Traced
    program: Any
    path: Path
    weights: str | Path
    options: Options
    tensors: tuple[torch.Tensor, ...]

    @property
    def loaded(self) -> Loaded:
        return self.program.loaded

    def fill(self, writer: Writer) -> Manifest:
        """Errors: UsageError for what cannot be kept."""
        loaded, gpu = self.loaded, _gpu_of(self.loaded)
        shipper = Shipper(writer, loaded, self.options)
        if gpu is not None:
            self._run_once()  # which compiles what addresses of other alignment need
        state = self._state()
        self._check_apart(state)
        file = self._file(state)
        named = {} if file is None else weights.names_in(file, state)
        held, order, constants = self._held(writer, state, named)
        plan = StoredPlan(loaded.graph, shipper.bundles(loaded))
        extra = shipper.gpu.extra(loaded) if gpu is not None else ()
        return Manifest(
            FORMAT, type(self.model).__name__,
            {**versions(), "device": device_name("cpu" if gpu is None else "cuda")},
            machine.needs(gpu and machine.capability(gpu)), self.traced.call,
            returned(loaded.graph, self.traced.results), held, order, constants,
            tuple(sorted(self.traced.captured.static_inputs)),
            writer.put("plan.json", plan_text(plan).encode()),
            shipper.helpers(loaded), shipper.native(loaded), {},
            file and weights.described(file, self.path), self.options.cuda_graphs,
            tuple(shipper.gpu.kernels), extra,
        )  # fmt: skip

    def _run_once(self) -> None:
        values = [*LiveState(self.model).tensors(), *self.tensors, *self.traced.constants]
        with torch.no_grad():
            self.program([values[p] for p in self.traced.order])

    def told(self, sha256: str) -> Exported:
        nodes = self.loaded.graph.nodes
        kernels = [n for n in nodes if isinstance(n, Comp)]
        compiled = sum(map(self.loaded.is_compiled, kernels))
        return Exported(self.path, sha256, self.path.stat().st_size, compiled,
                        len(nodes) - len(kernels), len(kernels) - compiled)

    def _state(self) -> list[tuple[str, str, torch.Tensor]]:
        """(name, kind, tensor) of parameters and buffers that the graph reads, by each of their
        names."""
        tensors = LiveState(self.model).tensors()
        used = {id(tensors[p]) for p in self.traced.order if p < len(tensors)}
        names, kept = zip(self.traced.state, tensors), set(self.model.state_dict())
        return [(n, _kind(t, n in kept), t) for n, t in names if id(t) in used]

    def _check_apart(self, state: list[tuple[str, str, torch.Tensor]]) -> None:
        """Tensors that share memory are kept one by one, which is seen where one is written to."""
        graph = self.loaded.graph
        written = {name for node in graph.nodes for name in node.writes}
        tensors = {id(t): t for _, _, t in state if t.numel()}.values()
        places = {t.untyped_storage().data_ptr() for t in tensors}
        if written & set(graph.inputs) and len(places) < len(tensors):
            raise UsageError(f"{type(self.model).__name__} writes to buffers, and some of its "
                             "tensors share memory", do="give each memory of its own")

    def _held(self, writer: Writer, state, named: dict[int, str]) -> tuple[tuple, ...]:
        """(records of all tensors, the graph's inputs, its constants), by position. `named`: the
        tensors that are in a file beside."""
        parts = {id(t): weights.outside(named[id(t)]) if id(t) in named
                 else weights.stored(t, writer) for _, _, t in state}
        where = {id(t): place for place, (_, _, t) in reversed(list(enumerate(state)))}
        records = [weights.held(name, kind, where[id(t)], t, parts[id(t)])
                   for name, kind, t in state]
        live, inputs = LiveState(self.model).tensors(), len(self.traced.call.tensors)
        made = [*self.traced.constants, *self.program.constants.values()]
        records += [weights.held(f"{_CONSTANT}{n}", "constant", n, t, weights.stored(t, writer))
                    for n, t in enumerate(made, len(state))]

        def position(p: int) -> int:
            if p < len(live):
                return where[id(live[p])]
            if p < len(live) + inputs:
                return len(records) + p - len(live)
            return len(state) + p - len(live) - inputs

        first = len(state) + len(self.traced.constants)
        buffers = tuple((name, first + n) for n, name in enumerate(self.program.constants))
        return tuple(records), tuple(map(position, self.traced.order)), buffers

    def _file(self, state) -> Path | None:
        """The file with the weights, written now or given."""
        if self.weights == INSIDE:
            return None
        if self.weights != REFERENCE:
            return Path(self.weights)
        file = self.path.with_name(f"{self.path.name}.weights")
        weights.write_beside(file, {name: t for name, _, t in state})
        return file


def _kind(tensor: torch.Tensor, is_kept: bool) -> str:
    if isinstance(tensor, torch.nn.Parameter):
        return "parameter"
    return "buffer" if is_kept else "local"


def _gpu_of(loaded: Loaded) -> torch.device | None:
    devices = (torch.device(b.device) for b in loaded.graph.buffers.values())
    return next((d for d in devices if d.type == "cuda"), None)
