"""Linear layers with weights of few bits, as people write them in PyTorch, and plans of them."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from products.nets import captured, on  # tests/pure/products/nets.py

from torchweld.core.options import Options
from torchweld.ir.nodes import Graph
from torchweld.passes.table import PASSES, Context
from torchweld.plan import dequantised
from torchweld.plan.decisions import Plan
from torchweld.targets.find import target_of

CPU = target_of("cpu")


def whole(x, q, scale, zero):
    """One scale and zero point for each output; rounded once, by the user."""
    return F.linear(x, ((q.float() - zero[:, :1].float()) * scale[:, :1].float()).to(x.dtype))


def plain(x, q, scale, zero):
    return F.linear(x, q.to(x.dtype) * scale[:, :1])


def after(x, q, scale, zero):
    """torchao's int8 layers: scaled behind the product."""
    return torch.mm(x, q.t().to(x.dtype)) * scale[:, 0] + zero[:, 0]


def groups(x, q, scale, zero):
    w = (q.view(*scale.shape, -1).to(x.dtype) - zero[..., None]) * scale[..., None]
    return F.linear(x, w.view(q.shape))


def nibbles(x, q, scale, zero):
    """Two 4-bit numbers to a byte, side by side."""
    w = torch.stack([(q & 15).to(torch.int8) - 8, (q >> 4).to(torch.int8) - 8], -1)
    w = w.view(*scale.shape, -1).to(x.dtype) * scale[..., None] + zero[..., None]
    return F.linear(x, w.view(q.shape[0], -1))


def halves(x, q, scale, zero):
    """Two to a byte, half a row apart."""
    w = torch.cat([q & 15, q >> 4], -1).view(*scale.shape, -1).to(x.dtype)
    return F.linear(x, ((w - zero[..., None]) * scale[..., None]).view(q.shape[0], -1))


def quarters(x, q, scale, zero):
    """Four 2-bit numbers to a byte."""
    w = (q[..., None] >> torch.arange(0, 8, 2, dtype=torch.uint8)) & 3
    w = (w.reshape(*scale.shape, -1).to(x.dtype) - zero[..., None]) * scale[..., None]
    return F.linear(x, w.view(q.shape[0], -1))


def table(x, q, scale, zero):
    """4-bit codes of numbers in a table (NF4)."""
    code = torch.stack([q & 15, q >> 4], -1).view(*scale.shape, -1).int()
    return F.linear(x, ((zero[0, :1] + 1).repeat(16).cumsum(0)[code] * scale[..., None]).view(
        q.shape[0], -1))  # fmt: skip


def stacked(x, q, scale, zero):
    """Outputs of two halves of the layer in one byte (Quanto)."""
    w = torch.cat([q & 15, q >> 4], 0).view(*scale.shape, -1).to(x.dtype)
    return F.linear(x, ((w - zero[..., None]) * scale[..., None]).view(scale.shape[0], -1))


def blocks(x, q, scale, zero):
    """Bytes of a group have its first half in their low bits (GGUF's Q4)."""
    b = q.view(*scale.shape, -1)
    w = (torch.cat([b & 15, b >> 4], -1).to(torch.int8) - 8).to(x.dtype) * scale[..., None]
    return F.linear(x, w.view(q.shape[0], -1))


def words(x, q, scale, zero):
    """GPTQ's: eight to a 32-bit word along the depth, outputs adjacent."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    w = ((q[:, None, :] >> shifts[None, :, None]) & 15).reshape(scale.shape[1], -1, q.shape[1])
    w = (w.to(x.dtype) - zero.t()[:, None]) * scale.t()[:, None]
    return x @ w.reshape(-1, q.shape[1])


PER_BYTE = {nibbles: 2, halves: 2, quarters: 4, table: 2, blocks: 2}
FUSED = (whole, plain, after, groups, nibbles, halves, quarters, table, blocks, stacked)


def inputs(kind, rows, outputs, depth, group, dtype=torch.float32, seed=0):
    """x, the packed weight, scales and zero points by group."""
    made = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.rand(*shape, generator=made)

    def bits(dtype, *shape):
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        return torch.randint(low, high, shape, generator=made, dtype=torch.int64).to(dtype)

    outputs += outputs % 2 if kind is stacked else 0
    x = torch.randn(rows, depth, generator=made).to(dtype)
    scale = (random(outputs, depth // group) + 0.1).to(dtype)
    zero = (8 * random(outputs, depth // group)).round().to(dtype)
    if kind is words:
        return x, bits(torch.int32, depth // 8, outputs), scale, zero
    if kind is stacked:
        return x, bits(torch.uint8, -(-outputs // 2), depth), scale, zero
    if kind in PER_BYTE:
        return x, bits(torch.uint8, outputs, depth // PER_BYTE[kind]), scale, zero
    return x, bits(torch.int8, outputs, depth), scale, zero


def graph_of(function, *args) -> Graph:
    return on(captured(function, *args), "cpu")


def planned(graph: Graph, target=CPU, options: Options | None = None) -> Plan:
    plan = Plan(graph, ())
    for name in target.passes:
        plan = PASSES[name].run(plan, Context(target, options or Options()))
    return plan


def always(monkeypatch, seconds: float = 0.0) -> None:
    """Whatever has the form is taken, at this price."""
    priced = replace(dequantised.TEMPLATE, price=lambda *problem: seconds)
    monkeypatch.setattr(dequantised, "TEMPLATE", priced)
