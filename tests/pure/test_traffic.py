"""Bytes of a node: each buffer once each way, in whatever order it is read."""

from __future__ import annotations

from torchweld.core.dtypes import f32
from torchweld.ir.nodes import Buffer, Extern, View
from torchweld.ir.parser import parse_comp
from torchweld.templates.traffic import node_bytes

PRODUCT = """comp mm [i:64, j:96, k:128] {{
  %0 = load x[i, k] : f32
  %1 = load w[{at}] : f32
  %2 = mul %0 %1 : f32
  %3 = reduce.sum[k] %2 : f32
  store y[i, j] %3
}}"""


def buffers(**shapes):
    made = {}
    for name, shape in shapes.items():
        strides = [1]
        for extent in reversed(shape[1:]):
            strides.insert(0, strides[0] * extent)
        made[name] = Buffer(name, shape, f32, tuple(strides))
    return made


def bytes_of_comp(text: str, **shapes) -> int:
    return node_bytes(parse_comp(text), buffers(**shapes), {})


def test_a_transposed_weight_is_no_more_bytes():
    rows = bytes_of_comp(PRODUCT.format(at="k, j"), x=(64, 128), w=(128, 96), y=(64, 96))
    turned = bytes_of_comp(PRODUCT.format(at="j, k"), x=(64, 128), w=(96, 128), y=(64, 96))
    assert rows == turned == 4 * (64 * 128 + 128 * 96 + 64 * 96)


def test_a_long_row_that_two_passes_read_counts_once():
    text = """comp softmax [i:3, j:9000000] {
      %0 = load x[i, j] : f32
      %1 = reduce.max[j] %0 : f32
      %2 = sub %0 %1 : f32
      store y[i, j] %2
    }"""
    assert bytes_of_comp(text, x=(3, 9000000), y=(3, 9000000)) == 2 * 4 * 3 * 9000000


def test_what_is_read_and_written_counts_both_ways():
    text = """comp add [i:7] {
      %0 = load x[i] : f32
      %1 = add %0 %0 : f32
      store x[i] %1
    }"""
    assert bytes_of_comp(text, x=(7,)) == 2 * 4 * 7


def test_views_of_one_buffer_are_its_bytes_at_most():
    made = buffers(qkv=(6, 30), y=(6, 10))
    parts = tuple(View("qkv", (6, 10), (30, 1), 10 * k) for k in range(3))
    call = Extern("attention", "aten.attention", parts, (), ("y",))
    assert node_bytes(call, made, {}) == 4 * (6 * 30 + 6 * 10)
    again = Extern("mm", "aten.mm.default", (parts[0], parts[0], *parts), (), ("y",))
    assert node_bytes(again, made, {}) == 4 * (6 * 30 + 6 * 10)


def test_an_expanded_dimension_counts_once():
    made = buffers(w=(10,), y=(6, 10))
    call = Extern("copy", "aten.clone.default", (View("w", (6, 10), (0, 1)),), (), ("y",))
    assert node_bytes(call, made, {}) == 4 * (10 + 60)
