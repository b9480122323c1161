"""Attention of few queries on a GPU: against float64 and eager, and again with the same bits."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

import torchweld
from attention_cases import bundle_of, every
from product_check import problems
from torchweld.ir.nodes import Comp
from torchweld.templates.attention.schedule import attention_of
from triton_cases import Case, tensors
from triton_run import compile_in_processes, gpu_starter, launches, prepare

ALL = [c for dtype in ("bf16", "f16") for c in every(dtype)]


@pytest.fixture(scope="module")
def compiled() -> dict:
    return compile_in_processes([s for c in ALL for s in bundle_of(c).sources])


@pytest.mark.parametrize("case", ALL, ids=lambda c: c.name)
def test_results_are_as_exact_as_eager(case: Case, compiled: dict):
    made, bundle = tensors(case, "cuda"), bundle_of(case)
    prepare(case, bundle, made)
    found = []
    for _ in range(4):
        made["y"].fill_(1)
        launches(case, bundle, made, gpu_starter(compiled))
        found.append(made["y"].cpu())
        assert not any(made[n].any() for n in bundle.zeroed)
    assert problems(case, {"y": found[0]}) == []
    assert all(torch.equal(found[0], again) for again in found)


class Step(torch.nn.Module):
    """One position more, into a cache of fixed length."""

    def __init__(self, heads: int, shared: int, width: int) -> None:
        super().__init__()
        self.heads, self.shared = heads, shared
        kinds = {"device": "cuda", "dtype": torch.bfloat16}
        self.q = torch.nn.Linear(width, width, bias=False, **kinds)
        self.kv = torch.nn.Linear(width, 2 * width // heads * shared, bias=False, **kinds)

    def forward(self, x, keys, values, at):
        b, n, width = x.shape
        d = width // self.heads
        q = self.q(x).view(b, n, self.heads, d).transpose(1, 2)
        k, v = self.kv(x).view(b, n, 2, self.shared, d).permute(2, 0, 3, 1, 4)
        keys, values = keys.index_copy(2, at, k), values.index_copy(2, at, v)
        seen = torch.arange(keys.shape[2], device=x.device) <= at[-1]
        mixed = F.scaled_dot_product_attention(q, keys, values, seen[None, None, None],
                                               enable_gqa=True)  # fmt: skip
        return mixed.transpose(1, 2).reshape(b, n, width), keys, values


@pytest.mark.parametrize("at", (0, 5, 299))
@torch.no_grad()
def test_a_step_of_decoding(at: int):
    torch.manual_seed(0)
    step = Step(8, 2, 512)
    keys, values = torch.randn(2, 3, 2, 300, 64, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(3, 1, 512, device="cuda", dtype=torch.bfloat16)
    args = (x, keys, values, torch.tensor([at], device="cuda"))
    fused = torchweld.fuse(step, args)
    found, again = fused(*args), fused(*args)
    (record,) = torchweld.records(fused)
    kernels = [n for n in record.graph.nodes if isinstance(n, Comp)]
    assert any(attention_of(n) for n in kernels)
    assert {n.name for n in kernels} == set(record.bundles)
    exact = copy.deepcopy(step).double()(x.double(), keys.double(), values.double(), args[3])
    for mine, twice, eager, right in zip(found, again, step(*args), exact, strict=True):
        assert torch.equal(mine, twice)
        errors = [float((y.double() - right).norm() / right.norm()) for y in (mine, eager)]
        assert errors[0] <= 1.5 * errors[1] + 2**-10
