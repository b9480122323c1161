"""Attention calls that the tests share, as Comps: queries [b, i, heads, d] as a projection stores
them, keys and values [b, shared heads, l, d] as a cache holds them."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

import torch

from torchweld.codegen.source import KernelBundle
from torchweld.core import dtypes
from torchweld.ir import affine
from torchweld.ir.nodes import Axis, Buffer, Extern, Load, View
from torchweld.ir.size import Size, symbol
from torchweld.ir.substitute import split_axis
from torchweld.ir.views import contiguous_strides
from torchweld.targets.find import named_target
from torchweld.targets.target import Target
from torchweld.templates import registry
from torchweld.templates.attention.comp import attention_comp
from triton_cases import Case

H100 = named_target("H100")
TARGET = "aten.scaled_dot_product_attention.default"


@dataclass(frozen=True)
class Sizes:
    """`heads` of queries share each of `shared` heads of keys."""

    batch: int
    shared: int
    heads: int
    queries: int
    keys: int | str
    depth: int
    columns: int


def call(sizes: Sizes, dtype: str = "bf16", mask: str = "", causal: bool = False, scale=None):
    """The Extern and its buffers. `mask`: a dtype, then which dimensions it has ("b1 bl")."""
    z = sizes
    keys: Size = symbol(z.keys) if isinstance(z.keys, str) else z.keys
    every = z.shared * z.heads
    shapes = {
        "q": (z.batch * z.queries, every * z.depth),
        "k": (z.batch, z.shared, keys, z.depth),
        "v": (z.batch, z.shared, keys, z.columns),
        "y": (z.batch, every, z.queries, z.columns),
    }
    kinds = dict.fromkeys(shapes, dtype)
    if mask:
        kinds["m"], dims = mask.split()
        extents = {"b": z.batch, "h": every, "i": z.queries, "l": keys}
        shapes["m"] = tuple(extents[d] if d in dims else 1 for d in "bhil")
    buffers = {
        n: Buffer(n, s, dtypes.BY_NAME[kinds[n]], contiguous_strides(s), "cuda:0")
        for n, s in shapes.items()
    }
    row = every * z.depth
    views = {n: View(n, b.shape, b.strides) for n, b in buffers.items()}
    views["q"] = View("q", (z.batch, every, z.queries, z.depth), (z.queries * row, z.depth, row, 1))
    args = (views["q"], views["k"], views["v"], views.get("m"), 0.0, causal)
    return Extern("attention", TARGET, args, (("scale", scale),), ("y",)), buffers


def case(
    z: Sizes, dtype: str = "bf16", mask: str = "", causal: bool = False, scale=None, **more
) -> Case:
    """`more`: of a Case."""
    node, buffers = call(z, dtype, mask, causal, scale)
    name = "-".join(str(part) for part in (*astuple(z), dtype, mask, causal))
    return Case(f"attention-{name}", attention_comp(node, buffers), buffers, **more)


def image(z: Sizes, dtype: str, width: int) -> Case:
    """Keys are pixels, in lines of `width`; the mask has them column by column."""
    made = case(z, dtype, f"{dtype} hil")
    lines = z.keys // width
    comp = split_axis(made.comp, "l", Axis("y", lines), Axis("x", width))
    turned = affine.axis("y") + affine.axis("x") * lines
    body = tuple(
        replace(i, index=(*i.index[:-1], turned)) if isinstance(i, Load) and i.buffer == "m" else i
        for i in comp.body
    )
    return replace(made, name=f"{made.name}-image", comp=replace(comp, body=body))


def varied(dtype: str) -> list[Case]:
    """Few and many keys, groups, masks, odd sizes, lengths that vary, rows that see little
    or nothing."""
    blocked = torch.zeros(2, 1, 1, 77, dtype=torch.bool)
    blocked[0, ..., 70:] = blocked[1, ..., :3] = True
    blind = blocked.clone()
    blind[0] = False
    far = torch.where(blocked, 0.0, float("-inf"))
    return [
        case(Sizes(1, 1, 1, 1, 200, 64, 64), dtype),
        case(Sizes(2, 2, 4, 1, 333, 64, 64), dtype),
        case(Sizes(2, 1, 3, 5, 77, 80, 48), dtype),
        case(Sizes(1, 2, 4, 16, 16, 64, 64), dtype, causal=True),
        case(Sizes(3, 2, 1, 31, 31, 32, 32), dtype, causal=True, scale=0.3),
        case(Sizes(2, 2, 2, 1, 77, 64, 64), dtype, "b1 bl", fill={"m": blocked}),
        case(Sizes(2, 2, 2, 1, 77, 64, 64), dtype, "b1 bl", fill={"m": blind}),
        case(Sizes(2, 2, 2, 3, 77, 64, 64), dtype, f"{dtype} bl", fill={"m": far}),
        case(Sizes(1, 3, 1, 100, 100, 64, 64), dtype, causal=True),
        case(Sizes(2, 2, 2, 3, 40, 64, 64), dtype, f"{dtype} hil"),
        case(Sizes(2, 1, 4, 2, 40, 128, 128), dtype, f"{dtype} il"),
        case(Sizes(1, 2, 2, 33, 65, 24, 40), dtype),
        case(Sizes(2, 2, 4, 1, "s0", 64, 64), dtype, sizes={"s0": 150}),
        case(Sizes(2, 2, 4, 2, "s0", 64, 64), dtype, f"{dtype} bil", sizes={"s0": 3}),
        case(Sizes(1, 2, 1, 7, 130, 256, 256), dtype),
    ]


def every(dtype: str) -> list[Case]:
    """Also what is no call of attention in torch."""
    return [*varied(dtype), image(Sizes(1, 2, 1, 20, 42, 32, 32), dtype, width=6)]


def bundle_of(c: Case, table: Target = H100) -> KernelBundle:
    return registry.bundle_of(c.comp, c.buffers, table, c.sizes)
