"""Arguments of a call to the flat tensors that the program takes, or an error that says what does
not fit: nothing is guessed, nothing is rounded."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import torch

from torchweld.core import dtypes
from torchweld.core.errors import UsageError
from torchweld.core.torch_private import pytree
from torchweld.deploy.records import Call, Guard, TensorSpec, same_plain
from torchweld.ir.bind import bind
from torchweld.ir.size import Size, evaluate

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_MOST_SIZES = 4096  # that are known to fit
_AGAIN = "export the model for such a call too"
_RELATIONS = {
    "eq": ("==", operator.eq), "ne": ("!=", operator.ne), "lt": ("<", operator.lt),
    "le": ("<=", operator.le), "gt": (">", operator.gt), "ge": (">=", operator.ge),
}  # fmt: skip
_LOGIC = {"and": all, "or": any, "not": lambda parts: not all(parts)}
_DERIVED = {"floor_div": "({} // {})", "mod": "({} % {})", "min": "min({}, {})",
            "max": "max({}, {})"}  # fmt: skip


class Contract:
    """The tensors of a call, checked. Raises UsageError where a call is none of those that were
    exported."""

    def __init__(self, call: Call, model: str) -> None:
        self._call, self._model = call, model
        self._tree = tree_of(call.tree, model)
        self._types = [_type_of(spec) for spec in call.tensors]
        only_tensors = len(call.constants) == len(call.names) and not any(call.constants)
        self._is_flat = only_tensors and self._tree == _tree_of(dict.fromkeys(call.names, 0))
        self._known: set[tuple] = set()

    def tensors(self, args: tuple, kwargs: Mapping) -> list[torch.Tensor]:
        values = self._arranged(args, kwargs)
        leaves = list(values.values())
        if not (self._is_flat and all(type(v) in _PLAIN for v in leaves)):
            leaves = self._flattened(values)
        self._check_tensors(leaves)
        shapes = tuple([t.shape for t in leaves])
        if shapes not in self._known:
            self._check_sizes(leaves)
            if len(self._known) >= _MOST_SIZES:
                self._known.clear()
            self._known.add(shapes)
        return leaves

    def described(self) -> list[str]:
        """A line for each tensor, and for each condition on sizes."""
        call = self._call
        lines = [f"{s.name}: {s.dtype} {self._sizes(s.shape)} on {s.device}" for s in call.tensors]
        return lines + [f"sizes with {self._guard(guard)}" for guard in call.guards]

    # -- structure

    def _arranged(self, args: tuple, kwargs: Mapping) -> dict:
        """The values of the exported call's arguments, in their order."""
        call = self._call
        given = dict(zip(call.positional, args))
        more, twice = args[len(call.positional) :], given.keys() & kwargs.keys()
        if more and call.rest is None:
            raise self._unfit(f"takes {len(call.positional)} arguments, not {len(args)}")
        if twice:
            raise self._unfit(f"is given {', '.join(sorted(twice))} twice")
        given |= {**kwargs, **({call.rest: tuple(more)} if more else {})}
        for name in given.keys() - call.names:
            if name not in call.defaults or not same_plain(given[name], call.defaults[name]):
                raise self._unfit(f"was exported without the argument {name}")
        missing = [n for n in call.names if n not in given and n not in call.defaults]
        if missing:
            raise self._unfit(f"needs the argument {', '.join(missing)}")
        return {n: given[n] if n in given else call.defaults[n] for n in call.names}

    def _flattened(self, values: dict) -> list:
        leaves, tree = pytree.tree_flatten(values)
        if tree != self._tree:
            raise self._unfit("was exported for arguments that are nested otherwise")
        tensors = []
        for place, (leaf, constant) in enumerate(zip(leaves, self._call.constants)):
            if not constant:
                tensors.append(leaf)
            elif not same_plain(leaf, constant[0]):
                what = f"was exported for {constant[0]!r} as value {place}, not {leaf!r:.60}"
                raise self._unfit(what)
        return tensors

    # -- tensors

    def _check_tensors(self, tensors: Sequence) -> None:
        for tensor, spec, (dtype, device, rank) in zip(tensors, self._call.tensors, self._types):
            if type(tensor) not in _PLAIN:
                raise self._unfit(f"takes a plain tensor as {spec.name}, not a "
                                  f"{type(tensor).__name__}")
            if tensor.dtype != dtype or tensor.device != device or tensor.dim() != rank:
                raise self._unfit(f"takes {_text(spec)} as {spec.name}, not {_layout(tensor)}")
            if tensor.requires_grad and torch.is_grad_enabled():
                raise UsageError(f"{spec.name} requires a gradient, and an archive makes none",
                                 do="call it under torch.no_grad(), or fuse the model itself")

    def _check_sizes(self, tensors: Sequence[torch.Tensor]) -> None:
        call = self._call
        values = bind(call.symbols, tensors)
        for tensor, spec in zip(tensors, call.tensors):
            wanted = [evaluate(size, values) for size in spec.shape]
            if list(tensor.shape) != wanted:
                raise self._unfit(f"takes {spec.name} of sizes {self._sizes(spec.shape)}, not "
                                  f"{list(tensor.shape)}")
        for size, least, most in call.ranges:
            found = evaluate(size, values)
            if found < least or (most is not None and found > most):
                limits = f"at least {least}" if most is None else f"{least} to {most}"
                raise self._unfit(f"takes {self._size(size)} of {limits}, not {found}")
        for guard in call.guards:
            if not _holds(guard, values):
                raise self._unfit(f"was exported for sizes with {self._guard(guard)}, which "
                                  f"does not hold for {self._found(values)}")

    def _unfit(self, what: str) -> UsageError:
        return UsageError(f"the archive of {self._model} {what}", do=_AGAIN)

    # -- words

    def _size(self, size: Size) -> str:
        names = _names(self._call)
        return str(size) if isinstance(size, int) else _polynomial(size, names)

    def _sizes(self, sizes: Sequence[Size]) -> str:
        return f"[{', '.join(map(self._size, sizes))}]"

    def _guard(self, guard: Guard) -> str:
        kind, *parts = guard
        if kind in _RELATIONS:
            return f" {_RELATIONS[kind][0]} ".join(map(self._size, parts))
        if kind == "not":
            return f"not ({self._guard(parts[0])})"
        return f" {kind} ".join(f"({self._guard(part)})" for part in parts)

    def _found(self, values: Mapping[str, int]) -> str:
        names = _names(self._call)
        given = [s for s in self._call.symbols if s.source[0] in ("size", "stride", "int")]
        return ", ".join(f"{names[s.name]} = {values[s.name]}" for s in given)


def example(call: Call) -> tuple[tuple, dict]:
    """(args, kwargs) of a call with random floats and zeros otherwise, of the sizes seen at
    export."""
    hints, tensors = {s.name: s.hint for s in call.symbols}, iter(call.tensors)
    leaves = [c[0] if c else _random(next(tensors), hints) for c in call.constants]
    values = pytree.tree_unflatten(leaves, pytree.treespec_loads(call.tree))
    if call.rest not in values:
        return (), values
    more = values.pop(call.rest)
    return (*(values.pop(n, call.defaults.get(n)) for n in call.positional), *more), values


def _random(spec: TensorSpec, sizes: Mapping[str, int]) -> torch.Tensor:
    shape = [evaluate(size, sizes) for size in spec.shape]
    dtype, device, _ = _type_of(spec)
    if dtype.is_floating_point:
        return torch.randn(shape, device=device).to(dtype)
    return torch.zeros(shape, dtype=dtype, device=device)


def tree_of(text: str, model: str) -> pytree.TreeSpec:
    """A structure of arguments or results. Errors: UsageError for a class that torch's pytree does
    not know yet."""
    try:
        return pytree.treespec_loads(text)
    except Exception as error:
        raise UsageError(f"a structure of {model} is not known here: {error}",
                         do="import the package that defines that class before you load "
                         "the archive") from None


def _type_of(spec: TensorSpec) -> tuple[torch.dtype, torch.device, int]:
    return getattr(torch, spec.dtype), torch.device(spec.device), len(spec.shape)


def _tree_of(value) -> pytree.TreeSpec:
    return pytree.tree_flatten(value)[1]


def _text(spec: TensorSpec) -> str:
    return f"{spec.dtype} with {len(spec.shape)} dimensions on {spec.device}"


def _layout(tensor: torch.Tensor) -> str:
    name = dtypes.torch_name(tensor.dtype)
    return f"{name} with {tensor.dim()} dimensions on {tensor.device}"


def _holds(guard: Guard, values: Mapping[str, int]) -> bool:
    kind, *parts = guard
    if kind in _RELATIONS:
        return _RELATIONS[kind][1](*(evaluate(part, values) for part in parts))
    return _LOGIC[kind]([_holds(part, values) for part in parts])


def _names(call: Call) -> dict[str, str]:
    """Symbol -> what a user calls it: x.shape[0]."""
    names: dict[str, str] = {}
    for symbol in call.symbols:
        kind, *source = symbol.source
        if kind in _DERIVED:
            parts = (str(s) if isinstance(s, int) else _polynomial(s, names) for s in source)
            names[symbol.name] = _DERIVED[kind].format(*parts)
        else:
            position, *dim = source
            attribute = {"size": "shape[{}]", "stride": "stride({})"}.get(kind, "")
            names[symbol.name] = f"{call.tensors[position].name}.{attribute.format(*dim)}"
    return names


def _polynomial(size: Size, names: Mapping[str, str]) -> str:
    terms = []
    for monomial, factor in size.terms:
        parts = [names[name] for name in monomial]
        terms.append("*".join([str(factor), *parts] if factor != 1 or not parts else parts))
    return " + ".join(terms)
