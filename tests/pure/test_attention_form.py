"""Attention calls as Comps: what they compute, and which calls stay the library's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attention_cases import Sizes, call, case, varied
from torchweld.core.device import named_table
from torchweld.ir.nodes import Comp, Graph, Op
from torchweld.kernels.attention import MOST_ROWS, own_attention
from torchweld.plan.decisions import Plan
from torchweld.schedule.attention import attention_of, schedule
from triton_cases import expected, tensors

H100 = named_table("H100")
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
    assert schedule(attention_of(comp), comp).splits == 8
    comp = case(Sizes(64, 8, 4, 1, 4096, 64, 64)).comp
    assert schedule(attention_of(comp), comp).splits == 1


def owned(node, buffers) -> bool:
    graph = Graph("g", (), buffers, (node,), (), ())
    return isinstance(own_attention(Plan(graph, ()), H100).graph.nodes[0], Comp)


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


def test_queries_that_are_broadcast_stay_the_library_s():
    node, buffers = call(DECODE)
    query = node.args[0]
    one = replace(query, shape=(1, *query.shape[1:]))
    assert owned(node, buffers)
    assert not owned(replace(node, args=(one, *node.args[1:])), buffers)
