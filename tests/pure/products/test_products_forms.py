"""Which products join what: side by side, alone, with their norm, cut from what reduces; and the
reasons of those that stay."""

from __future__ import annotations

from dataclasses import replace

import nets
import pytest
import torch
import torch.nn.functional as F
from nets import H100, calls, captured, comps, formed, same_meaning, takes_all, takes_none

import product_cases as cases
from torchweld.core import dtypes
from torchweld.core.options import Options
from torchweld.ir.access import addressed
from torchweld.ir.affine import axis
from torchweld.ir.contraction import contraction_of
from torchweld.ir.nodes import Const, Index, Op, Reduce
from torchweld.ir.parser import parse_comp
from torchweld.plan.decisions import Cut, RefusalRecord
from torchweld.plan.products.apart import halves
from torchweld.plan.products.form import form_products
from torchweld.plan.products.heads import join_heads
from torchweld.plan.products.kernel import Judge, Workshop
from torchweld.plan.products.sums import sums_apart
from torchweld.plan.refusals import Reason
from torchweld.plan.search import plan
from torchweld.templates.gemm import price as products_cost
from torchweld.templates.gemm.choice import choose
from torchweld.templates.gemm.triton import schedule as product_triton

M, K, N = 3, 256, 48


def r(*shape, dtype=torch.bfloat16):
    return (torch.randn(shape) / 4).to(dtype)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def sums(comp) -> int:
    return sum(isinstance(i, Reduce) for i in comp.body)


def reasons(plan, producer: str) -> list[Reason]:
    found = [d for d in plan.refusals if d.producer == producer]
    return [d.reason for d in found]


# -- norms --


@pytest.fixture
def in_turn(monkeypatch):
    """A device whose kernels begin when the one before has ended: there norms join products."""
    monkeypatch.setattr(nets, "H100", replace(H100, capability=(8, 0)))


def rms(x, w, eps=1e-5):
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return w * y.to(x.dtype)


@pytest.mark.usefixtures("in_turn")
def test_norm_before_a_gated_pair():
    def block(x, w, g, u):
        h = rms(x, w)
        return F.silu(F.linear(h, g)) * F.linear(h, u)

    _, after = same_meaning(block, r(M, K), r(K), r(N, K), r(N, K))
    (comp,) = comps(after.graph)
    assert calls(after.graph) == [] and sums(comp) == 3


@pytest.mark.usefixtures("in_turn")
def test_norm_before_products_of_several_sizes():
    def block(x, w, q, k, v):
        h = rms(x, w)
        return F.linear(h, q), F.linear(h, k), F.linear(h, v)

    _, after = same_meaning(block, r(1, M, K), r(K), r(2 * N, K), r(N, K), r(N, K))
    assert calls(after.graph) == [] and len(comps(after.graph)) <= 2


@pytest.mark.usefixtures("in_turn")
def test_norm_of_an_offset_row():
    x = r(M, K) + 100
    same_meaning(lambda x, w, a: F.linear(rms(x, w), a), x, r(K), r(N, K))


@pytest.mark.usefixtures("in_turn")
def test_norm_of_a_residual_stream():
    """The sum is stored for later; the norm that follows goes into its readers."""

    def block(x, h, o, w, a):
        x = x + F.linear(h, o)
        return x, F.relu(F.linear(rms(x, w), a))

    _, after = same_meaning(block, r(M, K), r(M, N), r(K, N), r(K), r(N, K))
    assert calls(after.graph) == [] and [sums(c) for c in comps(after.graph)] == [1, 2]
    assert any(isinstance(d, Cut) for d in after.decisions)


def test_norm_where_kernels_begin_early_stays():
    def block(x, w, a):
        return F.relu(F.linear(rms(x, w), a))

    _, after = formed(captured(block, r(M, K), r(K), r(N, K)))
    assert [sums(c) for c in comps(after.graph)] == [1, 1]


@pytest.mark.usefixtures("in_turn")
@pytest.mark.parametrize("case", ["many rows", "half", "mean", "returned", "right", "residual"])
def test_norm_that_stays(case):
    rows = 80 if case == "many rows" else M
    dtype = torch.float16 if case == "half" else torch.bfloat16

    def block(x, w, a):
        h = F.layer_norm(x, (K,), w) if case == "mean" else rms(x, w)
        if case == "right":
            return a @ h.T
        y = F.linear(h, a)
        return (h, y) if case == "returned" else h + y if case == "residual" else y

    width = K if case == "residual" else N
    args = r(rows, K, dtype=dtype), r(K, dtype=dtype), r(width, K, dtype=dtype)
    _, after = formed(captured(block, *args))
    norm = comps(after.graph)[0]
    assert sums(norm) and not any("mm" in o.op for o in norm.origins)
    told = {"many rows": Reason.SLOWER, "half": Reason.TEMPLATE, "mean": Reason.TEMPLATE}
    assert reasons(after, norm.name) == [told[case]] if case in told else True


# -- side by side --


def takes_few(accesses, *rest):
    """No epilogues but biases, side by side if need be."""
    names = {i.name for i in accesses.comp.body if isinstance(i, Op)}
    few = names <= {"mul", "add", "lt", "ge", "bit_and", "where"}
    return takes_all(accesses, *rest) if few else "an epilogue"


def test_products_of_one_operand_share_a_kernel():
    def qkv(x, q, k, v, bq, bk, bv):
        return F.linear(x, q, bq), F.linear(x, k, bk), F.linear(x, v, bv)

    _, after = same_meaning(qkv, r(3, 5, K), *(r(N, K) for _ in "qkv"), *(r(N) for _ in "qkv"))
    (comp,) = comps(after.graph)
    assert calls(after.graph) == [] and sums(comp) in (1, 3) and len(comp.stores) == 3


@pytest.mark.parametrize("rows", [1, 5, 16, 200])
@pytest.mark.parametrize("bias", [False, True])
def test_products_of_several_sizes_are_put_side_by_side(rows, bias):
    """Queries, and fewer keys and values."""

    def qkv(x, *weights):
        sizes = len(weights) // 2
        biases = weights[sizes:] if bias else [None] * sizes
        return [F.linear(x, w, b) for w, b in zip(weights[:sizes], biases)]

    widths = 2 * N, N, N // 2
    _, after = same_meaning(
        qkv, r(1, rows, K), *(r(n, K) for n in widths), *(r(n) for n in widths)
    )
    (comp,) = comps(after.graph)
    assert calls(after.graph) == [] and sums(comp) == 1 and len(comp.stores) == 3


def test_products_keep_what_follows_them_side_by_side():
    """Queries are scaled, values are not changed, gates are rounded twice."""

    def qkv(x, q, k, v, b):
        return F.linear(x, q, b) * 0.125, F.linear(x, k), torch.sigmoid(F.linear(x, v)) * 2

    args = r(2, 100, K), r(2 * N, K), r(N, K), r(N // 2, K), r(2 * N)
    _, after = same_meaning(qkv, *args)
    (comp,) = comps(after.graph)
    assert calls(after.graph) == [] and sums(comp) == 1 and len(comp.stores) == 3


def test_a_gated_pair_is_not_put_beside_a_product():
    def block(x, g, u, o):
        return F.silu(F.linear(x, g)) * F.linear(x, u), F.linear(x, o)

    _, after = same_meaning(block, r(200, K), r(N, K), r(N, K), r(2 * N, K))
    assert sum(map(sums, comps(after.graph))) + len(calls(after.graph)) == 3
    assert len(after.graph.nodes) == 2


def test_a_product_whose_gelu_the_library_makes_is_not_put_beside_others():
    def block(x, q, w, b):
        return x @ q, F.gelu(torch.addmm(b, x, w), approximate="tanh")

    graph = captured(block, r(200, K), r(K, N), r(K, 2 * N), r(2 * N))
    _, after = formed(graph, takes_few)
    assert "aten.addmm.default" in calls(after.graph)


def test_products_that_would_be_slower_side_by_side_stay_and_say_so():
    """A product that fills the device gains nothing from another beside it."""
    wide = torch.empty(1 << 14, 1 << 13, dtype=torch.bfloat16, device="meta")
    graph = captured(lambda x, a, b: (x @ a, x @ b), wide, wide[: 1 << 13], wide[: 1 << 13, :4096])
    _, after = formed(graph)
    assert calls(after.graph) == ["aten.mm.default"] * 2
    (record,) = after.refusals
    assert record.reason == Reason.SLOWER and "us apart" in record.evidence


def test_a_hopper_gpu_takes_queries_keys_and_values_together():
    def qkv(x, q, k, v):
        return x @ q, x @ k, x @ v

    x, w = (torch.empty(rows, 768, dtype=torch.bfloat16, device="meta") for rows in (4096, 768))
    _, after = formed(captured(qkv, x, w, w + 0, w + 1), choose)
    (comp,) = comps(after.graph)
    assert calls(after.graph) == [] and sums(comp) == 1


def test_a_product_that_is_added_to_another_is_not_put_beside_it():
    def chain(x, a, b):
        y = x @ a
        return torch.addmm(y, x, b)

    _, after = same_meaning(chain, r(M, K), r(K, N), r(K, N))
    assert len(after.graph.nodes) == 2


# -- sums of columns --


def bias_gradient(g, w, a):
    """Before an activation, and of the bias before it."""
    before = (g @ w) * torch.cos(a.float()).to(g.dtype)
    return before, before.float().sum(0).to(g.dtype)


@pytest.fixture
def cheap_sums(monkeypatch):
    """Of small tensors sums cost more than they save."""
    monkeypatch.setattr(products_cost, "_sums_s", lambda count, device: 0.0)


def test_the_gradient_of_a_bias_is_summed_beside_the_product(cheap_sums):
    _, after = same_meaning(bias_gradient, r(200, K), r(K, N), r(200, N))
    made, rest = comps(after.graph)
    assert calls(after.graph) == [] and [s.combine for s in made.stores] == [None, "add"]
    assert [a.extent for a in rest.axes] == [N] and rest.reads == made.writes[1:]
    assert any(isinstance(d, Cut) for d in after.decisions)
    assert set(after.graph.buffers) <= {b for n in after.graph.nodes for b in (*n.reads, *n.writes)}


def test_several_sums_of_one_product(cheap_sums):
    def sums_of(g, w, a):
        y = g @ w
        return y, y.float().sum(0), (y.float() * a).sum(0).bfloat16()

    _, after = same_meaning(sums_of, r(200, K), r(K, N), r(200, N))
    assert calls(after.graph) == []
    made = next(c for c in comps(after.graph) if sums(c))
    assert [s.combine for s in made.stores].count("add") == 2


def test_a_norm_is_no_sum_of_columns():
    graph = captured(lambda g, w, s: rms(g @ w, s), r(200, K), r(K, N), r(N))
    before, _ = formed(graph, takes_none)
    assert [sums_apart(c) for c in comps(before.graph)] == [None]


def test_sums_of_unknown_sizes_stay_apart():
    """A template needs to know how many tiles there will be."""
    case = cases.summed("s0", 264, 72, sizes={"s0": 300})
    accesses = addressed(case.comp, case.buffers, case.sizes)
    refused = product_triton.supports(accesses, contraction_of(accesses), H100)
    assert refused is not None and "not known" in refused


def test_two_sums_in_one_place_are_no_sums_of_columns():
    """Each would write what it has."""
    case = cases.summed(300, 264, 72)
    twice = replace(case.comp, stores=(*case.comp.stores, case.comp.stores[-1]))
    accesses = addressed(twice, case.buffers, {})
    refused = product_triton.supports(accesses, contraction_of(accesses), H100)
    assert refused == "a store combines with what is there"


def test_heads_of_few_rows_are_not_streamed_in_halves():
    def rotary(x, w, c, s):
        q = F.linear(x, w).view(1, M, 4, -1).transpose(1, 2)
        left, right = q.chunk(2, -1)
        return q * c + torch.cat((-right, left), -1) * s

    args = r(1, M, K), r(N, K), r(M, N // 4), r(M, N // 4)
    _, after = formed(captured(rotary, *args))
    assert Reason.SLOWER in reasons(after, "mm") or len(comps(after.graph)) == 2


def rotated(x, cos, sin):
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


def rotated_pairs(x, cos, sin):
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return x * cos + turned * sin


@pytest.mark.parametrize("keys", [2, 4])
@pytest.mark.parametrize("turn", [rotated, rotated_pairs])
def test_queries_and_keys_are_rotated_in_the_kernel_of_values(turn, keys):
    """As many keys as queries are rotated by one Comp, which is shared out."""

    def attention(x, q, k, v, cos, sin):
        q, k = (F.linear(x, w).view(M, -1, 16).transpose(0, 1) for w in (q, k))
        return turn(q, cos, sin), turn(k, cos, sin), F.linear(x, v)

    args = r(M, K), r(4 * 16, K), r(keys * 16, K), r(2 * 16, K), r(M, 16), r(M, 16)
    _, after = same_meaning(attention, *args)
    (comp,) = comps(after.graph)
    assert calls(after.graph) == [] and sums(comp) == 2 and len(comp.writes) == 3


def heads(function, *args):
    """What is on record of products with what rotates their heads."""
    graph = plan(captured(function, *args), H100, Options()).graph
    return join_heads(Workshop(graph, Judge(graph, H100, takes_all)))


def test_rotations_of_many_rows_stay_apart():
    def attention(x, q, k, v, cos, sin):
        q, k = (F.linear(x, w).view(200, -1, 16).transpose(0, 1) for w in (q, k))
        return rotated(q, cos, sin), rotated(k, cos, sin), F.linear(x, v)

    args = r(200, K), r(4 * 16, K), r(2 * 16, K), r(2 * 16, K), r(200, 16), r(200, 16)
    _, after = formed(captured(attention, *args))
    assert not any(c.writes[1:] and sums(c) == 2 for c in comps(after.graph))
    first, *others = heads(attention, *args).values()
    assert first.reason is Reason.MARGIN and set(others) == {first}
    assert first.evidence == "of 200 rows, what follows takes little time"


def test_queries_that_meet_keys_stay_apart():
    def attention(x, q, k, v, cos, sin):
        q, k = (F.linear(x, w).view(M, -1, 16).transpose(0, 1) for w in (q, k))
        return rotated(q, cos, sin) + k, F.linear(x, v)

    args = r(M, K), r(4 * 16, K), r(4 * 16, K), r(2 * 16, K), r(M, 16), r(M, 16)
    _, after = same_meaning(attention, *args)
    assert all(sums(c) < 2 for c in comps(after.graph))


def test_what_one_kernel_makes_of_keys_is_not_left_over():
    """Keys that meet their mirror do not join their product, so queries do not leave the kernel."""

    def attention(x, q, k, v, cos, sin):
        q, k = (F.linear(x, w).view(M, -1, 16).transpose(0, 1) for w in (q, k))
        return rotated(q, cos, sin), k * k.flip(2), F.linear(x, v)

    args = r(M, K), r(4 * 16, K), r(4 * 16, K), r(2 * 16, K), r(M, 16), r(M, 16)
    same_meaning(attention, *args)
    assert {why.reason for why in heads(attention, *args).values()} == {Reason.READERS}


def test_keys_that_wait_for_queries_are_not_made_with_them():
    def attention(x, q, k, v, cos, sin):
        q, k = (F.linear(x, w).view(M, -1, 16).transpose(0, 1) for w in (q, k))
        q = rotated(q, cos, sin)
        return q, rotated(k, cos + q.float().sum().to(cos.dtype), sin), F.linear(x, v) * 2

    args = r(M, K), r(4 * 16, K), r(2 * 16, K), r(2 * 16, K), r(M, 16), r(M, 16)
    same_meaning(attention, *args)


def test_keys_are_rotated_on_their_way_into_a_cache():
    def step(x, q, k, v, cos, sin, keys, values, at):
        q, k, v = (F.linear(x, w).view(M, -1, 1, 16) for w in (q, k, v))
        keys[:, :, at] = rotated(k, cos, sin)
        values[:, :, at] = v
        return rotated(q, cos, sin), keys + 0, values + 0

    cache = r(M, 2, 5, 16)
    args = (r(M, K), r(4 * 16, K), r(2 * 16, K), r(2 * 16, K), r(1, 16), r(1, 16),
            cache, cache + 1, torch.tensor([2]))  # fmt: skip
    _, after = same_meaning(step, *args)
    (comp,) = (c for c in comps(after.graph) if sums(c))
    assert sums(comp) == 2 and len(comp.writes) == 3


def test_products_with_their_own_epilogues_share_a_kernel():
    def both(x, a, b):
        return F.relu(F.linear(x, a)), F.linear(x, b).view(3, 5, 4, 12).transpose(1, 2) * 2.0

    _, after = same_meaning(both, r(3, 5, K), r(N, K), r(N, K))
    (comp,) = comps(after.graph)
    assert calls(after.graph) == [] and sums(comp) == 1


def test_a_store_that_is_guarded_joins_its_product():
    """As one into a cache is on a GPU, where the index may be out of range."""
    graph = captured(lambda x, w: F.linear(x, w) * 2, r(M, K), r(N, K))
    call, reader = graph.nodes
    position, bound = Index(axis(reader.axes[0].name), dtypes.i64), Const(M - 1, dtypes.i64)
    count = len(reader.body)
    below = Op("lt", (count, count + 1), dtypes.b1)
    stores = (replace(reader.stores[0], guard=count + 2),)
    reader = replace(reader, body=(*reader.body, position, bound, below), stores=stores)
    _, after = formed(replace(graph, nodes=(call, reader)))
    (comp,) = comps(after.graph)
    assert calls(after.graph) == [] and sums(comp) == 1 and comp.stores[0].guard is not None


def test_values_go_into_a_cache_from_the_kernel_of_queries():
    def step(x, q, v, cache, at):
        cache[:, :, at] = F.linear(x, v).view(M, 3, -1, 1).transpose(2, 3)
        return F.linear(x, q), cache + 0

    args = r(M, K), r(2 * N, K), r(N, K), r(M, 3, 5, N // 3), torch.tensor([2])
    _, after = same_meaning(step, *args)
    (comp,) = (c for c in comps(after.graph) if sums(c))
    assert sums(comp) == 1 and len(comp.writes) == 2


def test_a_product_that_needs_another_stays_behind_it():
    def chain(x, a, b):
        y = F.linear(x, a)
        return y, F.linear(x, b) + y.sum()

    same_meaning(chain, r(M, K), r(N, K), r(N, K))


def test_many_rows_stay_apart():
    """No traffic is saved, so nothing is worth a worse kernel."""
    _, after = formed(captured(lambda x, a, b: (x @ a, x @ b), *[r(2048, 2048)] * 3))
    assert calls(after.graph) == ["aten.mm.default"] * 2


# -- cuts --


def test_sums_over_rows_follow_the_product():
    """A bias's gradient: the sum reads what the product's kernel stores."""

    def backward(dy, w, x):
        dh = (dy @ w) * torch.where(x > 0, 1.0, 0.1)
        return dh, dh.sum(0)

    _, after = same_meaning(backward, r(2048, 64), r(64, K), r(2048, K))
    assert calls(after.graph) == [] and [sums(c) for c in comps(after.graph)] == [1, 1]


HALVES = """comp p [m:7, n:5] {
  %0 = load t[m, n] : bf16
  %1 = cast %0 : f32
  %2 = load r[m, n] : bf16
  %3 = cast %2 : f32
  %4 = add %1 %3 : f32
  %5 = cast %4 : bf16
  %6 = cast %5 : f32
  %7 = reduce.sum[m] %6 : f32
  store y[m, n] %5
  store s[n] %7
}"""


def test_halves():
    found = halves(parse_comp(HALVES), {"t"})
    assert (found.first.reads, found.first.writes) == (("t", "r"), ("y",))
    assert (found.rest.reads, found.rest.writes) == (("y",), ("s",))


@pytest.mark.parametrize("change", [
    ("cast %5 : f32", "mul %4 %4 : f32"),  # what is reduced is not stored
    ("store y[m, n] %5\n", ""), ("store s[n] %7\n", ""),  # nothing on one side
])  # fmt: skip
def test_no_halves(change):
    assert halves(parse_comp(HALVES.replace(*change)), {"t"}) is None


def test_norm_behind_a_product_that_is_not_stored_stays():
    _, after = formed(captured(lambda x, w: F.softmax(x @ w, -1), r(M, K), r(K, N)))
    assert reasons(after, "mm") == [Reason.PRODUCT]


# -- reasons --


@pytest.mark.parametrize("case, reason", [
    ("no template", Reason.TEMPLATE), ("float64", Reason.TEMPLATE), ("reversed", Reason.MAPS),
    ("mutated", Reason.MUTATION), ("path", Reason.REENTRY),
])  # fmt: skip
def test_reasons(case, reason):
    dtype = torch.float64 if case == "float64" else torch.bfloat16
    choose = takes_none if case == "no template" else takes_all

    def net(x, w, b):
        y = x @ w
        if case == "reversed":
            return y.reshape(-1)[3:].relu()
        if case == "mutated":
            x.mul_(2)
        if case == "path":
            return (y @ b) @ b + y.relu()
        return torch.relu(y)

    args = (r(80, 80, dtype=dtype) for _ in range(3))
    _, after = formed(captured(net, *args), choose)
    found = [d for d in after.decisions if isinstance(d, RefusalRecord) and d.reason == reason]
    assert found, after.decisions


@pytest.mark.parametrize("options", [{"fuse": False}, {"numerics": "eager"}])
def test_nothing_changes(options):
    graph = captured(lambda x, w: F.relu(x @ w), r(M, K), r(K, N))
    before, after = formed(graph, **options)
    assert before == after


@pytest.mark.usefixtures("in_turn")
def test_decisions_speak_of_the_graph():
    """Kernels and members that exist, both sides' seconds, no refusal between what is one."""

    def block(x, w, g, u, d):
        h = rms(x, w)
        return x + F.linear(F.silu(F.linear(h, g)) * F.linear(h, u), d)

    _, after = formed(captured(block, r(M, K), r(K), r(N, K), r(N, K), r(K, N)))
    names = {n.name for n in after.graph.nodes}
    assert {f.kernel for f in after.fusions} <= names
    gated = next(f for f in after.fusions if {"silu", "pow_1", "mm", "mm_1"} <= set(f.members))
    assert gated.launches_before > gated.launches_after == 1
    assert gated.separate_us > gated.fused_us > 0 and gated.bytes_before > gated.bytes_after
    for record in after.refusals:
        assert {record.producer, record.consumer} <= names and record.producer != record.consumer


def test_the_second_time_nothing_is_left():
    graph = captured(lambda x, w: F.relu(x @ w), r(M, K), r(K, N))
    _, after = formed(graph)
    assert form_products(after, H100, Options(), takes_all).graph == after.graph
