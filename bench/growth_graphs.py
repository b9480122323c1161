"""Graphs that grow, as ATen graphs without Dynamo: each case gives a function of tensors and their
shapes for a size."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from torchweld.capture import decompose
from torchweld.capture.captured import Captured

Shapes = list[tuple[int, ...]]
Case = tuple[Callable, Shapes]
WIDTH = 64


def chain(length: int) -> Case:
    """`length` pointwise operations, each of which reads the one before."""

    def run(x):
        for k in range(length):
            x = (x.sin(), x * 1.001, x + 0.5)[k % 3]
        return [x]

    return run, [(64, 32)]


def outputs(count: int) -> Case:
    """`count` results of one input, two operations each."""
    return lambda x: [(x * (k + 1)).sin() for k in range(count)], [(64, 32)]


def layers(count: int, unequal: bool = False) -> Case:
    """Linear, LayerNorm, GELU; of widths that differ if they are `unequal`."""
    widths = [WIDTH + (k if unequal else 0) for k in range(count + 1)]
    shapes: Shapes = [(8, WIDTH)]
    for a, b in pairwise(widths):
        shapes += [(b, a), (b,), (b,), (b,)]

    def run(x, *weights):
        for k in range(count):
            w, b, scale, shift = weights[4 * k : 4 * k + 4]
            x = F.gelu(F.layer_norm(F.linear(x, w, b), b.shape, scale, shift))
        return [x]

    return run, shapes


def decoder(count: int) -> Case:
    """Layers of Llama: 20,000 nodes are about 310 of them."""
    each: Shapes = [(WIDTH, WIDTH)] * 4 + [(WIDTH,)] * 2
    each += [(2 * WIDTH, WIDTH)] * 2 + [(WIDTH, 2 * WIDTH)]

    def layer(x, query, key, value, out, first, second, gate, up, down):
        y = F.rms_norm(x, (WIDTH,), first)
        heads = (F.linear(y, w).unflatten(-1, (4, -1)).transpose(1, 2) for w in (query, key, value))
        found = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + F.linear(found.transpose(1, 2).flatten(2), out)
        y = F.rms_norm(x, (WIDTH,), second)
        return x + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)

    def run(x, *weights):
        for k in range(count):
            x = layer(x, *weights[9 * k : 9 * k + 9])
        return [x]

    return run, [(2, 16, WIDTH), *each * count]


def attention(count: int) -> Case:
    """Attention by hand, with the scores in sight."""

    def run(x, *weights):
        for w in weights:
            q, k, v = (F.linear(x, m).view(2, -1, 2, 16).transpose(1, 2) for m in (w, w.t(), w * 2))
            joined = (q @ k.transpose(-1, -2) * 0.25).softmax(-1) @ v
            x = x + F.linear(joined.transpose(1, 2).reshape(x.shape), w)
        return [x]

    return run, [(2, 64, 32), *[(32, 32)] * count]


def optimiser(count: int) -> Case:
    """Adam's update of `count` parameters of seven sizes."""

    def run(*tensors):
        made = []
        for k in range(count):
            w, g, m, v = tensors[4 * k : 4 * k + 4]
            m, v = m * 0.9 + g * 0.1, v * 0.99 + g * g * 0.01
            made += [w - 0.001 * m / (v.sqrt() + 1e-8), m, v]
        return made

    return run, [(32, 16 + k % 7) for k in range(count) for _ in range(4)]


def added_up(count: int) -> Case:
    """A sum of `count` values of one input, one after the other."""

    def run(x):
        total = x
        for k in range(count):
            total = total + (x * (k + 1)).sin()
        return [total]

    return run, [(64, 32)]


# A case, and its largest size in the benchmark.
CASES: dict[str, tuple[Callable[[int], Case], int]] = {
    "chain": (chain, 5000),
    "outputs": (outputs, 200),
    "layers": (layers, 1000),
    "unequal": (lambda n: layers(n, unequal=True), 96),
    "chain of 20000": (chain, 20000),
    "decoder": (decoder, 312),  # 20,000 nodes
    "attention": (attention, 96),
    "optimiser": (optimiser, 400),
    "added up": (added_up, 800),
}


def captured(name: str, size: int) -> Captured:
    """The graph of a case for inference, its weights parameters."""
    run, shapes = CASES[name][0](size)
    with FakeTensorMode():
        tensors = [torch.empty(s) for s in shapes]
    with torch.no_grad():
        trace = make_fx(functionalize(lambda flat: run(*flat)), decompose.table())
        module = trace(tensors)
    return Captured(module, name, "inference", frozenset(range(1, len(shapes))))
