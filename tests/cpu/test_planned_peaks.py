"""The memory that plans of whole models need is not above that of their operations one by one, on a
CPU and on a GPU. Predicted from lifetimes and layouts: nothing runs fused."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch.overrides import TorchFunctionMode

import torchweld
import torchweld.pipeline
from torchweld.core.dtypes import to_torch
from torchweld.ir.nodes import Extern, Graph, View
from torchweld.ir.size import hint
from torchweld.passes.table import PASSES
from torchweld.runtime.budget import fullest
from torchweld.runtime.load import _reordered
from torchweld.runtime.memory import assign
from torchweld.runtime.placement import lifetimes, peak_bytes, place, scratch_lifetimes
from torchweld.targets.find import named_target
from torchweld.templates.library.calls import workspace_bytes
from torchweld.zoo import models

SIZES = {  # those of bench/gpu.py, but fewer of whisper, whose layers are cut apart: eager is slow
    "geglu-mlp": (64, 128), "bert-base": (32, 128), "gpt2": (8, 1024), "llama-1b": (1, 2048),
    "vit-b16": (64, None), "resnet50": (64, None), "whisper-encoder": (2, None),
}  # fmt: skip
CASES = [
    *(("cuda", name, train) for name in models.TABLE for train in (False, True)),
    *(("cpu", name, True) for name in ("bert-base", "resnet50")),
    ("cpu", "vit-b16", False),
]
SLACK = 0.02
ABOVE = {  # a kernel of two gradients holds both; a copy of what the forward has saved
    ("resnet50", "cpu", "backward"): 0.38, ("resnet50", "cuda", "backward"): 0.17,
}  # fmt: skip


class WithoutNumbers(TorchFunctionMode):
    """Weights are as memory comes, or zero where a normal number is drawn until it lies between
    bounds: to draw a billion of them takes seconds, and none is read."""

    DRAWN = torch.Tensor.normal_, torch.Tensor.uniform_
    DRAWING = "torch.nn.init", "transformers.initialization"

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in self.DRAWN:
            return args[0].zero_()
        if getattr(function, "__module__", "") in self.DRAWING:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return function(*args, **kwargs)


class Stop(BaseException):
    """Everything is planned, nothing is to run."""


@dataclass
class Stub:
    """In the place of a program: a forward gives tensors without memory, the others end the
    call."""

    kind: str
    graph: Graph
    record: object = None

    def __call__(self, args):
        if self.kind != "forward":
            raise Stop
        return [self._made(o) if isinstance(o, View) else o for o in self.graph.outputs]

    def _made(self, view: View):
        dtype = to_torch(self.graph.buffers[view.buffer].dtype)
        shape = [hint(n, self.graph.hints) for n in view.shape]
        return torch.zeros((), dtype=dtype).expand(shape)


def on_gpu(graph: Graph) -> Graph:
    return replace(
        graph, buffers={n: replace(b, device="cuda:0") for n, b in graph.buffers.items()}
    )


@pytest.fixture
def plans(monkeypatch, request):
    """(kind, graph as lowered, graph as planned, its kernels), for each graph of what is called."""
    pipeline, lowered, found = torchweld.pipeline, [], []
    lower, plan = pipeline.lower, PASSES["plan"]

    def load(graph, bundles, constants, options, *, kind, **rest):
        found.append((kind, lowered[-1], graph, bundles))
        return Stub(kind, graph)

    def kept(captured, options, *layers):
        lowered.append(lower(captured, options).graph)  # with the layers that are left out
        return lower(captured, options, *layers)

    monkeypatch.setattr(pipeline, "lower", kept)
    monkeypatch.setattr(pipeline, "load", load)
    monkeypatch.setattr(pipeline.PlanCache, "get", lambda *args: None)
    monkeypatch.setattr(pipeline.PlanCache, "put", lambda *args: None)
    if request.param == "cuda":
        monkeypatch.setattr(pipeline, "target_of", lambda device: named_target("H100"))
        there = replace(plan, run=lambda p, c: plan.run(replace(p, graph=on_gpu(p.graph)), c))
        monkeypatch.setitem(PASSES, "plan", there)
    torch._dynamo.reset()
    return found


def needed(graph: Graph, bundles, frees_inputs: bool) -> int:
    """Bytes that a call of the program holds at its fullest moment."""
    calls = [n for n in graph.nodes if isinstance(n, Extern)]
    workspaces = {n.name: workspace_bytes(n, graph) for n in calls}
    graph = _reordered(graph, {}, workspaces, frees_inputs)
    placed = place(graph, bundles, {}, workspaces, frees_inputs)
    device = next(iter(graph.buffers.values())).device

    def lives(*kinds):
        return lifetimes(graph.buffers, placed.kinds, placed.uses, device, kinds, graph.hints)

    scratch = scratch_lifetimes(placed.scratch, device, graph.hints)
    given = ("input",) if frees_inputs else ()
    others = fullest(lives("output", "extern", "own", *given))
    return assign(lives("arena") + scratch).total + others


@pytest.mark.parametrize(("plans", "name", "train"), CASES, indirect=["plans"])
def test_zoo(plans, name, train, request):
    batch, length = SIZES[name]
    with WithoutNumbers():
        target = models.load(
            name, "cpu", dtype=torch.bfloat16, train=train, batch=batch, length=length
        )
    with torch.set_grad_enabled(train), pytest.raises(Stop):
        torchweld.fuse(target.model)(*target.args, **(target.kwargs or {})).backward()
    assert {kind for kind, *_ in plans} == ({"forward", "backward"} if train else {"inference"})
    device = request.node.callspec.params["plans"]
    for kind, lowered, graph, bundles in plans:
        frees = kind == "backward"
        apart, found = peak_bytes(lowered, {}, {}, frees), needed(graph, bundles, frees)
        slack = ABOVE.get((name, device, kind), SLACK)
        assert found <= apart * (1 + slack), f"{kind}: {found / apart:.3f} of operations one by one"
