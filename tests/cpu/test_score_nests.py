"""Attention by hand on a CPU: fused, exact forward and backward, and no scores in memory."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.capture import aot
from torchweld.core import dtypes
from torchweld.core.options import Options
from torchweld.exact.verify import verify
from torchweld.ir.nodes import Comp
from torchweld.passes import table
from torchweld.plan.scores import takes
from torchweld.templates.attention.nest import nest_of
from torchweld.templates.attention.sums import sums_of

pytestmark = pytest.mark.usefixtures("scores_in_kernels")


def positions(q, k):
    return torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None]


def plain(q, k, v):
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v


def causal(q, k, v):
    i, j = positions(q, k)
    scores = (q @ k.mT * 0.2).masked_fill(j > i, -math.inf)
    return scores.softmax(-1) @ v


def alibi_by_mask(q, k, v):
    i, j = positions(q, k)
    bias = (j - i) * (2.0 ** -torch.arange(1, 5))[:, None, None]
    bias = bias.masked_fill(j > i, -math.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype)[None])


def window_by_mask(q, k, v):
    i, j = positions(q, k)
    seen = (j <= i) & (i - j < 40)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def softcap(q, k, v):
    return F.softmax(20 * torch.tanh(q @ k.mT / 20), -1, dtype=torch.float32).to(q.dtype) @ v


def sigmoid(q, k, v):
    return torch.sigmoid(q @ k.mT - 4) @ v


def repeated(q, k, v):
    k, v = (t[:, :, None].expand(-1, -1, 2, -1, -1).reshape(2, 4, *t.shape[2:]) for t in (k, v))
    return plain(q, k, v).transpose(1, 2).contiguous()


def heads_inside(q, k, v):
    """Scores [b, q, h, k]: the rows of the weights are in another order than those of the result"""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    weights = (torch.einsum("bqhd,bkhd->bqhk", q, k) * 0.2).softmax(-1)
    return torch.einsum("bqhk,bkhd->bqhd", weights, v)


FORMS = {f.__name__: f for f in (plain, causal, alibi_by_mask, window_by_mask, softcap, sigmoid,
                                 repeated, heads_inside)}  # fmt: skip


def inputs(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shared = 2 if name == "repeated" else 4
    sizes = ((2, 4, 163, 40), (2, shared, 163, 40), (2, shared, 163, 24))
    return [torch.randn(s, dtype=dtype, requires_grad=True) for s in sizes]


def nests(fused) -> dict[str, int]:
    """Score nests by kind of graph."""
    found: dict[str, int] = {}
    for record in torchweld.api.records(fused):
        count = sum(isinstance(n, Comp) and nest_of(n) is not None for n in record.graph.nodes)
        found[record.kind] = found.get(record.kind, 0) + count
    return found


@pytest.mark.parametrize("name", FORMS)
def test_forward_and_backward(name: str):
    fused = checked(FORMS[name], inputs(name, torch.float32))
    assert nests(fused)["forward"] == 1 and nests(fused)["backward"] == 2


def checked(function, args: list[torch.Tensor]):
    """The fused function, whose results and gradients were compared."""
    fused = torchweld.fuse(function)
    gradient = torch.randn_like(fused(*args).detach())
    results = {}
    for way, called, dtype in (("fused", fused, None), ("eager", function, None),
                               ("exact", function, torch.float64)):  # fmt: skip
        given = [a.detach().to(dtype or a.dtype).requires_grad_() for a in args]
        out = called(*given)
        out.backward(gradient.to(out.dtype))
        results[way] = [out.detach(), *(g.grad for g in given if g.grad is not None)]
    for got, eager, exact in zip(*(results[w] for w in ("fused", "eager", "exact"))):
        allowed = 1.5 * (eager.double() - exact).norm() + 1e-7 * exact.norm()
        assert (got.double() - exact).norm() <= allowed
    return fused


def seen_scores(q, k):
    """Two rows see nothing."""
    i, j = positions(q, k)
    return (q @ k.mT * 0.2).masked_fill(j > i - 2, -math.inf)


def gpt_oss(q, k, v, sinks):
    k, v = (t[:, :, None].expand(-1, -1, 2, -1, -1).reshape(2, 4, *t.shape[2:]) for t in (k, v))
    scores = seen_scores(q, k)
    column = sinks.reshape(1, -1, 1, 1).expand(2, -1, scores.shape[2], -1)
    every = torch.cat([scores, column], -1)
    every = every - every.max(dim=-1, keepdim=True).values
    return F.softmax(every, -1, dtype=every.dtype)[..., :-1] @ v


def sinks_by_hand(q, k, v, sinks):
    scores, sink = seen_scores(q, k), sinks.view(1, -1, 1, 1)
    top = torch.maximum(scores.amax(-1, keepdim=True), sink).detach()
    e = (scores - top).exp()
    return e / (e.sum(-1, keepdim=True) + (sink - top).exp()) @ v


def off_by_one(q, k, v, sinks):
    return F.pad(seen_scores(q, k), (0, 1)).softmax(-1)[..., :-1] @ v


@pytest.mark.parametrize("function", [gpt_oss, sinks_by_hand, off_by_one])
def test_sinks(function):
    args = inputs("repeated" if function is gpt_oss else "plain", torch.float32)
    fused = checked(function, [*args, torch.randn(4, requires_grad=True)])
    assert nests(fused) == {"forward": 1, "backward": 2}
    records = torchweld.api.records(fused)
    (forward,) = (r for r in records if r.kind == "forward")
    (nest,) = filter(None, (nest_of(n) for n in forward.graph.nodes if isinstance(n, Comp)))
    assert len(nest.walks) == 1


def test_sinks_in_half_precision():
    """The sum of weights times their gradient is that of the results, which needs no walk."""
    args = [t.bfloat16() for t in (*inputs("repeated", torch.float32), torch.randn(4))]
    fused = torchweld.fuse(gpt_oss)
    given = [t.detach().requires_grad_() for t in args]
    fused(*given).sum().backward()
    found = [nest_of(n) for r in torchweld.api.records(fused) for n in r.graph.nodes
             if isinstance(n, Comp)]  # fmt: skip
    assert [len(n.walks) for n in found if n] == [1, 1, 1]
    assert verify(gpt_oss, fused, args, train=True).ok


def biased(q, k, v, bias):
    return (q @ k.mT * 0.2 + bias).softmax(-1) @ v


def looked_up(q, k, v, table):
    """T5's: a table of distances in buckets, by logarithms."""
    i, j = positions(q, k)
    far = (j - i).abs().clamp(min=1).float().log().mul(4).long().clamp(max=15)
    bias = F.embedding(far + 16 * (j > i), table).permute(2, 0, 1)[None]
    return seen_scores(q, k).add(bias).nan_to_num(neginf=-1e9).softmax(-1) @ v


def of_windows(q, k, v, table):
    """Swin's: places in a table, by index."""
    i, j = positions(q, k)
    bias = table[(i // 3 - j // 3 + 60).view(-1)].view(163, 163, -1).permute(2, 0, 1)
    return biased(q, k, v, bias.contiguous()[None])


BIASES = {biased: (4, 163, 163), looked_up: (32, 4), of_windows: (121, 4)}


@pytest.mark.parametrize("function", BIASES)
def test_a_bias_is_learned_without_scores_in_memory(function, monkeypatch):
    monkeypatch.setattr(takes, "_NEW_MEMORY", 0)
    takes.taken_by.cache_clear()
    table = torch.randn(BIASES[function], requires_grad=True)
    fused = checked(function, [*inputs("plain", torch.float32), table])
    takes.taken_by.cache_clear()
    assert nests(fused) == {"forward": 1, "backward": 2}
    (backward,) = (r for r in torchweld.api.records(fused) if r.kind == "backward")
    comps = [n for n in backward.graph.nodes if isinstance(n, Comp)]
    assert sum(sums_of(n) is not None for n in comps) == 1
    whole = 2 * 4 * 163 * 163
    sizes = [math.prod(backward.graph.buffers[b].shape) for n in comps for b in n.writes]
    assert max(sizes) < whole


def test_a_bias_is_learned_from_scores_in_memory_where_these_are_few():
    bias = torch.randn(4, 163, 163, requires_grad=True)
    fused = checked(biased, [*inputs("plain", torch.float32), bias])
    assert nests(fused) == {"forward": 0, "backward": 0}


@pytest.mark.parametrize("apart", ["forward", "backward", "neither"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_large_scores_are_alike_whichever_graph_is_not_fused(
    apart, dtype, monkeypatch, tmp_path
):
    """Forward and backward are planned apart, and only one of them may keep scores in a kernel.
    Scores of some hundreds that the other rounds are off by up to one."""
    fused = table.score_nests
    monkeypatch.setattr(
        table, "score_nests",
        lambda plan, target, options, choose: plan if plan.graph.name.endswith(apart)
        else fused(plan, target, options, choose),
    )  # fmt: skip
    q, k, v = (t.detach() for t in inputs("plain", torch.float32))
    args = [t.to(dtype) for t in (q / 10 + 8, k / 10 + 8, v)]
    made = torchweld.fuse(plain, cache_dir=tmp_path)

    def found(function, args):
        given = [t.detach().requires_grad_() for t in args]
        result = function(*given)
        weights = torch.linspace(-1, 1, 24).to(result.dtype).expand_as(result)
        return [result, *torch.autograd.grad(result, given, weights)]

    exact = found(plain, [t.double() for t in args])
    ours, eager = ([(a - b).norm() / b.norm() for a, b in zip(found(f, args), exact)]
                   for f in (made, plain))  # fmt: skip
    assert all(mine <= its for mine, its in zip(ours, eager))
    assert nests(made) == {"forward": 1, "backward": 2} | {k: 0 for k in [apart] if k != "neither"}


def test_half_precision_is_verified():
    args = [a.detach() for a in inputs("causal", torch.bfloat16)]
    fused = torchweld.fuse(causal)
    assert verify(causal, fused, args).ok
    assert nests(fused) == {"inference": 1}


def test_dropout_is_drawn_again():
    """The gradient of values is that of the weights that the forward had: sum over o of values."""
    def dropped(q, k, v):
        return F.dropout(plain_weights(q, k), 0.3, True) @ v

    def plain_weights(q, k):
        return (q @ k.mT * 0.2).softmax(-1)

    q, k, v = inputs("plain", torch.float32)
    fused = torchweld.fuse(dropped)
    torch.manual_seed(1)
    out = fused(q, k, v)
    gradient = torch.randn_like(out)
    out.backward(gradient)
    assert nests(fused)["backward"] == 2
    # out is linear in v: <gradient, out> = <grad of v, v>
    torch.testing.assert_close((gradient * out).sum(), (v.grad * v).sum(), rtol=1e-4, atol=1e-2)
    assert not torch.equal(out, fused(q, k, v))


def test_returned_weights_are_kept():
    def function(q, k, v):
        weights = (q @ k.mT).softmax(-1)
        return weights @ v, weights

    args = inputs("plain", torch.float32)
    fused = torchweld.fuse(function)
    for got, wanted in zip(fused(*args), function(*args)):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    assert nests(fused) == {"forward": 0}


def test_ahead_of_time():
    class Masked(torch.nn.Module):
        def forward(self, q, k, v):
            return window_by_mask(q, k, v)

    args = tuple(a.detach() for a in inputs("plain", torch.float32))
    fused = torchweld.fuse(Masked(), args)
    with torch.no_grad():
        got = fused(*args)
    torch.testing.assert_close(got, window_by_mask(*args), rtol=1e-5, atol=1e-5)
    assert nests(fused) == {"inference": 1}
    assert "the scores are never in memory" in str(torchweld.explain(fused))


def test_flex_attention():
    from torch.nn.attention.flex_attention import flex_attention

    def function(q, k, v):
        def seen(score, b, h, i, j):
            return torch.where((i >= j) & (i - j < 50), score + 0.1 * h, -math.inf)

        return flex_attention(q, k, v, score_mod=seen)

    args = [a.detach() for a in inputs("plain", torch.float32)]
    fused = torchweld.fuse(function)
    with warnings.catch_warnings():
        warnings.simplefilter("error", torchweld.TorchweldWarning)  # of what is left to ATen
        got = fused(*args)
    torch.testing.assert_close(got, function(*args), rtol=1e-5, atol=1e-5)
    assert nests(fused) == {"inference": 1}


def shifted_by_hand(q, k, v):
    """With a gradient through the maximum, and no softmax: it would be one from the start."""
    s = q @ k.mT * 0.3
    e = (s - s.amax(-1, keepdim=True)).exp()
    return e / (1 + e.sum(-1, keepdim=True)) @ v


def loudest(q, k, v):
    """No attention: what is compared is cheap to compute again."""
    s = (q * 0.3 + k).sin() * q
    return s * s.amax(-1, keepdim=True)


@pytest.mark.parametrize("function", [shifted_by_hand, loudest])
def test_a_maximum_is_compared_with_what_it_was_taken_of(function):
    """By another kernel, the same scores are rounded in another way: none equals a saved maximum,
    and its gradient is divided by their number."""
    backward = []

    def compile_graph(captured, options):
        if captured.kind == "backward":
            backward.append(captured.module.graph)
        return aot.run_eagerly(captured.module)

    backend = aot.make_backend(compile_graph, Options(), takes=lambda scores: True)
    torch.compiler.reset()
    given = [t.requires_grad_() for t in inputs("plain", torch.float32)]
    torch.compile(function, backend=backend)(*given).sum().backward()
    (graph,) = backward
    compared = graph.find_nodes(op="call_function", target=torch.ops.aten.eq.Tensor)
    assert compared
    for node in compared:
        assert any(a.target == torch.ops.aten.amax.default for a in node.all_input_nodes)


def test_weights_of_float32_are_not_rounded_to_the_type_of_the_values():
    """A product with the 16-bit original of widened values would round them."""
    def wide(q, k, v):
        return (q @ k.mT * 0.3).float().softmax(-1) @ v.float()

    fused = torchweld.fuse(wide)
    with torch.no_grad():
        fused(*inputs("plain", torch.bfloat16))
    (record,) = torchweld.api.records(fused)
    (comp,) = (n for n in record.graph.nodes if isinstance(n, Comp) and nest_of(n))
    (outer,) = nest_of(comp).outers
    assert comp.body[outer.key].dtype == dtypes.f32


def test_a_projection_that_several_products_read_is_made_once():
    """Slot attention: in each of them, it would be a product again."""
    project = torch.nn.Linear(50, 50, bias=False)

    def function(x, queries):
        keys = project(x)
        return [(q @ keys.mT).softmax(1) for q in queries.unbind()]

    torch.compiler.reset()
    x, queries = torch.randn(3, 289, 50), torch.randn(4, 3, 7, 50)
    fused = torchweld.fuse(function)
    with torch.no_grad():
        torch.testing.assert_close(fused(x, queries), function(x, queries))
    assert not sum(nests(fused).values())
    weights = [n for r in torchweld.records(fused) for n in r.graph.nodes if "arg1_1" in n.reads]
    assert len(weights) == 1
