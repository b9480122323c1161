"""Which factor of a product is packed, and how much of it at a time."""

from __future__ import annotations

import os

import pytest
import torch

from torchweld.codegen.source import SizeArg
from torchweld.core import dtypes
from torchweld.ir.access import addressed
from torchweld.ir.nodes import Buffer
from torchweld.ir.parser import parse_comp
from torchweld.targets.find import target_of
from torchweld.templates.gemm.choice import choose
from torchweld.templates.gemm.cpu import schedule
from torchweld.templates.gemm.cpu.generate import generate
from torchweld.templates.gemm.cpu.schedule import DEEPEST, cpu_product, scratch_elements
from torchweld.templates.gemm.template import CPU
from torchweld.templates.template import Problem

TEXT = """
comp product [m:{m}, n:{n}, k:{k}] {{
  %0 = load x[m, k] {mark}: f32
  %1 = load w[n, k] {mark}: f32
  %2 = mul %0 %1 : f32
  %3 = reduce.sum[k] %2 : f32
  store y[m, n] %3
}}
"""


def planned(m, n, k, mark="exact ", turned=False):
    strides = (1, n) if turned else (k, 1)
    buffers = {
        "x": Buffer("x", (m, k), dtypes.f32, (k, 1)),
        "w": Buffer("w", (n, k), dtypes.f32, strides),
        "y": Buffer("y", (m, n), dtypes.f32, (n, 1)),
    }
    accesses = addressed(parse_comp(TEXT.format(m=m, n=n, k=k, mark=mark)), buffers)
    return cpu_product(accesses), accesses


def test_a_sum_that_the_user_wrote_is_none():
    assert planned(64, 64, 64, mark="")[0] is None


def test_the_smaller_factor_is_packed_and_results_run_along_memory():
    product, accesses = planned(128, 2048, 512)
    assert accesses.loads[product.right].buffer == "x"
    assert (product.row, product.column, product.lane) == ("n", "m", "n")
    assert product.block == 144
    assert scratch_elements(product, accesses) == {"packed": 144 * 512}


def test_columns_in_memory_order_are_copied_rather_than_gathered():
    product, accesses = planned(1024, 768, 768, turned=True)
    assert accesses.loads[product.right].buffer == "w"


def test_few_rows_are_not_what_threads_share(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    product, accesses = planned(16, 2048, 2048, turned=True)
    assert accesses.loads[product.left].buffer == "w"


@pytest.mark.parametrize("depth", [DEEPEST, DEEPEST + 1])
def test_deep_sums_have_memory_of_their_own(depth):
    product, accesses = planned(64, 100, depth)
    assert product.stretch == DEEPEST
    assert ("sums" in scratch_elements(product, accesses)) == (depth > DEEPEST)


@pytest.mark.parametrize(("batch", "depth", "crews"), [(16, 64, 4), (16, 2000, 1), (3, 64, 1)])
def test_each_thread_takes_products_of_a_batch(batch, depth, crews, monkeypatch):
    """They share one at a time where there are few, or a core's cache does not hold what is
    packed."""
    monkeypatch.setattr(schedule, "_threads", lambda: 4)
    monkeypatch.setattr(schedule, "core_cache_bytes", lambda: 1 << 18)
    comp = parse_comp(f"""comp product [b:{batch}, m:100, n:192, k:{depth}] {{
      %0 = load x[b, m, k] exact : f32
      %1 = load w[b, k, n] exact : f32
      %2 = mul %0 %1 : f32
      %3 = reduce.sum[k] %2 : f32
      store y[b, m, n] %3
    }}""")
    sides = {"x": (100, depth), "w": (depth, 192), "y": (100, 192)}
    shapes = {n: (batch, *s) for n, s in sides.items()}
    strides = {n: (s[1] * s[2], s[2], 1) for n, s in shapes.items()}
    buffers = {n: Buffer(n, s, dtypes.f32, strides[n]) for n, s in shapes.items()}
    accesses = addressed(comp, buffers)
    product = cpu_product(accesses)
    assert product.crews == crews
    packed = scratch_elements(product, accesses)["packed"]
    assert packed == crews * product.block * product.stretch


def test_a_matrix_for_a_whole_batch_is_multiplied_for_each_of_the_shorter_axis():
    text = """
comp product [b:64, m:2, n:192, k:64] {
  %0 = load x[b, m, k] exact : f32
  %1 = load w[n, k] exact : f32
  %2 = mul %0 %1 : f32
  %3 = reduce.sum[k] %2 : f32
  store y[b, m, n] %3
}
"""
    buffers = {
        "x": Buffer("x", (64, 2, 64), dtypes.f32, (64, 4096, 1)),
        "w": Buffer("w", (192, 64), dtypes.f32, (64, 1)),
        "y": Buffer("y", (64, 2, 192), dtypes.f32, (384, 192, 1)),
    }
    product = cpu_product(addressed(parse_comp(text), buffers))
    assert (product.batch, {product.row, product.column}) == ("m", {"b", "n"})


def test_rows_of_several_axes_are_priced_together():
    """A batch of rows times one matrix is a taller product."""
    text = TEXT.replace("[m:{m}, n", "[b:{b}, m:{m}, n").replace("x[m", "x[b, m")
    text = text.replace("y[m", "y[b, m")

    def seconds(b: int, m: int) -> float:
        shapes = {"x": (b, m, 256), "w": (96, 256), "y": (b, m, 96)}
        buffers = {
            n: Buffer(n, s, dtypes.f32, tuple(torch.empty(s, device="meta").stride()))
            for n, s in shapes.items()
        }
        comp = parse_comp(text.format(b=b, m=m, n=96, k=256, mark="exact "))
        problem = Problem(comp, buffers, target_of("cpu"), {}, choose)
        roles = CPU.match(problem)
        return CPU.price(roles, roles, problem)

    assert seconds(16, 128) == seconds(1, 2048)


def compiled(comp, *sizes):
    """The texts of the product for sizes of (m, n, k), and the numbers that each is called with."""
    made = []
    for m, n, k in sizes:
        buffers = {
            "x": Buffer("x", (m, k), dtypes.f32, (k, 1)),
            "w": Buffer("w", (n, k), dtypes.f32, (k, 1)),
            "y": Buffer("y", (m, n), dtypes.f32, (n, 1)),
        }
        comp_of = parse_comp(comp.format(m=m, n=n, k=k, mark="exact "))
        product = cpu_product(addressed(comp_of, buffers))
        (source,) = generate(comp_of, product, buffers).sources
        made.append((source.text, [a.size for a in source.args if isinstance(a, SizeArg)]))
    return made


def test_products_of_other_sizes_and_axes_are_one_text():
    (one, first), (other, second) = compiled(TEXT, (64, 96, 200), (48, 130, 72))
    other_axes = TEXT.replace("m:", "i4:").replace("[m,", "[i4,")
    ((named, _),) = compiled(other_axes, (64, 96, 200))
    assert one == other == named and first != second
    assert {64, 96, 200} <= set(first) and {48, 130, 72} <= set(second)


def test_what_asks_for_positions_is_written_for_its_sizes():
    masked = TEXT.replace("store y[m, n] %3", """%4 = index n : i64
  %5 = cast %4 : f32
  %6 = mul %3 %5 : f32
  store y[m, n] %6""")
    (one, numbers), (other, _) = compiled(masked, (64, 96, 200), (48, 130, 72))
    assert one != other and not numbers
