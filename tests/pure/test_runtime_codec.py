"""Records to JSON and back, and the plans that are kept that way."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from torchweld.codegen.source import BufferArg, GridDim, KernelBundle, KernelSource, SizeArg
from torchweld.core import dtypes
from torchweld.core.options import Options
from torchweld.ir.nodes import Buffer
from torchweld.ir.parser import parse_graph
from torchweld.ir.size import symbol
from torchweld.runtime.cache import Artifacts
from torchweld.runtime.codec import decode, encode
from torchweld.runtime.plan_cache import PlanCache, StoredPlan

S = symbol("s0")
BUNDLE = KernelBundle(
    "k",
    (
        KernelSource("cpp", "k", "text\n\"quoted\"", (BufferArg("x"), SizeArg(S * 3 + 1))),
        KernelSource("triton", "k2", "t", (SizeArg(4, True),), (GridDim(S, 16, 100),),
                     (("BLOCK", 128),), ("*bf16", "i64"), 8, 3),
    ),
    scratch=(Buffer("tmp", (S, 4), dtypes.bf16, (4, 1)),),
    zeroed=("tmp",),
    prefill=(("y", 0.5), ("z", "x")),
)  # fmt: skip
GRAPH = parse_graph("""
graph g {
  symbol s0 = ["size", 0, 0] hint 8
  buffer x : f32[s0] strides [1] on cpu
  buffer y : f32[s0] strides [1] on cpu
  input x
  comp k [i:s0] {
    %0 = load x[i] : f32
    store y[i] %0
  }
  output view(y, [s0], [1], 0)
}
""")


@dataclass(frozen=True)
class Decision:
    kind: str
    members: tuple[str, ...]
    seconds: float


def test_a_bundle_comes_back_equal():
    assert decode(encode(BUNDLE)) == BUNDLE


def test_other_classes_are_named_or_refused():
    thing = {"a": (Decision("fused", ("x", "y"), 1e-6), None, True)}
    assert decode(encode(thing, [Decision]), [Decision]) == thing
    with pytest.raises(TypeError, match="Decision"):
        encode(thing)
    with pytest.raises(KeyError):
        decode(encode(thing, [Decision]))


@pytest.fixture
def plans(tmp_path) -> PlanCache:
    return PlanCache(Artifacts(tmp_path), [Decision])


def test_a_plan_comes_back_equal(plans):
    key = plans.key(GRAPH, Options(), "cpu")
    stored = StoredPlan(GRAPH, {"k": BUNDLE}, (Decision("fused", ("k",), 0.5),))
    assert plans.get(key) is None
    plans.put(key, stored)
    assert plans.get(key) == stored


def test_equal_sources_are_stored_once(plans, tmp_path):
    otherwise = KernelSource("triton", "k3", "x" * 5000, ())
    source = replace(BUNDLE.sources[1], text="y" * 5000, otherwise=otherwise)
    layers = {f"k{i}": replace(BUNDLE, comp=f"k{i}", sources=(source, source)) for i in range(9)}
    plans.put("a", StoredPlan(GRAPH, layers))
    found = plans.get("a").bundles
    assert found == layers
    (file,) = tmp_path.rglob("*.plan.json")
    assert [file.read_text(errors="ignore").count(c * 5000) for c in "xy"] == [1, 1]
    texts = {id(s.text) for bundle in found.values() for s in bundle.sources}
    assert len(texts) == 1


def test_what_changes_the_plan_changes_the_key(plans):
    options = Options()
    keys = {
        plans.key(GRAPH, options, "cpu"),
        plans.key(GRAPH, options.with_(numerics="eager"), "cpu"),
        plans.key(GRAPH, options, "cpu", "training"),
        plans.key("graph other {}", options, "cpu"),
    }
    assert len(keys) == 4
    assert plans.key(GRAPH, options.with_(debug=2), "cpu") in keys


@pytest.mark.parametrize("content", [b"{}", b"not json", b'{"graph": "graph g {", "bundles": {}}'])
def test_an_unreadable_plan_is_none(plans, tmp_path, content):
    Artifacts(tmp_path).put("abcd", ".plan.json", content)
    assert plans.get("abcd") is None
