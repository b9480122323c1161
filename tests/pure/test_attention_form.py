"""Attention calls as Comps: what they compute, and which calls stay the library's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attention_cases import Sizes, call, case, varied
from torchweld.core import dtypes
from torchweld.ir import affine
from torchweld.ir.nodes import (
    Axis,
    Buffer,
    Comp,
    Extern,
    Graph,
    Index,
    Load,
    Op,
    Ref,
    Store,
    View,
)
from torchweld.ir.size import symbol
from torchweld.ir.views import contiguous_strides
from torchweld.plan.decisions import Plan
from torchweld.plan.own_attention import MOST_ROWS, own_attention
from torchweld.plan.refusals import Reason
from torchweld.targets.find import named_target
from torchweld.templates.attention.schedule import attention_of, schedule, shared_bytes
from torchweld.templates.gemm.choice import choose
from torchweld.templates.registry import chosen
from torchweld.templates.template import Problem
from triton_cases import expected, tensors

H100 = named_target("H100")
SHARED = H100.shared_bytes
DECODE = Sizes(2, 2, 4, 1, 333, 64, 64)


@pytest.mark.parametrize("k", range(len(varied("f16"))))
def test_a_comp_is_what_torch_computes(k: int):
    c = varied("f16")[k]
    inputs = tensors(c)
    b, heads, queries, _ = inputs["y"].shape
    q = inputs["q"].double().reshape(b, queries, heads, -1).transpose(1, 2)
    mask = inputs.get("m")
    causal = "le" in {i.name for i in c.comp.body if isinstance(i, Op)}
    wanted = F.scaled_dot_product_attention(
        q, inputs["k"].double(), inputs["v"].double(),
        None if mask is None else mask if mask.dtype == torch.bool else mask.double(),
        is_causal=causal, scale=0.3 if c.name.startswith("attention-3-") else None,
        enable_gqa=True,
    )  # fmt: skip
    got = expected(c, inputs, exact=True)["y"]
    torch.testing.assert_close(got.double(), wanted, rtol=1e-9, atol=1e-9)


def test_roles_of_axes():
    a = attention_of(case(DECODE).comp)
    assert (a.batch, a.rows, a.depth, a.keys, a.columns) == (
        ("b", "h"), ("g",), ("d",), ("l",), ("e",))  # fmt: skip


def test_what_is_not_attention():
    comp = case(DECODE).comp
    body = list(comp.body)
    exp = next(v for v, i in enumerate(body) if isinstance(i, Op) and i.name == "exp")
    body[exp] = replace(body[exp], name="sigmoid")
    assert attention_of(replace(comp, body=tuple(body))) is None


def test_few_tiles_share_the_keys_of_each():
    comp = case(Sizes(1, 8, 4, 1, 4096, 64, 64)).comp
    assert schedule(attention_of(comp), comp, SHARED).splits == 8
    comp = case(Sizes(64, 8, 4, 1, 4096, 64, 64)).comp
    assert schedule(attention_of(comp), comp, SHARED).splits == 1


def owned(node, buffers) -> bool:
    return isinstance(owned_nodes([node], buffers)[-1], Comp)


def owned_nodes(nodes, buffers) -> tuple:
    result = buffers["y"]
    outputs = (View("y", result.shape, result.strides),)
    graph = Graph("g", (), buffers, tuple(nodes), (), outputs)
    return own_attention(Plan(graph, ()), H100).graph.nodes


@pytest.mark.parametrize("mask", ["bf16 hil", "f32 hil"])
def test_blocks_under_way_fit_into_shared_memory(mask):
    """What is loaded for each score is copied ahead, too."""
    comp = case(Sizes(16, 8, 1, 49, 196, 128, 128), mask=mask).comp
    found = schedule(attention_of(comp), comp, SHARED)
    assert shared_bytes(attention_of(comp), comp, found) <= SHARED
    assert (found.stages < 3) == (mask == "f32 hil")


def test_which_calls_become_kernels():
    assert owned(*call(DECODE))
    assert owned(*call(Sizes(1, 2, 4, 16, 16, 64, 64), causal=True))
    many = Sizes(1, 2, 4, MOST_ROWS // 4 + 1, 333, 64, 64)
    assert not owned(*call(many))
    short = Sizes(1, 12, 1, 128, 128, 64, 64)
    assert owned(*call(short)) and not owned(*call(replace(short, batch=32)))
    assert not owned(*call(Sizes(1, 2, 4, 16, 17, 64, 64), causal=True))  # two meanings
    assert not owned(*call(replace(DECODE, depth=512)))
    assert not owned(*call(DECODE, dtype="f32"))
    node, buffers = call(DECODE)
    assert not owned(replace(node, args=(*node.args[:4], 0.1, False)), buffers)  # dropout


@pytest.mark.parametrize("sizes, how, reason, evidence", [
    (Sizes(1, 2, 4, MOST_ROWS // 4 + 1, 333, 64, 64), {}, Reason.SLOWER, "68 queries share"),
    (Sizes(1, 2, 4, 16, 17, 64, 64), {"causal": True}, Reason.TEMPLATE, "causal attention of 16"),
    (replace(DECODE, depth=512), {}, Reason.TEMPLATE, "heads of 512"),
    (DECODE, {"dtype": "f32"}, Reason.TEMPLATE, "f32"),
])  # fmt: skip
def test_a_call_that_stays_says_why(sizes, how, reason, evidence):
    node, buffers = call(sizes, **how)
    result = buffers["y"]
    graph = Graph("g", (), buffers, (node,), (), (View("y", result.shape, result.strides),))
    (record,) = own_attention(Plan(graph, ()), H100).refusals
    assert (record.producer, record.reason) == (node.name, reason) and evidence in record.evidence


def test_its_price_is_that_of_its_bytes_or_products():
    """Both products once: not for each column of the result."""

    def seconds(sizes: Sizes) -> float:
        c = case(sizes)
        return chosen(Problem(c.comp, c.buffers, H100, c.sizes, choose)).predicted_s

    short, long = (seconds(replace(DECODE, keys=n)) for n in (512, 1 << 20))
    assert 1e-6 < short < 6e-6
    keys_and_values = 2 * DECODE.batch * DECODE.shared * (1 << 20) * 64 * 2
    assert long == pytest.approx(keys_and_values / H100.dram_bytes_per_s, rel=0.1)


def test_queries_that_are_broadcast_stay_the_library_s():
    node, buffers = call(DECODE)
    query = node.args[0]
    one = replace(query, shape=(1, *query.shape[1:]))
    assert owned(node, buffers)
    assert not owned(replace(node, args=(one, *node.args[1:])), buffers)


def repeated(groups: int = 4, between: tuple = ()) -> tuple:
    """Attention over copies of keys and values in which each head is repeated, as the library takes
    them beside a mask; `between`: nodes after the copies."""
    node, buffers = call(replace(DECODE, shared=2 * groups, heads=1), mask="b1 bl")
    copies, views = [], []
    for n, g in (("k", groups), ("v", 4)):
        shape, cache = (2, 8 // g, g, 333, 64), f"{n}_cache"
        plain = contiguous_strides(shape)
        buffers[n] = replace(buffers[n], shape=shape, strides=plain)
        short = shape[:2] + shape[3:]
        buffers[cache] = Buffer(cache, short, dtypes.bf16, contiguous_strides(short), "cuda:0")
        b, h, *rest = buffers[cache].strides
        read = View(cache, shape, (b, h, 0, *rest))
        copies.append(Extern(f"copy_{n}", "aten.clone.default", (read,), (), (n,)))
        views.append(View(n, (2, 8, 333, 64), contiguous_strides((2, 8, 333, 64))))
    node = replace(node, args=(node.args[0], *views, *node.args[3:]))
    return (*copies, *between, node), buffers


def test_heads_are_read_from_before_they_were_repeated():
    (attention,) = owned_nodes(*repeated())
    assert {"k_cache", "v_cache"} <= set(attention.reads) and attention.extent("g") == 4


def copied_by_one_kernel() -> tuple:
    """The same, with both copies in one kernel."""
    (*_, node), buffers = repeated()
    axes = tuple(Axis(f"i{d}", n) for d, n in enumerate(buffers["k"].shape))
    to = tuple(affine.axis(a.name) for a in axes)
    loads = tuple(Load(f"{n}_cache", to[:2] + to[3:], dtypes.bf16) for n in "kv")
    stores = tuple(Store(n, to, value) for value, n in enumerate("kv"))
    return (Comp("copies", axes, loads, stores), node), buffers


def test_heads_are_read_from_before_a_kernel_repeated_them():
    (attention,) = owned_nodes(*copied_by_one_kernel())
    assert {"k_cache", "v_cache"} <= set(attention.reads) and attention.extent("g") == 4


def test_a_kernel_that_does_more_than_copy_is_kept():
    (copies, node), buffers = copied_by_one_kernel()
    doubled = (*copies.body, Op("add", (0, 0), dtypes.bf16))
    stores = (replace(copies.stores[0], value=2), copies.stores[1])
    copies = replace(copies, body=doubled, stores=stores)
    *_, attention = owned_nodes((copies, node), buffers)
    assert "k_cache" not in attention.reads


def test_a_kernel_that_writes_at_computed_places_is_no_copy():
    (copies, node), buffers = copied_by_one_kernel()
    body = (*copies.body, Index(affine.axis("i3"), dtypes.i64))
    to = copies.stores[0].index
    stores = (replace(copies.stores[0], index=(*to[:3], Ref(2), to[4])), copies.stores[1])
    *_, attention = owned_nodes((replace(copies, body=body, stores=stores), node), buffers)
    assert "k_cache" not in attention.reads


def test_a_mask_with_longer_rows_of_unknown_length_is_read_as_it_is():
    """Torch pads the rows of a mask for its own kernels."""
    node, buffers = call(replace(DECODE, keys="s"), mask="b1 bl")
    length, row = symbol("s"), symbol("e")
    longer = length + 8 - symbol("d")
    buffers["m"] = replace(buffers["m"], shape=(2, longer), strides=(row, 1))
    rows = View("m", (2, 8, 1, length), (row, 0, row, 1))
    assert owned(replace(node, args=(*node.args[:3], rows, *node.args[4:])), buffers)


def test_a_cache_that_changes_after_it_was_copied_is_not_read_again():
    view = View("k_cache", (2, 2, 333, 64), contiguous_strides((2, 2, 333, 64)))
    write = Extern("zero", "aten.zero_.default", (view,), (), (None,), mutates=("k_cache",))
    *_, attention = owned_nodes(*repeated(between=(write,)))
    assert "k_cache" not in attention.reads


def test_keys_and_values_that_are_repeated_unevenly_are_read_as_they_are():
    *_, attention = owned_nodes(*repeated(groups=2))
    assert "k_cache" not in attention.reads
