"""Whole networks on a GPU with their products in our kernels: the contract of eager, the kernels
that are there, weights that change between calls."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchweld
from torchweld.api import records
from torchweld.ir.nodes import Comp, Extern, Reduce
from torchweld.plan.products import kernel as products_kernel
from torchweld.templates.gemm import price as products_cost

D, HIDDEN, HEADS = 512, 1408, 8
PRODUCTS = ("aten.mm.", "aten.addmm.", "aten.bmm.", "aten._addmm_activation.")


@pytest.fixture(autouse=True)
def _all_taken(monkeypatch):
    """Whatever a template takes is taken, whatever its price. Dynamo gives up a function after
    eight graphs of it."""
    monkeypatch.setattr(products_kernel.Offer, "pays", lambda offer, margin: True)
    monkeypatch.setattr(products_cost, "_sums_s", lambda count, device: 0.0)
    torch._dynamo.reset()


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + torch.randn(D) / 8)

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * y.to(x.dtype)


class Gated(nn.Module):
    def __init__(self, act=F.silu, bias: bool = False) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(D, HIDDEN, bias=bias) for _ in range(2))
        self.down, self.act = nn.Linear(HIDDEN, D, bias=bias), act

    def forward(self, x):
        return self.down(self.act(self.gate(x)) * self.up(x))


class Mlp(nn.Module):
    def __init__(self, act=F.gelu) -> None:
        super().__init__()
        self.up, self.down, self.act = nn.Linear(D, HIDDEN), nn.Linear(HIDDEN, D), act

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Decoder(nn.Module):
    """A layer with rotary embedding, fewer keys than queries, norms before."""

    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2, self.mlp = RMSNorm(), RMSNorm(), Gated()
        self.q, self.o = (nn.Linear(D, D, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(D, D // 4, bias=False) for _ in range(2))

    def forward(self, x):
        h = self.n1(x)
        q, k, v = (self._heads(p(h)) for p in (self.q, self.k, self.v))
        q, k = self._rotated(q), self._rotated(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.n2(x))

    def _heads(self, x):
        return x.unflatten(-1, (-1, D // HEADS)).transpose(1, 2)

    def _rotated(self, x):
        width = x.shape[-1] // 2
        rate = 100.0 ** (-torch.arange(width, device=x.device) / width)
        angle = torch.arange(x.shape[-2], device=x.device)[:, None] * torch.cat((rate, rate))
        left, right = x.chunk(2, -1)
        turned = torch.cat((-right, left), -1)
        return x * angle.cos().to(x.dtype) + turned * angle.sin().to(x.dtype)


class Qkv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))

    def forward(self, x):
        shape = (*x.shape[:2], HEADS, -1)
        return [p(x).view(shape).transpose(1, 2).contiguous() for p in (self.q, self.k, self.v)]


class FewerKeys(nn.Module):
    """Keys and values of fewer heads than queries, which are scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, width) for width in (D, D // 4, D // 4))

    def forward(self, x):
        return [self.q(x) * 0.125, self.k(x), self.v(x)]


MODELS = {
    "swiglu": Gated,
    "geglu with bias": lambda: Gated(lambda x: F.gelu(x, approximate="tanh"), bias=True),
    "mlp gelu": Mlp,
    "mlp relu": lambda: Mlp(F.relu),
    "decoder": Decoder,
    "qkv": Qkv,
    "fewer keys": FewerKeys,
}
SHAPES = {
    "one": (1, 1), "three": (1, 3), "few": (1, 16), "64": (2, 32), "odd": (3, 43), "many": (8, 256),
}  # fmt: skip


def made(name: str, dtype: torch.dtype):
    torch.manual_seed(0)
    return MODELS[name]().to("cuda", dtype)


def error(found, precise) -> float:
    return float((found.double() - precise).norm() / precise.norm())


def assert_in_contract(found, eager, precise) -> None:
    """L2 error at most 1.5 times that of eager, and a floor of the output's resolution."""
    for mine, theirs, right in zip(found, eager, precise, strict=True):
        assert mine.isfinite().all() and mine.dtype == theirs.dtype
        resolution = torch.finfo(mine.dtype).eps / 4
        slack = 1 + 4 / mine.numel() ** 0.5
        assert error(mine, right) <= 1.5 * slack * error(theirs, right) + resolution


def listed(value) -> list[torch.Tensor]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def made_by_us(fused) -> list[int]:
    """How many sums of products each kernel makes."""
    comps = [n for r in records(fused) for n in r.graph.nodes if isinstance(n, Comp)]
    ours = [c for c in comps if any("mm" in o.op for o in c.origins)]
    return [sum(isinstance(i, Reduce) for i in c.body) for c in ours]


def library(fused) -> list[str]:
    nodes = [n for r in records(fused) for n in r.graph.nodes if isinstance(n, Extern)]
    return [n.target for n in nodes if n.target.startswith(PRODUCTS)]


def no_troubles(fused) -> bool:
    """Every kernel was compiled and runs."""
    bundles = [set(r.bundles) for r in records(fused)]
    comps = [{n.name for n in r.graph.nodes if isinstance(n, Comp)} for r in records(fused)]
    notes = {note.kind for r in records(fused) for note in r.events}
    return bundles == comps and "fallback" not in notes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_inference(name, shape, dtype):
    model = made(name, dtype)
    x = torch.randn(*SHAPES[shape], D, device="cuda", dtype=dtype)
    fused = torchweld.fuse(model)
    found, again = listed(fused(x)), listed(fused(x))
    precise = listed(copy.deepcopy(model).double()(x.double()))
    assert_in_contract(found, listed(model(x)), precise)
    assert all(torch.equal(a, b) for a, b in zip(found, again)) and no_troubles(fused)
    assert shape == "one" or made_by_us(fused), "every product is the library's"


@torch.no_grad()
def test_a_gated_pair_is_one_kernel():
    fused = torchweld.fuse(made("swiglu", torch.bfloat16))
    fused(torch.randn(4096, D, device="cuda", dtype=torch.bfloat16))
    assert 2 in made_by_us(fused) and len(library(fused)) <= 1


@torch.no_grad()
def test_queries_keys_and_values_are_one_kernel():
    fused = torchweld.fuse(made("fewer keys", torch.bfloat16))
    fused(torch.randn(8, 256, D, device="cuda", dtype=torch.bfloat16))
    assert library(fused) == [] and len(made_by_us(fused)) == 1


def test_the_gradient_of_a_bias_is_summed_beside_the_product():
    model = made("mlp gelu", torch.bfloat16)
    fused = torchweld.fuse(model)
    fused(torch.randn(8, 256, D, device="cuda", dtype=torch.bfloat16)).sum().backward()
    nodes = [n for r in records(fused) for n in r.graph.nodes if isinstance(n, Comp)]
    assert any(s.combine == "add" for n in nodes for s in n.stores) and no_troubles(fused)


@torch.no_grad()
def test_weights_that_change_are_followed():
    model = made("decoder", torch.bfloat16)
    fused, x = torchweld.fuse(model), torch.randn(1, 16, D, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        found, eager = fused(x), model(x)
        precise = copy.deepcopy(model).double()(x.double())
        assert_in_contract([found], [eager], [precise])
        for p in model.parameters():
            p.mul_(0.9)


@pytest.mark.parametrize("name", ["swiglu", "geglu with bias", "mlp gelu", "mlp relu", "decoder"])
def test_training(name):
    model = made(name, torch.bfloat16)
    x = torch.randn(4, 96, D, device="cuda", dtype=torch.bfloat16)
    dy = torch.randn_like(x)
    results = []
    for call, wide in ((torchweld.fuse(model), False), (model, False), (None, True)):
        net = copy.deepcopy(model).double() if wide else call
        leaf = (x.double() if wide else x.clone()).requires_grad_()
        net.zero_grad()
        y = net(leaf)
        y.backward(dy.to(y.dtype))
        results.append([y.detach(), leaf.grad, *(p.grad for p in net.parameters())])
    assert_in_contract(*results)
