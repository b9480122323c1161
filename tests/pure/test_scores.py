"""Attention by hand becomes one kernel where a template takes it, and means the same."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from products.nets import captured, on

from torchweld.capture.scores import Scores
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Comp, Extern, Graph
from torchweld.plan.decisions import Plan
from torchweld.plan.refusals import Reason
from torchweld.plan.scores.form import score_nests
from torchweld.plan.scores.offer import Desk
from torchweld.plan.scores.takes import taken_by
from torchweld.plan.search import plan
from torchweld.targets.find import target_of
from torchweld.templates import registry
from torchweld.templates.attention.nest import Nest, nest_of
from torchweld.templates.gemm.choice import choose
from torchweld.templates.template import Template, no_reference

ANY = Template(
    "attention/any", lambda p: nest_of(p.comp), lambda roles, p: None,
    lambda roles, p: iter(("any",)), lambda roles, s, p: 1e-9, None, no_reference,
)  # fmt: skip
CPU = replace(target_of("cpu"), templates=("attention/any", "pointwise_reduce/cpu"))


@pytest.fixture(autouse=True)
def template_that_takes_any_nest(monkeypatch):
    monkeypatch.setitem(registry.TEMPLATES, ANY.name, ANY)


def formed(function, *args, target=CPU) -> Plan:
    graph = on(captured(function, *args), "cpu")
    made = score_nests(Plan(graph, ()), target, Options(), choose)
    check_graph(made.graph)
    return made


def nests(graph: Graph) -> list[Nest]:
    found = [nest_of(n) for n in graph.nodes if isinstance(n, Comp)]
    return [n for n in found if n is not None]


def inputs(keys: int = 29, shared: int = 4, rows: int = 37, dtype=torch.float32):
    torch.manual_seed(0)
    q = torch.randn(2, 4, rows, 16, dtype=dtype)
    k = torch.randn(2, shared, keys, 16, dtype=dtype)
    return q, k, torch.randn(2, shared, keys, 5, dtype=dtype)


def positions(q, k):
    return torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None]


def plain(q, k, v):
    return (q @ k.transpose(-2, -1) * 0.3).softmax(-1) @ v


def causal(q, k, v):
    i, j = positions(q, k)
    scores = (q @ k.mT / 4).masked_fill(j > i + 2, -math.inf)
    return scores.softmax(-1) @ v


def window(q, k, v):
    i, j = positions(q, k)
    seen = (j <= i) & (i - j < 12) & (j < 29)
    return torch.where(seen, q @ k.mT, -math.inf).softmax(-1) @ v


def blind_rows(q, k, v):
    i, j = positions(q, k)
    return (q @ k.mT).masked_fill(j >= i - 3, -math.inf).softmax(-1) @ v


def alibi(q, k, v):
    i, j = positions(q, k)
    slopes = 2.0 ** -torch.arange(1, 5)
    return (q @ k.mT + (j - i) * slopes[:, None, None]).softmax(-1) @ v


def softcap(q, k, v):
    return F.softmax(50 * torch.tanh(q @ k.mT / 50), -1, dtype=torch.float32).to(q.dtype) @ v


def sigmoid(q, k, v):
    return torch.sigmoid(q @ k.mT - math.log(29)) @ v


def differential(q, k, v):
    one, two = ((q * f) @ k.mT for f in (1.0, 0.5))
    return (one.softmax(-1) - 0.3 * two.softmax(-1)) @ v


def repeated(q, k, v):
    k, v = (t[:, :, None].expand(-1, -1, 2, -1, -1).reshape(2, 4, *t.shape[2:]) for t in (k, v))
    return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).contiguous()


def in_steps(q, k, v):
    scores = q @ k.mT
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (weights / weights.sum(-1, keepdim=True)) @ v


def safe(q, k, v, seen):
    """Zero for a query that sees nothing, as scaled_dot_product_attention has it."""
    scores = torch.where(seen, q @ k.mT, -math.inf)
    blind = (scores == -math.inf).all(-1, keepdim=True)
    return torch.where(blind, 0.0, scores.softmax(-1)) @ v


def divided_last(q, k, v):
    scores = q @ k.mT
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return weights @ v / weights.sum(-1, keepdim=True)


def masked(q, k, v):
    i, j = positions(q, k)
    return safe(q, k, v, (j <= i - 4) & (j % 3 != 1))


def documents(q, k, v):
    ids = torch.arange(37) // 11
    return safe(q, k, v, ids[:, None] == ids[None, :29])


def with_sinks(q, k, v):
    """GPT-OSS: columns that are put beside the scores are dropped after the softmax."""
    scores = causal_scores(q, k)
    sinks = torch.linspace(-1, 1, 4).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    every = torch.cat([scores, sinks], -1)
    every = every - every.max(dim=-1, keepdim=True).values
    return every.softmax(-1)[..., :-1] @ v


def causal_scores(q, k):
    i, j = positions(q, k)
    return (q @ k.mT / 4).masked_fill(j > i - 2, -math.inf)  # two rows see nothing


def off_by_one(q, k, v):
    return F.pad(causal_scores(q, k), (0, 1)).softmax(-1)[..., :-1] @ v


def sinks_by_hand(q, k, v):
    scores, sink = causal_scores(q, k), torch.linspace(-1, 1, 4).view(1, -1, 1, 1)
    top = torch.maximum(scores.amax(-1, keepdim=True), sink)
    e = (scores - top).exp()
    return e / (e.sum(-1, keepdim=True) + (sink - top).exp()) @ v


FORMS = {
    f.__name__: f
    for f in (plain, causal, window, blind_rows, alibi, softcap, sigmoid, differential, repeated,
              in_steps, divided_last, masked, documents, with_sinks, off_by_one, sinks_by_hand)
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_one_nest_means_what_was_written(name: str):
    args = inputs(shared=2 if name == "repeated" else 4)
    made = formed(FORMS[name], *args)
    assert len(nests(made.graph)) == 1
    scores = 2 * 4 * 37 * 29
    assert all(math.prod(made.graph.buffers[b].shape) < scores
               for n in made.graph.nodes for b in n.writes)  # fmt: skip
    wanted = FORMS[name](*(a.double() for a in args))
    (got,) = run_graph(made.graph, list(args))
    torch.testing.assert_close(got.double(), wanted, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", ["plain", "causal", "softcap", "differential"])
def test_half_precision_factors_are_read_as_they_are(name: str):
    args = inputs(dtype=torch.bfloat16)
    made = formed(FORMS[name], *args)
    (nest,) = nests(made.graph)
    (comp,) = (n for n in made.graph.nodes if isinstance(n, Comp) and nest_of(n))
    parts = [v for p in nest.inners for v in (p.row, p.key)] + [o.key for o in nest.outers]
    assert {comp.body[v].dtype.name for v in parts} == {"bf16"}
    wanted = FORMS[name](*(a.double() for a in args))
    (got,) = run_graph(made.graph, list(args))
    torch.testing.assert_close(got.double(), wanted, rtol=2e-2, atol=2e-2)


def test_one_walk_and_bounds():
    found = {name: nests(formed(FORMS[name], *inputs()).graph)[0]
             for name in ("causal", "window", "masked", "differential")}  # fmt: skip
    assert all(len(n.walks) == 1 for n in found.values())
    assert found["causal"].bound.high is not None and found["causal"].bound.low is None
    assert found["window"].bound.high is not None and found["window"].bound.low is not None
    assert found["masked"].bound.high is not None


def test_repeated_heads_are_rows():
    (nest,) = nests(formed(repeated, *inputs(shared=2)).graph)
    assert len(nest.rows) == 2


def test_the_search_leaves_a_nest_alone():
    made = formed(lambda q, k, v: plain(q, k, v).relu() + 1, *inputs())
    planned = plan(made.graph, CPU, Options())
    assert len(nests(planned.graph)) == 1
    told = [r for r in planned.refusals if "attention" in r.producer]
    assert told and all(r.reason is Reason.TEMPLATE for r in told)


def test_a_nest_is_told():
    made = formed(causal, *inputs())
    (fusion,) = made.fusions
    assert fusion.kernel == "attention" and fusion.bytes_after < fusion.bytes_before


def returned(q, k, v):
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, weights


def scanned(q, k, v):
    return (q @ k.mT).softmax(-1).cumsum(-1) @ v


def over_queries(q, k, v):
    return (q @ k.mT).softmax(-2) @ v


def linear_attention(q, k, v):
    return q @ (k.mT @ v)


def two_layers(q, k, v):
    return F.relu(q[0, 0] @ k[0, 0].mT) @ v[0, 0]


@pytest.mark.parametrize("function, reason", [
    (returned, "need the result"), (scanned, "scan"), (over_queries, None),
    (linear_attention, "no larger"), (two_layers, "weights of layers"),
])  # fmt: skip
def test_what_stays_apart(function, reason):
    made = formed(function, *inputs(keys=37))
    assert nests(made.graph) == []
    if reason is not None:
        assert any(reason in r.evidence or reason in r.reason.value for r in made.refusals)


def layers(x, w, scale, v):
    return F.layer_norm(x @ w.t(), w.shape[:1], scale) @ v.t()


@pytest.mark.parametrize(("seconds", "taken"), [(0.9, 1), (1.5, 0)])
def test_layers_with_a_norm_between_are_a_nest_only_where_that_is_faster(seconds, taken):
    """A batch's products are slower than their rates say; layers of many rows are not."""
    desk = Desk(on(captured(layers, *weights()), "cpu"), CPU, Options(), choose)
    apart_s = sum(desk._product_s(n) for n in desk.graph.nodes if isinstance(n, Extern))
    made_s = seconds * (apart_s + max(desk.prices.comp_s(c) for c in desk.graph.nodes
                                      if isinstance(c, Comp)))  # fmt: skip
    registry.TEMPLATES[ANY.name] = replace(ANY, price=lambda roles, s, p: made_s)
    assert len(nests(formed(layers, *weights()).graph)) == taken


def weights():
    return (torch.randn(2928, 416), torch.randn(64, 416), torch.randn(64), torch.randn(64, 64))


def test_without_a_template_nothing_changes():
    target = replace(CPU, templates=("pointwise_reduce/cpu",))
    graph = on(captured(plain, *inputs()), "cpu")
    assert score_nests(Plan(graph, ()), target, Options(), choose).graph == graph


@pytest.mark.parametrize("softmax", [True, False])
def test_a_target_is_asked_for_forward_and_backward(softmax: bool):
    asked = Scores(torch.float32, torch.device("cpu"), 8, 64, 70, 16, 12, softmax)
    seen: list[Nest] = []

    def match(problem):
        seen.append(nest_of(problem.comp))
        return seen[-1]

    registry.TEMPLATES[ANY.name] = replace(ANY, match=match)
    assert taken_by(asked, replace(CPU, name="asked"))
    assert [(len(n.inners), len(n.outers)) for n in seen] == [(1, 1), (2, 1), (2, 2)]
    assert not taken_by(asked, replace(CPU, templates=("pointwise_reduce/cpu",)))
    assert not taken_by(replace(asked, keys=1), replace(CPU, name="asked"))
