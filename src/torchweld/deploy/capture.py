"""A model and example inputs to a graph, and to the record of what calls of it must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.export import Dim, ExportedProgram

from torchweld.capture import export_, torch_private
from torchweld.capture.captured import Captured
from torchweld.capture.lowering.sizes import Sizes
from torchweld.core import dtypes
from torchweld.core.errors import NotLowered, UsageError, one_line
from torchweld.core.torch_private import pytree
from torchweld.deploy.arguments import Arguments
from torchweld.deploy.records import Call, Guard, Returned, TensorSpec
from torchweld.ir.nodes import Graph, View

_PLAIN = (bool, int, float, str, type(None))
_RELATIONS = {
    "Equality": "eq", "Unequality": "ne", "StrictLessThan": "lt", "LessThan": "le",
    "StrictGreaterThan": "gt", "GreaterThan": "ge", "And": "and", "Or": "or", "Not": "not",
}  # fmt: skip
_LOGIC = ("and", "or", "not")
_TREE = "return tensors in tuples, lists and dicts"


@dataclass(frozen=True)
class Traced:
    """`captured`: what is compiled. `order`: for each of its inputs, its position among `state`
    (names), the tensors of a call, and `constants`. `results`: how what it returns is nested."""

    captured: Captured
    call: Call
    order: tuple[int, ...]
    state: tuple[str, ...]
    constants: list[torch.Tensor]
    results: pytree.TreeSpec


def trace(
    model: torch.nn.Module, given: Arguments, dynamic, takes: Callable | None
) -> Traced:
    """Errors: UsageError for what cannot be exported."""
    leaves, tree = pytree.tree_flatten(dict(given.values))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    _check_leaves(leaves)
    named: list[_Named] = []
    dims = _dims(dynamic, given, named)
    live = export_.LiveState(model)
    try:
        program = export_.traced(model, given.args, dict(given.kwargs), takes, dims)
        export_.write_back(program)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{type(model).__name__} cannot be exported: {one_line(error)}",
                         do=_advice(dims)) from error
    state = len(live.names)
    order, constants = export_.wire_inputs(program, live, state + len(tensors))
    inputs = range(state, state + len(tensors))
    sizes = _sizes_of_call(program, order, inputs)
    _check_varying(named, tensors, sizes)
    static = frozenset(i for i, position in enumerate(order) if position not in inputs)
    captured = Captured(export_.clean(program), type(model).__name__, "inference", static)
    call = _call(given, tree, leaves, sizes)
    return Traced(captured, call, tuple(order), live.names, constants,
                  program.call_spec.out_spec)


def returned(graph: Graph, results: pytree.TreeSpec) -> Returned:
    """What calls of the planned graph return."""
    names = [pytree.keystr(path).lstrip(".") or "the result" for path in _paths(results)]
    specs = tuple(
        _view_spec(name, view, graph) if isinstance(view, View) else None
        for name, view in zip(names, graph.outputs)
    )
    return Returned(_tree_text(results, "result"), specs)


def _check_leaves(leaves: Sequence) -> None:
    for leaf in leaves:
        if not isinstance(leaf, (torch.Tensor, *_PLAIN)):
            kind = type(leaf).__name__
            raise UsageError(f"an argument of type {kind} has no place in an archive",
                             do="give tensors, numbers, strings and None")


def _tree_text(spec: pytree.TreeSpec, what: str) -> str:
    try:
        text = pytree.treespec_dumps(spec)
        pytree.treespec_loads(text)
    except Exception as error:
        message = f"the structure of the {what} cannot be written: {one_line(error)}"
        raise UsageError(message, do=_TREE) from None
    return text


def _paths(spec: pytree.TreeSpec) -> list[tuple]:
    whole = pytree.tree_unflatten(range(spec.num_leaves), spec)
    return [path for path, _ in pytree.tree_flatten_with_path(whole)[0]]


# -- what a call must be


@dataclass(frozen=True)
class _CallSizes:
    fakes: Sequence[torch.Tensor]
    known: Sizes
    guards: tuple[Guard, ...]
    ranges: tuple


def _sizes_of_call(program: ExportedProgram, order: Sequence[int], inputs: range) -> _CallSizes:
    nodes = program.graph_module.graph.find_nodes(op="placeholder")
    found = {position: node.meta["val"] for position, node in zip(order, nodes)}
    fakes, known = [found[position] for position in inputs], Sizes()
    known.bind_inputs(fakes)
    symbolic = next((n for t in fakes for n in t.shape if isinstance(n, torch.SymInt)), None)
    if symbolic is None:
        return _CallSizes(fakes, known, (), ())
    try:
        guards, ranges = torch_private.size_guards(symbolic)
        said = tuple(_guard(g, known) for g in guards if g != True)  # noqa: E712
        bound = {s: bounds for s, bounds in ranges.items() if _is_bound(s, known)}
        limits = tuple((known.of(s), *bounds) for s, bounds in bound.items())
    except NotLowered as error:
        raise UsageError(f"a condition on sizes cannot be kept: {error.what}",
                         do="leave that size constant") from None
    if any(s.source[0] == "stride" for s in known.symbols):
        raise UsageError("an input's strides vary apart from its sizes",
                         do="export with contiguous inputs")
    return _CallSizes(fakes, known, said, limits)


def _is_bound(symbol, known: Sizes) -> bool:
    try:
        known.of(symbol)
    except NotLowered:  # replaced by others during the trace
        return False
    return True


def _guard(expression, known: Sizes) -> Guard:
    kind = _RELATIONS.get(type(expression).__name__)
    if kind is None:
        raise NotLowered(f"{expression} is no comparison of sizes")
    parts = (_guard(a, known) if kind in _LOGIC else known.of(a) for a in expression.args)
    return (kind, *parts)


def _call(given: Arguments, tree: pytree.TreeSpec, leaves: Sequence, sizes: _CallSizes) -> Call:
    constants = tuple(() if isinstance(v, torch.Tensor) else (v,) for v in leaves)
    paths = [path for path, constant in zip(_paths(tree), constants) if not constant]
    specs = tuple(
        TensorSpec(_argument(path), dtypes.torch_name(fake.dtype), str(fake.device),
                   sizes.known.many(fake.shape), sizes.known.many(fake.stride()))
        for path, fake in zip(paths, sizes.fakes)
    )
    return Call(
        given.positional, given.rest, tuple(given.values), given.defaults,
        _tree_text(tree, "arguments"), constants, specs, tuple(sizes.known.symbols),
        sizes.ranges, sizes.guards,
    )  # fmt: skip


def _argument(path: tuple) -> str:
    """x, or pair[0] for what is inside of one."""
    first, *rest = path
    return f"{first.key}{pytree.keystr(tuple(rest))}"


def _view_spec(name: str, view: View, graph: Graph) -> TensorSpec:
    buffer = graph.buffers[view.buffer]
    dtype = dtypes.torch_name(dtypes.to_torch(buffer.dtype))
    return TensorSpec(name, dtype, buffer.device, view.shape, view.strides)


# -- sizes that vary


@dataclass(frozen=True)
class _Named:
    """A size that is to vary: dimension `dim` of `tensor`, which is the argument `where`."""

    where: str
    tensor: torch.Tensor
    dim: int


def _check_varying(
    named: Sequence[_Named], tensors: Sequence[torch.Tensor], sizes: _CallSizes
) -> None:
    """Errors: UsageError for one that the model has fixed."""
    for size in named:
        fake = next(f for f, tensor in zip(sizes.fakes, tensors) if tensor is size.tensor)
        found = sizes.known.many(fake.shape)[size.dim]
        if isinstance(found, int):
            raise UsageError(f"the model fixes {size.where}.shape[{size.dim}] at {found}",
                             do="leave it out of `dynamic`")


def _dims(dynamic, given: Arguments, named: list[_Named]) -> dict | None:
    """torch.export's `dynamic_shapes`: of each argument; None: sizes are constants. Adds to `named`
    what the trace must leave open."""
    if not dynamic:
        return None
    if dynamic is not True and not isinstance(dynamic, Mapping):
        raise UsageError(f"dynamic={dynamic!r} has no meaning",
                         do='give True, or a dict such as {"x": {0: "batch"}}')
    unknown = sorted(dynamic.keys() - given.values.keys()) if dynamic is not True else []
    if unknown:
        raise UsageError(f"dynamic names {', '.join(unknown)}, which is no argument of the call",
                         do=f"choose from {', '.join(given.values)}")
    if given.more:
        raise UsageError(f"sizes cannot vary in a call with **{given.gathers}",
                         do=f"make {', '.join(given.more)} parameters of forward")
    return {name: _dims_of(value, _inner(dynamic, name), name, named)
            for name, value in given.values.items()}


def _dims_of(value, asked, where: str, named: list[_Named]):
    if asked is None or asked is False:
        return None
    if isinstance(value, torch.Tensor):
        return _dims_of_tensor(value, asked, where, named)
    if isinstance(value, Mapping):
        return {k: _dims_of(v, _inner(asked, k), f"{where}[{k!r}]", named)
                for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [_dims_of(v, _inner(asked, k), f"{where}[{k}]", named)
                 for k, v in enumerate(value)]
        return tuple(parts) if isinstance(value, tuple) else parts
    return None


def _inner(asked, key):
    if asked is True:
        return True
    if isinstance(asked, Mapping):
        return asked.get(key)
    return asked[key] if isinstance(key, int) and key < len(asked) else None


def _dims_of_tensor(tensor: torch.Tensor, asked, where: str, named: list[_Named]) -> dict:
    """`asked`: True, {dimension: name, Dim or None}, or one of them for each dimension."""
    if asked is True:
        return {d: Dim.AUTO if n > 1 else Dim.STATIC for d, n in enumerate(tensor.shape)}
    chosen = asked if isinstance(asked, Mapping) else dict(enumerate(asked))
    made = {}
    for dim, name in chosen.items():
        if not isinstance(dim, int) or not -tensor.dim() <= dim < tensor.dim():
            raise UsageError(f"{where} has no dimension {dim!r}",
                             do=f"name dimensions 0 to {tensor.dim() - 1}")
        if name is not None and tensor.shape[dim] < 2:
            raise UsageError(f"{where} has {tensor.shape[dim]} in dimension {dim}, which varies",
                             do="give example inputs with two or more there")
        made[dim % tensor.dim()] = Dim.AUTO if isinstance(name, str) else name
        if isinstance(name, str):
            named.append(_Named(where, tensor, dim % tensor.dim()))
    return made


def _advice(dims) -> str:
    if dims:
        return "let fewer sizes vary"
    return "fuse it instead, or export the part of it that can be"
