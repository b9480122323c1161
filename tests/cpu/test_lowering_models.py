"""Whole models through lowering and the IR's own meaning: what stays a library call, and that the
gradients are as near to float64 as eager's."""

from __future__ import annotations

import copy

import pytest
import torch

from torchweld.capture.aot import make_backend
from torchweld.capture.lower import lower
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.index_check import CHECK_INDEX
from torchweld.ir.interpret import run_graph
from torchweld.ir.nodes import Extern
from torchweld.zoo.models import load

pytest.importorskip("transformers")

PRODUCTS = {"mm", "addmm", "bmm"}
ATTENTION = {
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
}
CONVOLUTION = {"convolution", "convolution_backward"}
POOLING = {"max_pool2d_with_indices", "max_pool2d_with_indices_backward"}
EXTERNS = {
    "geglu-mlp": PRODUCTS,
    "bert-base": PRODUCTS | ATTENTION,
    "gpt2": PRODUCTS | ATTENTION,
    "llama-1b": PRODUCTS | ATTENTION,
    "vit-b16": PRODUCTS | ATTENTION | CONVOLUTION,
    "resnet50": PRODUCTS | CONVOLUTION | POOLING | {"copy_"},
    "whisper-encoder": PRODUCTS | ATTENTION | CONVOLUTION,
}
DYNAMIC = {"geglu-mlp", "bert-base"}  # traced with symbolic sizes


class Interpreted:
    """A backend that runs each lowered graph by the meaning of the IR."""

    def __init__(self) -> None:
        self.externs: set[str] = set()
        self.graphs = 0

    def compile(self, captured, options):
        lowered = lower(captured, options)
        check_graph(lowered.graph)
        self.graphs += 1
        targets = {n.target for n in lowered.graph.nodes if isinstance(n, Extern)} - {CHECK_INDEX}
        self.externs |= {t.split(".")[1] for t in targets}
        constants = list(lowered.constants.values())
        return lambda args: run_graph(lowered.graph, [*args, *constants], exact=False)


def gradients(module, args, call=None) -> torch.Tensor:
    (module if call is None else call)(*args).backward()
    return torch.cat([p.grad.double().flatten() for p in module.parameters() if p.grad is not None])


@pytest.mark.parametrize("name", EXTERNS)
def test_training(name):
    torch._dynamo.reset()
    dynamic = name in DYNAMIC
    target = load(name, "tiny", train=True, batch=3)
    model, backend = target.model, Interpreted()
    wide, eager = copy.deepcopy(model).double(), copy.deepcopy(model)
    compiled = torch.compile(
        model, backend=make_backend(backend.compile, Options()), dynamic=dynamic
    )
    precise = gradients(wide, [a.double() if a.is_floating_point() else a for a in target.args])
    errors = [
        (gradients(*how) - precise).norm() / precise.norm()
        for how in ((eager, target.args), (model, target.args, compiled))
    ]
    assert errors[1] <= 1.5 * errors[0] + 1e-7, errors
    assert backend.graphs >= 2
    assert backend.externs <= EXTERNS[name]


def test_inference_in_16_bits_is_eagers_result():
    torch._dynamo.reset()
    target = load("gpt2", "tiny", dtype=torch.bfloat16)
    backend = make_backend(Interpreted().compile, Options(numerics="eager"))
    compiled = torch.compile(target.model, backend=backend)
    with torch.no_grad():
        assert torch.equal(compiled(*target.args).logits, target.model(*target.args).logits)
