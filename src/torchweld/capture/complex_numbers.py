"""Complex numbers as two real ones, in a functional graph.

    z = view_as_complex(x);  y = view_as_real(exp(z) * w)
    ->  r = exp(x[..., 0]);  a = r * cos(x[..., 1]);  b = r * sin(x[..., 1])
        y = stack([a * w0 - b * w1, a * w1 + b * w0], -1)

What ATen does with complex numbers is a pass over memory for each operation, and its functions are
slow (exp of 128,000 numbers takes a core of Zen 4 5.2 ms, 0.16 so). As real ones they are fused
like any others. Formulas are those of c10::complex, whose infinities and NaN they share.

Transforms and products of matrices stay calls, of pairs that are viewed as complex numbers inside
the call (spectra.py). What is not listed here gets complex numbers again, by a copy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from torchweld.capture.calls import add_call
from torchweld.capture.spectra import ON_PAIRS
from torchweld.capture.torch_private import FakeTensorMode

aten = torch.ops.aten
_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_SELECT, _STACK = aten.select.int, aten.stack.default
_NOT_FOR_PARTS = (RuntimeError, ValueError, NotImplementedError)  # strides that parts do not have
_COMPUTED = (aten.hypot.default, aten.atan2.default)
_PAIRS = (aten.view_as_real.default, aten.view_as_real_copy.default)


@dataclass(frozen=True, slots=True)
class Parts:
    """Real and imaginary part: nodes, both of the whole shape; of a number, two numbers."""

    real: Node | float
    imag: Node | float


def as_real_numbers(gm: GraphModule) -> None:
    """Of a functional graph, in place."""
    complex_ = [n for n in gm.graph.nodes if _is_complex(n)]
    if not complex_ or any(n.meta["val"].dtype not in _REAL for n in complex_):
        return
    work = _Rewriting(complex_[0].meta["val"].fake_mode)
    for node in gm.graph.find_nodes(op="get_attr"):
        value = operator.attrgetter(node.target)(gm)
        if "val" not in node.meta and isinstance(value, torch.Tensor):
            node.meta["val"] = work.fake_mode.from_tensor(value)
    for node in list(gm.graph.nodes):
        work.look_at(node)
    gm.graph.eliminate_dead_code()


def _is_complex(node: object) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.is_complex()


def _suit(parts: Parts, node: Node) -> bool:
    """Whether tensors are the parts of a node: of its shape, and real numbers of its precision."""
    value = node.meta["val"]
    expected = value.shape, _REAL[value.dtype]
    tensors = (part.meta["val"] for part in (parts.real, parts.imag))
    return all((t.shape, t.dtype) == expected for t in tensors)


@dataclass
class _Rewriting:
    """`parts`: of nodes of complex numbers. `pairs`: of them as tensors [..., 2], where there is
    one. `gone`: those that nothing computes any more. `whole`: these as complex numbers again, for
    what knows nothing else."""

    fake_mode: FakeTensorMode
    parts: dict[Node, Parts] = field(default_factory=dict)
    pairs: dict[Node, Node] = field(default_factory=dict)
    gone: set[Node] = field(default_factory=set)
    whole: dict[Node, Node] = field(default_factory=dict)
    like: Node | None = None  # what is looked at

    def look_at(self, node: Node) -> None:
        self.like = node
        if node.op == "call_function" and (
            _is_complex(node) or any(map(_is_complex, node.all_input_nodes))
        ):
            made = self._rewritten(node)
            if isinstance(made, Parts):
                self.parts[node] = made
                self.gone.add(node)
                return
            if made is not None:
                if made.target in _COMPUTED:
                    made.meta["val"] = node.meta["val"]  # it lies as eager's
                node.replace_all_uses_with(made)
                return
        node.args, node.kwargs = map_arg((node.args, node.kwargs), self._complex_again)

    def _rewritten(self, node: Node) -> Parts | Node | None:
        """What takes the place of `node`; None: it stays."""
        if node.target in ON_PAIRS:
            return self._on_pairs(node)
        rule = RULES.get(node.target)
        try:
            made = rule and rule(self, node)
        except _NOT_FOR_PARTS:
            return None
        if not isinstance(made, Parts):
            return made
        if not isinstance(made.real, Node):
            made = self._numbers(made, node)
        return made if _suit(made, node) else None

    # -- what rules use --

    def call(self, target, *args, **kwargs) -> Node:
        """A call in front of the node that is looked at."""
        return add_call(self.like, target, args, self.fake_mode, **kwargs)

    def parts_of(self, value: object) -> Parts:
        """Of a tensor, complex or real, or of a number."""
        if not isinstance(value, Node):
            number = complex(value)
            return Parts(number.real, number.imag)
        if not _is_complex(value):
            return Parts(value, self.call(aten.full_like.default, value, 0.0))
        if value not in self.parts:
            pairs = self.pairs_of(value)
            self.parts.setdefault(value, self.split(pairs))
        return self.parts[value]

    def split(self, pairs: Node) -> Parts:
        return Parts(self.call(_SELECT, pairs, -1, 0), self.call(_SELECT, pairs, -1, 1))

    def pairs_of(self, node: Node) -> Node:
        """[..., 2], real."""
        if node not in self.pairs:
            if node.meta["val"].is_conj() and node not in self.parts:  # given so by the caller
                turned = self.parts_of(self.call(aten._conj_physical.default, node))
                self.parts[node] = Parts(turned.real, _negative(self, turned.imag))
            if node in self.parts:
                parts = self.parts[node]
                self.pairs[node] = self.call(_STACK, [parts.real, parts.imag], -1)
                self.pairs[node].meta["val"] = self._as_pairs(node.meta["val"])
            else:
                self.pairs[node] = self.call(aten.view_as_real.default, node)
        return self.pairs[node]

    def _as_pairs(self, value: torch.Tensor) -> torch.Tensor:
        """[..., 2], which lies as complex numbers do."""
        with self.fake_mode:
            return torch.view_as_real(torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=value.device
            ))  # fmt: skip

    def _numbers(self, parts: Parts, node: Node) -> Parts:
        """Those of a number's conjugate as tensors, of the precision that torch gives it."""
        value = node.meta["val"]
        how = dict(dtype=_REAL[value.dtype], device=value.device)
        both = (parts.real, parts.imag)
        return Parts(*(self.call(aten.full.default, [], number, **how) for number in both))

    def keep_pairs(self, node: Node, pairs: Node) -> Parts:
        self.pairs[node] = pairs
        return self.split(pairs)

    def _on_pairs(self, node: Node) -> Parts | Node:
        call = ON_PAIRS[node.target]
        args = [self.pairs_of(a) if _is_complex(a) else a for a in node.args]
        made = self.call(call, *args, **node.kwargs)
        return self.keep_pairs(node, made) if _is_complex(node) else made

    def _complex_again(self, node: Node) -> Node:
        """What a call that stays reads in the place of a node that is parts now."""
        if node not in self.gone:
            return node
        if node not in self.whole:
            self.whole[node] = self.call(aten.view_as_complex.default, self.pairs_of(node))
        return self.whole[node]


Rule = Callable[[_Rewriting, Node], "Parts | Node | None"]
RULES: dict[object, Rule] = {}


def _rule(*targets: object) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(targets, rule))
        return rule

    return add


# -- arithmetic --


def _times(w: _Rewriting, a, b):
    """Of numbers, or nodes."""
    if not isinstance(a, Node) and not isinstance(b, Node):
        return a * b
    return w.call(aten.mul.Tensor, *((a, b) if isinstance(a, Node) else (b, a)))


def _plus(w: _Rewriting, a, b, sign: int = 1):
    if not isinstance(a, Node) and not isinstance(b, Node):
        return a + sign * b
    if isinstance(a, Node):
        return w.call(aten.add.Tensor if sign == 1 else aten.sub.Tensor, a, b)
    return w.call(aten.add.Tensor, b if sign == 1 else _negative(w, b), a)


def _product(w: _Rewriting, x: Parts, y: Parts) -> Parts:
    real = _plus(w, _times(w, x.real, y.real), _times(w, x.imag, y.imag), -1)
    return Parts(real, _plus(w, _times(w, x.real, y.imag), _times(w, x.imag, y.real)))


@_rule(aten.mul.Tensor, aten.mul.Scalar)
def _mul(w: _Rewriting, node: Node):
    x, y = map(w.parts_of, node.args)
    return _product(w, x, y)


def _sum(sign: int) -> Rule:
    def rule(w: _Rewriting, node: Node):
        x, y = map(w.parts_of, node.args)
        if (alpha := node.kwargs.get("alpha", 1)) != 1:
            y = _product(w, y, w.parts_of(alpha))
        return Parts(_plus(w, x.real, y.real, sign), _plus(w, x.imag, y.imag, sign))

    return rule


_rule(aten.add.Tensor, aten.add.Scalar)(_sum(1))
_rule(aten.sub.Tensor, aten.sub.Scalar)(_sum(-1))


@_rule(aten.rsub.Tensor, aten.rsub.Scalar)
def _reversed(w: _Rewriting, node: Node):
    y, x = map(w.parts_of, node.args[:2])
    plain = len(node.args) == 2 and not node.kwargs
    return Parts(_plus(w, x.real, y.real, -1), _plus(w, x.imag, y.imag, -1)) if plain else None


@_rule(aten.div.Tensor, aten.div.Scalar)
def _div(w: _Rewriting, node: Node):
    return None if node.kwargs else _quotient(w, *map(w.parts_of, node.args))


@_rule(aten.pow.Tensor_Scalar)
def _square(w: _Rewriting, node: Node):
    x = w.parts_of(node.args[0])
    return _product(w, x, x) if node.args[1] == 2 else None


@_rule(aten.reciprocal.default)
def _reciprocal(w: _Rewriting, node: Node):
    return _quotient(w, Parts(1.0, 0.0), w.parts_of(node.args[0]))


def _quotient(w: _Rewriting, x: Parts, y: Parts) -> Parts | None:
    """By Smith's method: the larger part of the divisor divides the smaller one."""
    if not isinstance(y.real, Node):
        if y.imag != 0.0:
            return None
        return Parts(*(w.call(aten.div.Tensor, part, y.real) for part in (x.real, x.imag)))
    sizes = (w.call(aten.abs.default, part) for part in (y.real, y.imag))
    wide = w.call(aten.ge.Tensor, *sizes)
    large = w.call(aten.where.self, wide, y.real, y.imag)
    small = w.call(aten.where.self, wide, y.imag, y.real)
    zero = w.call(aten.eq.Scalar, large, 0)  # c10 divides by it then
    ratio = w.call(aten.where.self, zero, small, w.call(aten.div.Tensor, small, large))
    below = _plus(w, large, _times(w, small, ratio))
    a, b = (_tensor(w, part, large) for part in (x.real, x.imag))
    first = w.call(aten.where.self, wide, a, b)
    second = w.call(aten.where.self, wide, b, a)
    real = _plus(w, first, _times(w, second, ratio))
    turned = _plus(w, second, _times(w, first, ratio), -1)
    imag = w.call(aten.where.self, wide, turned, w.call(aten.neg.default, turned))
    return Parts(*(w.call(aten.div.Tensor, part, below) for part in (real, imag)))


def _tensor(w: _Rewriting, part, like: Node) -> Node:
    return part if isinstance(part, Node) else w.call(aten.full_like.default, like, part)


@_rule(aten.neg.default)
def _neg(w: _Rewriting, node: Node):
    x = w.parts_of(node.args[0])
    return Parts(_negative(w, x.real), _negative(w, x.imag))


def _negative(w: _Rewriting, part):
    return w.call(aten.neg.default, part) if isinstance(part, Node) else -part


@_rule(aten._conj.default, aten.conj_physical.default, aten._conj_physical.default)
def _conj(w: _Rewriting, node: Node):
    x = w.parts_of(node.args[0])  # a number, too
    return Parts(x.real, _negative(w, x.imag))


@_rule(aten.resolve_conj.default, aten.clone.default, aten.alias.default, aten.detach.default,
       aten.resolve_neg.default)  # fmt: skip
def _same(w: _Rewriting, node: Node):
    x = node.args[0]
    parts = w.parts_of(x)
    if x in w.pairs:
        w.pairs[node] = w.pairs[x]
    return parts


# -- functions --


@_rule(aten.exp.default)
def _exp(w: _Rewriting, node: Node):
    x = w.parts_of(node.args[0])
    size = w.call(aten.exp.default, x.real)
    turned = _times(w, size, w.call(aten.sin.default, x.imag))
    zero = w.call(aten.eq.Scalar, x.imag, 0)  # of a real number, also where its exp is infinite
    imag = w.call(aten.where.self, zero, x.imag, turned)
    cosine = _times(w, size, w.call(aten.cos.default, x.imag))
    return Parts(w.call(aten.where.self, zero, size, cosine), imag)


@_rule(aten.abs.default)
def _abs(w: _Rewriting, node: Node):
    x = w.parts_of(node.args[0])
    return w.call(aten.hypot.default, x.real, x.imag)


@_rule(aten.angle.default)
def _angle(w: _Rewriting, node: Node):
    x = w.parts_of(node.args[0])
    return w.call(aten.atan2.default, x.imag, x.real)


@_rule(aten.log.default)
def _log(w: _Rewriting, node: Node):
    x = w.parts_of(node.args[0])
    size = w.call(aten.hypot.default, x.real, x.imag)
    return Parts(w.call(aten.log.default, size), w.call(aten.atan2.default, x.imag, x.real))


@_rule(aten.sgn.default)
def _sgn(w: _Rewriting, node: Node):
    x = w.parts_of(node.args[0])
    size = w.call(aten.hypot.default, x.real, x.imag)
    zero = w.call(aten.eq.Scalar, size, 0)
    return Parts(*(
        w.call(aten.where.self, zero, part, w.call(aten.div.Tensor, part, size))
        for part in (x.real, x.imag)
    ))  # fmt: skip


# -- to complex numbers and from them --


@_rule(aten.view_as_complex.default, aten.view_as_complex_copy.default)
def _from_pairs(w: _Rewriting, node: Node):
    return w.keep_pairs(node, node.args[0])


@_rule(*_PAIRS)
def _to_pairs(w: _Rewriting, node: Node):
    return w.pairs_of(node.args[0])


@_rule(aten.complex.default)
def _complex(w: _Rewriting, node: Node):
    alike = all(a.meta["val"].shape == node.meta["val"].shape for a in node.args)
    return Parts(*node.args) if alike else None


@_rule(aten.polar.default)
def _polar(w: _Rewriting, node: Node):
    size, angle = node.args
    turns = (w.call(function, angle) for function in (aten.cos.default, aten.sin.default))
    return Parts(*(_times(w, size, turn) for turn in turns))


@_rule(aten.real.default)
def _real(w: _Rewriting, node: Node):
    return w.parts_of(node.args[0]).real


@_rule(aten.imag.default)
def _imag(w: _Rewriting, node: Node):
    return w.parts_of(node.args[0]).imag


@_rule(aten._to_copy.default)
def _converted(w: _Rewriting, node: Node):
    value, (x,), kwargs = node.meta["val"], node.args, dict(node.kwargs)
    kwargs.pop("memory_format", None)
    kwargs["dtype"] = _REAL.get(value.dtype, value.dtype)
    parts = w.parts_of(x)
    if not value.is_complex():
        return w.call(aten._to_copy.default, parts.real, **kwargs)
    both = (parts.real, parts.imag)
    return Parts(*(w.call(aten._to_copy.default, part, **kwargs) for part in both))


@_rule(aten.full.default, aten.zeros.default, aten.ones.default)
def _made(w: _Rewriting, node: Node):
    fill = {aten.zeros.default: 0, aten.ones.default: 1}.get(node.target)
    parts = w.parts_of(node.args[1] if fill is None else fill)
    how = dict(dtype=_REAL[node.meta["val"].dtype], device=node.meta["val"].device)
    both = (parts.real, parts.imag)
    return Parts(*(w.call(aten.full.default, node.args[0], number, **how) for number in both))


@_rule(aten.full_like.default, aten.zeros_like.default, aten.ones_like.default,
       aten.new_zeros.default, aten.new_ones.default)  # fmt: skip
def _made_like(w: _Rewriting, node: Node):
    """A real tensor like a complex one stays what it is."""
    x, value = node.args[0], node.meta["val"]
    if not value.is_complex():
        return None
    fills = {aten.full_like.default: node.args[-1], aten.ones_like.default: 1,
             aten.new_ones.default: 1}  # fmt: skip
    parts, how = w.parts_of(fills.get(node.target, 0)), dict(dtype=_REAL[value.dtype])
    target, args = aten.full_like.default, (w.parts_of(x).real,)
    if node.target in (aten.new_zeros.default, aten.new_ones.default):
        target, args, how = aten.full.default, (node.args[1],), how | {"device": value.device}
    return Parts(*(w.call(target, *args, number, **how) for number in (parts.real, parts.imag)))


# -- the same of each part --


def _each(*places: int) -> Rule:
    """The same operation on all real parts, and on all imaginary ones, of the arguments at
    `places`. Others are read as they are (sizes, indices, conditions). None where one of these is
    real, which ATen may convert, and where a dtype is asked for."""

    def rule(w: _Rewriting, node: Node):
        values = [node.args[k] for k in places]
        if not all(map(_is_complex, values)) or node.kwargs.get("dtype") is not None:
            return None
        both, args = [w.parts_of(v) for v in values], list(node.args)
        made = []
        for part in ("real", "imag"):
            for k, value in zip(places, both):
                args[k] = getattr(value, part)
            made.append(w.call(node.target, *args, **node.kwargs))
        return Parts(*made)

    return rule


_rule(
    aten.permute.default, aten.transpose.int, aten.t.default, aten.expand.default, _SELECT,
    aten.slice.Tensor, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.flip.default, aten.roll.default, aten.index_select.default,
    aten.index.Tensor, aten.gather.default, aten.repeat.default, aten.slice_backward.default,
    aten.select_backward.default, aten.sum.default, aten.sum.dim_IntList, aten.mean.default,
    aten.mean.dim, aten.cumsum.default, aten.diagonal.default, aten.tril.default,
    aten.triu.default,
)(_each(0))  # fmt: skip
_rule(aten.slice_scatter.default, aten.select_scatter.default, aten.copy.default)(_each(0, 1))
_rule(aten.index_put.default)(_each(0, 2))
_rule(aten.where.self)(_each(1, 2))


@_rule(aten.cat.default, _STACK)
def _joined(w: _Rewriting, node: Node):
    """Real tensors among them have an imaginary part of zero."""
    tensors, *rest = node.args
    parts = [w.parts_of(t) for t in tensors]
    both = ([p.real for p in parts], [p.imag for p in parts])
    return Parts(*(w.call(node.target, some, *rest, **node.kwargs) for some in both))


@_rule(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def _view(w: _Rewriting, node: Node):
    """Parts lie otherwise than the numbers did, and may have to be copied for it."""
    x, shape = node.args
    parts, made = w.parts_of(x), []
    for part in (parts.real, parts.imag):
        try:
            made.append(w.call(aten.view.default, part, shape))
        except _NOT_FOR_PARTS:
            dense = w.call(aten.clone.default, part, memory_format=torch.contiguous_format)
            made.append(w.call(aten.view.default, dense, shape))
    return Parts(*made)


@_rule(aten.constant_pad_nd.default, aten.masked_fill.Scalar)
def _filled(w: _Rewriting, node: Node):
    """Where a number is put, zero if none is given."""
    x, where, *number = node.args
    fill, parts = w.parts_of(*number or (0,)), w.parts_of(x)
    made = (parts.real, fill.real), (parts.imag, fill.imag)
    return Parts(*(w.call(node.target, part, where, some) for part, some in made))
