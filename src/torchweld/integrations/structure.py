"""What a module computes, found out from its parts and by trying: never from its name.

A module whose parts allow it is compared with each form that it may be (a norm with these
constants, a gated MLP with that activation), in results and gradients, on a small random input.
Forms are the references of `torchweld.operators`.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchweld import ops
from torchweld.capture.torch_private import forward_is_the_class_own
from torchweld.operators import references as r

_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}  # of the largest element
_SAMPLE = (3, 5)  # rows of a sample
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class RMSNorm:
    """A norm over the last dimension; `eps`, `offset`, `casting` as of `ops.rms_norm`."""

    eps: float
    offset: float
    casting: str

    def __str__(self) -> str:
        return f"rms_norm, eps {self.eps}, offset {self.offset}, {self.casting}"

    def reference(self, x: Tensor, weights: Weights) -> Tensor:
        return r.rms_norm(x, weights["weight"], self.eps, self.offset, self.casting)

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        casting: ops.Casting = self.casting  # type: ignore[assignment]
        return ops.rms_norm(x, module.weight, self.eps, offset=self.offset, casting=casting)  # type: ignore[arg-type]


@dataclass(frozen=True)
class LayerNorm:
    """A norm with mean over the last dimension; `eps` is added to the variance."""

    eps: float

    def __str__(self) -> str:
        return f"layer_norm, eps {self.eps}"

    def reference(self, x: Tensor, weights: Weights) -> Tensor:
        return r.layer_norm(x, weights["weight"], weights.get("bias"), self.eps)

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        bias = getattr(module, "bias", None)
        return ops.layer_norm(x, module.weight, bias, self.eps)  # type: ignore[arg-type]


@dataclass(frozen=True)
class GatedMLP:
    """`gate`, `up`, `down`: the names of its linear layers."""

    gate: str
    up: str
    down: str
    activation: str

    def __str__(self) -> str:
        return f"gated_mlp, {self.activation}"

    def reference(self, x: Tensor, weights: Weights) -> Tensor:
        names = (self.gate, self.up, self.down)
        matrices = [weights[f"{n}.weight"] for n in names]
        biases = [weights.get(f"{n}.bias") for n in names]
        return r.gated_mlp(x, *matrices, *biases, self.activation)

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        gate, up, down = (getattr(module, n) for n in (self.gate, self.up, self.down))
        return ops.gated_mlp(
            x, gate.weight, up.weight, down.weight, gate_bias=gate.bias, up_bias=up.bias,
            down_bias=down.bias, activation=self.activation,
        )  # fmt: skip


@dataclass(frozen=True)
class PackedMLP:
    """One linear layer `both` makes the gate and what it multiplies."""

    both: str
    down: str
    activation: str
    gate_first: bool

    def __str__(self) -> str:
        return f"packed gated_mlp, {self.activation}"

    def reference(self, x: Tensor, weights: Weights) -> Tensor:
        made = nn.functional.linear(x, weights[f"{self.both}.weight"],
                                    weights.get(f"{self.both}.bias"))  # fmt: skip
        hidden = r.gated(*self._parts(made), self.activation)
        return nn.functional.linear(
            hidden, weights[f"{self.down}.weight"], weights.get(f"{self.down}.bias"))

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        both, down = getattr(module, self.both), getattr(module, self.down)
        made: Tensor = down(ops.gated(*self._parts(both(x)), self.activation))
        return made

    def _parts(self, made: Tensor) -> tuple[Tensor, Tensor]:
        one, two = made.chunk(2, -1)
        return (one, two) if self.gate_first else (two, one)


Form = RMSNorm | LayerNorm | GatedMLP | PackedMLP


def form_of(module: nn.Module) -> Form | str | None:
    """What `module` computes; why it stays as it is, where its parts looked like it; None for any
    other module."""
    forms = list(_possible(module))
    _, *given = inspect.signature(type(module).forward).parameters.values()
    if not forms or sum(p.default is p.empty for p in given) != 1:
        return None
    if not forward_is_the_class_own(module):
        return "it has a forward of its own"
    if len(given) != 1:
        return "it takes more than one argument"
    if any(p.device.type == "meta" for p in module.parameters()):
        return "its weights are on the meta device"
    return next((f for f in forms if _computes(module, f)), "it computes something else")


def _possible(module: nn.Module) -> Iterator[Form]:
    """The forms that its parts allow."""
    if any(True for _ in module.buffers()):
        return
    if not any(True for _ in module.children()):
        yield from _norms(module)
        return
    if list(module.parameters(recurse=False)):
        return
    linear = [n for n, c in module.named_children() if type(c) is nn.Linear]
    rest = [c for c in module.children() if type(c) is not nn.Linear]
    if any(list(c.parameters()) for c in rest) or len(rest) > 1:
        return
    yield from _mlps(module, linear, _activations(rest))


def _norms(module: nn.Module) -> Iterator[Form]:
    weights = dict(module.named_parameters())
    if any(p.dim() != 1 or not p.is_floating_point() for p in weights.values()):
        return
    small = {v for k, v in vars(module).items() if isinstance(v, float) and "eps" in k}
    if len(small) != 1 or weights.keys() not in ({"weight"}, {"weight", "bias"}):
        return
    (eps,) = small
    if "bias" not in weights:
        castings = ("llama", "gemma", "none")
        yield from (RMSNorm(eps, o, c) for o, c in product((0.0, 1.0), castings))
    yield LayerNorm(eps)


def _mlps(module: nn.Module, linear: list[str], activations: list[str]) -> Iterator[Form]:
    sizes = {n: (getattr(module, n).in_features, getattr(module, n).out_features) for n in linear}
    if len(linear) == 3:
        for gate, up, down in permutations(linear):
            if sizes[gate] == sizes[up] == sizes[down][::-1]:
                yield from (GatedMLP(gate, up, down, a) for a in activations)
    elif len(linear) == 2:
        for both, down in permutations(linear):
            hidden, inner = sizes[both]
            if sizes[down] == (inner // 2, hidden) and inner % 2 == 0:
                yield from (PackedMLP(both, down, a, first)
                            for a, first in product(activations, (True, False)))  # fmt: skip


def _activations(modules: list[nn.Module]) -> list[str]:
    """Those that the module may be; all if there is none."""
    x = torch.linspace(-6, 6, 97)
    found = list(r.ACTIVATIONS)
    for module in modules:
        y = _tried(lambda m=module: m(x))  # type: ignore[misc]
        found = [n for n in found if y is not None and _equal(y, r.ACTIVATIONS[n](x), 1e-6)]
    return found


def _computes(module: nn.Module, form: Form) -> bool:
    """Results and gradients are those of `form`, in training and in evaluation; for norms also in
    other types, which say what is computed in float32."""
    kinds = [(torch.float32, torch.float32)]
    if isinstance(form, (RMSNorm, LayerNorm)):
        kinds += [(torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32)]
    bare = _without_hooks(module)
    return all(
        _agrees(bare.train(training), form, *types)
        for training, types in product((True, False), kinds)
    )


def _without_hooks(module: nn.Module) -> nn.Module:
    """Another module of the same parameters. Hooks are the user's, and may count or communicate."""
    made = object.__new__(type(module))
    own = vars(module)
    hooks = {k: OrderedDict[int, Any]() for k, v in own.items() if _is_hooks(k, v)}
    parts = {n: None if c is None else _without_hooks(c) for n, c in own["_modules"].items()}
    vars(made).update(own, **hooks, _modules=parts, _parameters=dict(own["_parameters"]))
    return made


def _is_hooks(name: str, value: object) -> bool:
    return "_hooks" in name and isinstance(value, dict)


def _agrees(module: nn.Module, form: Form, x_type: torch.dtype, weight_type: torch.dtype) -> bool:
    weights = {n: _sample_of(p, weight_type) for n, p in module.named_parameters()}
    x = _sample_input(module, form).to(x_type)
    theirs = _tried(lambda: _step(lambda x, w: functional_call(module, w, x), x, weights))
    if theirs is None:
        return weight_type != torch.float32 or x_type != torch.float32  # not meant to work
    mine = _tried(lambda: _step(form.reference, x, weights))
    if mine is None:
        return False
    return all(_equal(a, b, _TOLERANCE[x_type]) for a, b in zip(mine, theirs))


def _step(function: Callable[[Tensor, Weights], Tensor], x: Tensor, weights: Weights):
    """The result, and the gradients of a fixed combination of its elements."""
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
        x = x.detach().requires_grad_()
        weights = {n: w.detach().requires_grad_() for n, w in weights.items()}
        y = function(x, weights)
        factors = torch.linspace(-1, 1, y.numel(), device=y.device).view(y.shape).to(y.dtype)
        return [y.detach(), *torch.autograd.grad(y, [x, *weights.values()], factors)]


def _sample_of(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """A vector of its size with all kinds of values; a matrix as it is, unless it is constant."""
    value = parameter.detach().to(dtype)
    if value.dim() == 1 or value.std() == 0:
        made = torch.empty_like(value, dtype=torch.float32)
        spread = 1.0 if value.dim() == 1 else value.shape[-1] ** -0.5
        return made.normal_(0, spread, generator=_generator(value.device)).to(dtype)
    return value


def _sample_input(module: nn.Module, form: Form) -> Tensor:
    """Rows for which activations bend."""
    first = getattr(form, "gate", getattr(form, "both", None))
    weight: Tensor = module.weight if first is None else getattr(module, first).weight  # type: ignore[assignment]
    shape = (*_SAMPLE, weight.shape[-1])
    x = torch.empty(shape, device=weight.device).normal_(generator=_generator(weight.device))
    spread = weight.detach().float().std() if first is not None else torch.tensor(0.5)
    norm = (spread * weight.shape[-1] ** 0.5).clamp_min(1e-6) if first is not None else spread
    return x * 2 / norm.to(x.device) + (0.3 if first is None else 0.0)


def _generator(device: torch.device) -> torch.Generator:
    """The user's random numbers stay as they are."""
    return torch.Generator(device).manual_seed(0)


def _equal(a: Tensor, b: Tensor, tolerance: float) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape or not bool(b.isfinite().all()):
        return False
    largest = b.abs().max().float()
    return bool(largest > 0) and bool((a - b).abs().max().float() <= tolerance * largest)


def _tried(function: Callable):
    """None if it raises: such a module is not called like this."""
    try:
        return function()
    except Exception:
        return None
