"""Offsets in an arena: what lives together lies apart, and little is wasted."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from torchweld.ir.parser import parse_graph
from torchweld.runtime.memory import ALIGNMENT, Arena, ArenaPool, Lifetime, aligned, assign
from torchweld.runtime.placement import place

CPU = torch.device("cpu")


@st.composite
def lifetimes(draw):
    count = draw(st.integers(0, 25))
    found = []
    for number in range(count):
        first = draw(st.integers(0, 20))
        last = draw(st.integers(first, 20))
        found.append(Lifetime(f"b{number}", draw(st.integers(0, 5000)), first, last))
    return found


@given(lifetimes())
def test_what_lives_together_lies_apart(lives):
    layout = assign(lives)
    ranges = [(v, layout.offsets[v.name]) for v in lives if v.bytes]
    for position, (a, at) in enumerate(ranges):
        assert at % ALIGNMENT == 0
        assert at + a.bytes <= layout.total
        for b, bt in ranges[:position]:
            together = a.first <= b.last and b.first <= a.last
            assert not together or at + a.bytes <= bt or bt + b.bytes <= at


@given(lifetimes())
def test_no_more_than_all_and_no_less_than_the_fullest_step(lives):
    total = assign(lives).total
    assert total <= sum(aligned(v.bytes) for v in lives)
    assert total >= max(
        (sum(aligned(v.bytes) for v in lives if v.first <= t <= v.last) for t in range(21)),
        default=0,
    )


def test_a_chain_needs_two():
    layout = assign([Lifetime(f"b{i}", 1000, i, i + 1) for i in range(20)])
    assert layout.total == 2 * aligned(1000)


def test_views_of_an_arena_share_its_memory():
    arena = Arena(CPU, 4096)
    view = arena.view(256, torch.float32, (3, 5), (5, 1))
    assert view.data_ptr() == arena.address + 256
    assert arena.address % ALIGNMENT == 0
    view.fill_(2.0)
    assert arena.view(256, torch.float32, (15,), (1,)).sum() == 30
    assert arena.view(0, torch.bool, (), ()).shape == ()
    assert arena.view(4096, torch.float64, (0, 4), (4, 1)).numel() == 0


def test_the_pool_keeps_one_arena_and_gives_each_call_its_own():
    pool = ArenaPool()
    first, second = pool.take("cpu", CPU, 1000), pool.take("cpu", CPU, 5000)
    assert first is not second
    pool.give("cpu", second)
    pool.give("cpu", first)
    assert pool.idle_bytes == {"cpu": 5000}
    assert pool.take("cpu", CPU, 2000) is second
    assert pool.idle_bytes == {}


def test_growing_frees_the_smaller_arena_first():
    pool = ArenaPool()
    pool.give("cpu", pool.take("cpu", CPU, 1000))
    big = pool.take("cpu", CPU, 10_000)
    assert pool.idle_bytes == {}
    pool.give("cpu", big)
    pool.release()
    assert pool.idle_bytes == {}


def test_one_device_is_released_alone():
    pool = ArenaPool()
    pool.give("here", Arena(CPU, 1000))
    pool.release(torch.device("cuda", 0))
    assert pool.idle_bytes == {"here": 1000}
    pool.release(CPU)
    assert not pool.idle_bytes


HEAD = """graph g {
  buffer x : f32[100000] strides [1] on cuda:0
  buffer a : f32[100000] strides [1] on cuda:0
  buffer b : f32[100000] strides [1] on cuda:0
  buffer y : f32[1000000] strides [1] on cuda:0
  input x
  comp a [i:100000] {
    %0 = load x[i] : f32
    store a[i] %0
  }
  comp b [i:100000] {
    %0 = load a[i] : f32
    store b[i] %0
  }
  extern y y = "aten.expand_copy.default"(view(b, [100000], [1], 0)) {
  }
  output view(y, [1000000], [1], 0)
}"""


def test_temporaries_that_a_recording_keeps_share_its_arena():
    """Where they are freed before the large result, they are tensors of their own: not so in a CUDA
    graph, whose memory stays beside that result."""
    graph = parse_graph(HEAD)
    freed = place(graph, {}, ()).kinds
    kept = place(graph, {}, (), keeps_temporaries=True).kinds
    assert "own" in (freed["a"], freed["b"])
    assert kept["a"] == kept["b"] == "arena"
