"""The campaign's own parts: seeds, logs, shrinking, the interpreter after each pass."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils._pytree import tree_leaves

from torchweld.capture import alike
from torchweld.core.options import Options
from torchweld.exact.campaign import (
    __main__,
    checks,
    gated,
    images,
    movement,
    operators,
    parts,
    staged,
)
from torchweld.exact.campaign.cases import KINDS, USUAL, kind_of
from torchweld.exact.campaign.record import Finished, Log, write_case
from torchweld.exact.campaign.run import Campaign, run
from torchweld.exact.campaign.staged import _LEFT_OUT, Interpreter, steps, target_named
from torchweld.exact.programs import Input, Program
from torchweld.exact.torch_private import operator_samples, samples_of
from torchweld.passes.table import PASSES, Context
from torchweld.rewrite.rules import RULES

TRACE = Program(
    (Input((1, 4), torch.float32),),
    ("v0 = torch.sin(x0) * 2", "v1 = torch.trace(v0)", "v2 = v1.exp()"),
    ("v2",),
)


def test_the_gradient_of_a_trace_is_right_after_each_pass():
    for shape in ((1, 4), (7, 1), (3, 5)):
        assert checks.interpreted(replace(TRACE, inputs=(Input(shape, torch.float32),))) == []


def wrong(plan, context):
    """A pass that forgets to multiply."""
    graph = plan.graph
    nodes = [replace(n, stores=tuple(replace(s, value=0) for s in n.stores)) for n in graph.nodes]
    return replace(plan, graph=replace(graph, nodes=tuple(nodes)))


@pytest.fixture
def broken(monkeypatch):
    name = "contiguous rows"
    monkeypatch.setitem(PASSES, name, replace(PASSES[name], run=wrong))


def test_the_pass_that_went_wrong_is_named(broken):
    interpreter = Interpreter()
    interpreter.fuse(lambda x: (x.sin(),))(torch.randn(5))
    told = "inference, pass 'contiguous rows', result 0: 5 of 5 elements differ"
    assert interpreter.found == [told]


def test_a_failure_is_made_small(broken, tmp_path):
    program = Program(
        (Input((3, 5), torch.float32, "gaps"), Input((5,), torch.float32)),
        ("v0 = x0 * 2", "v1 = x1.flip(0)", "v2 = v0.cos()", "v3 = v2 + v1"), ("v3", "v1"),
    )  # fmt: skip
    small, found = checks.shrunk(program, ["wrong"], checks.interpreted)
    assert len(small.lines) == 1 and small.inputs[0].layout == "plain"
    assert "contiguous rows" in found[0]
    text = write_case(small, found, tmp_path, "interpreted", "cpu").read_text()
    assert text.startswith("# ") and "torchweld.fuse(program)" in text


@pytest.mark.parametrize("device", ["cpu", "H100", "A100"])
def test_the_passes_are_those_of_the_target(device):
    """Every pass that changes what a graph means, in order."""
    target = target_named(device)
    found = [name for name, _ in steps(target, Context(target, Options()))]
    rules = [rule.name for rule in RULES]
    assert found[: len(rules)] == rules
    assert set(target.passes) - set(found) <= {"rewrite", *_LEFT_OUT}
    last = ["prepared"] if target.kind == "cuda" else []
    assert [*(n for n in target.passes if n in found), *last] == found[len(rules) :]


def test_what_kernels_of_a_gpu_are_generated_of_is_interpreted(monkeypatch):
    def forgets(comp, buffers, hints):
        return replace(comp, stores=tuple(replace(s, value=0) for s in comp.stores))

    monkeypatch.setattr(staged, "prepared_comp", forgets)
    interpreter = Interpreter(device="H100")
    interpreter.fuse(lambda x: (x.sin(),))(torch.randn(5))
    assert interpreter.found == ["inference, pass 'prepared', result 0: 5 of 5 elements differ"]


# The backward makes `s`, which the forward has in memory, again.
SCORES = Program(
    tuple(Input((2, 2, 17, 2), torch.float16, values=v) for v in ("offset", "normal", "normal")),
    ("s = x0 @ x1.mT / 1.5", "s = (s * 0.5).to(torch.float32)", "t = s.log_softmax(-1).exp()",
     "y = (t + t.flip(1)).to(x2.dtype) @ x2"), ("y",),
)  # fmt: skip


def test_what_kernels_round_differently_is_seen(monkeypatch):
    """In float64, as passes are compared, it is not."""
    assert checks.interpreted(SCORES) == []
    monkeypatch.setattr(alike, "round_alike", lambda forward, backward: None)
    found = checks.interpreted(SCORES)
    assert found and all(f.startswith("planned, gradient of x") for f in found)


def test_a_seed_is_what_it_was_before_kinds_were_added():
    assert {kind_of(seed) for seed in range(300)} == set(USUAL)
    assert set(KINDS) - set(USUAL) == {"part", "unread", "gated", "image", "integer"}
    assert {kind_of(s, ("part",)) for s in range(3)} == {"part"}
    found = [kind_of(seed, ("part", "layer")) for seed in range(30)]
    assert set(found) == {"part", "layer"}


def test_most_programs_with_parts_run():
    drawn = [parts.program(seed) for seed in range(60)]
    assert drawn == [parts.program(seed) for seed in range(60)]
    assert sum(p is not None for p in drawn) > 45


@pytest.mark.parametrize("kind", [gated, images])
def test_most_programs_of_networks_run(kind):
    drawn = [kind.program(seed) for seed in range(40)]
    assert drawn == [kind.program(seed) for seed in range(40)]
    assert sum(p is not None for p in drawn) > 25


def test_operators_have_samples():
    """What is expected of torch's private records."""
    relu = next(o for o in operator_samples() if o.name == "nn.functional.relu")
    sample = next(samples_of(relu, torch.float32))
    assert torch.equal(relu.op(sample.input, *sample.args, **sample.kwargs), sample.input.relu())
    for operator in (relu, next(o for o in operator_samples() if o.name == "index_add")):
        torch.manual_seed(1)
        own = operator.sample_inputs("cpu", torch.float32, requires_grad=False)
        own = [tree_leaves((s.input, s.args, s.kwargs)) for s in own]
        torch.manual_seed(1)
        found = samples_of(operator, torch.float32)
        found = [tree_leaves((s.input, s.args, s.kwargs)) for s in found]
        torch.testing.assert_close(found, own, rtol=0, atol=0)
    assert torch.bfloat16 in relu.dtypes and relu.variant_test_name == ""


def test_a_seed_is_always_the_same_program():
    assert [movement.program(s) for s in range(10)] == [movement.program(s) for s in range(10)]
    assert [operators.sample(s) for s in range(2)] == [operators.sample(s) for s in range(2)]


def test_a_campaign_goes_on_where_it_was_stopped(tmp_path):
    campaign = Campaign(tmp_path, kinds=("movement",))
    first = run(campaign, range(3), processes=0)
    with campaign.log.open("a") as file:
        file.write('{"seed": 3, "ki')  # cut off
    told = []
    both = run(campaign, range(5), 0, tell=told.append)
    assert [f.seed for f in told] == [3, 4] and both.seeds == frozenset(range(5))
    lines = [json.loads(line) for line in campaign.log.read_text().splitlines()]
    assert [d["seed"] for d in lines] == list(range(5))
    assert Log(campaign.log).finished[:3] == first.finished
    lists = {name: tuple(lines[0][name]) for name in ("found", "limits")}
    assert Finished(**{**lines[0], **lists}) == first.finished[0]


def _commands_in_the_docs():
    text = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
    return re.findall(r"python -m torchweld\.exact\.campaign ([^#\n`]*)", text)


@pytest.mark.parametrize("command", _commands_in_the_docs())
def test_commands_of_the_docs_are_taken(monkeypatch, command):
    """No campaign is run: only what the parser refuses would be told."""
    asked = []
    nothing = SimpleNamespace(finished=())
    monkeypatch.setattr(__main__, "run", lambda campaign, *_: asked.append(campaign) or nothing)
    assert __main__.main(command.split()) == 0 and asked


def test_a_check_of_a_cpu_is_refused_on_a_gpu(capsys):
    with pytest.raises(SystemExit):
        __main__.main(["--device", "cuda", "--check", "scheduled"])
    assert "compiled, priced or replayed" in capsys.readouterr().err
