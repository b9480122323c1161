"""Chains on a GPU: each kind of link against float64, over widths, rows, dtypes and tiles; whole
networks, inference and training, against eager."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import chain_cases as cases
import torchweld
from product_check import problems
from torchweld.api import records
from torchweld.ir.nodes import Comp, Extern
from torchweld.targets.find import target_of
from torchweld.templates.chain.form import chain_of
from torchweld.templates.chain.schedule import Work, candidates
from triton_cases import Case, tensors, title
from triton_run import compile_in_processes, gpu_starter, launches, prepare

ROWS = 3001


def of(dtype: str) -> list[Case]:
    return [
        cases.layers(4096, (64, 64, 64), dtype),
        cases.layers(ROWS, (64, 64, 64, 64, 64), dtype, transposed=True, keep=True),
        cases.layers(ROWS, (3, 64, 64, 4), dtype, transposed=True),
        cases.layers(ROWS, (63, 128, 17), dtype, keep=True, gap=3),
        cases.layers(1, (20, 33, 7), dtype),
        cases.layers("s0", (20, 33, 7), dtype, keep=True, sizes={"s0": ROWS}),
        cases.layers(70, (64, 33, 20), dtype, batch=7),
        cases.gated(ROWS, (40, 64, 24), dtype),
        cases.backward(ROWS, (4, 33, 20), dtype),
        cases.backward(ROWS, (33, 64, 20), dtype, transposed=False),
    ]


CASES = [
    *of("bf16"), *of("f16"),
    cases.backward(ROWS, (64, 64, 64, 64, 64)),
    cases.backward("s0", (33, 64, 20), sizes={"s0": ROWS}),
]  # fmt: skip


def schedules(case: Case):
    target = target_of("cuda:0")
    work = Work(case.comp, case.buffers, chain_of(case.comp), target, case.sizes)
    return target, list(candidates(work))


@pytest.fixture(scope="module")
def compiled():
    bundles = {}
    for case in CASES:
        target, found = schedules(case)
        for n, schedule in enumerate(found):
            bundles[id(case), n] = cases.made(case, target, schedule)
    return bundles, compile_in_processes(s for b in bundles.values() for s in b.sources)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{title(c)}-{dtype_of(c)}")
def test_as_exact_as_eager_in_all_tiles(case: Case, compiled):
    bundles, launchers = compiled
    for n in range(len(schedules(case)[1])):
        made, bundle = tensors(case, "cuda"), bundles[id(case), n]
        prepare(case, bundle, made)
        launches(case, bundle, made, gpu_starter(launchers))
        torch.cuda.synchronize()
        assert problems(case, {n: t.cpu() for n, t in made.items()}) == []


def dtype_of(case: Case) -> str:
    return str(next(iter(case.buffers.values())).dtype)


def test_results_repeat(compiled):
    bundles, launchers = compiled
    case = CASES[1]
    found = []
    for _ in range(2):
        made, bundle = tensors(case, "cuda"), bundles[id(case), 0]
        prepare(case, bundle, made)
        launches(case, bundle, made, gpu_starter(launchers))
        found.append({n: made[n].clone() for n in case.comp.writes})
    assert all(torch.equal(found[0][n], found[1][n]) for n in case.comp.writes)


# whole networks


def mlp(*widths: int, act=nn.ReLU, bias: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = []
    for depth, columns in pairwise(widths):
        layers += [nn.Linear(depth, columns, bias=bias), act()]
    return nn.Sequential(*layers[:-1])


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(48, 64), nn.Linear(48, 64), nn.Linear(64, 48)

    def forward(self, x):
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


NETS = {
    "four of 64": (lambda: mlp(64, 64, 64, 64, 64), (1 << 16, 64)),
    "no biases": (lambda: mlp(64, 64, 64, 64, bias=False), (1 << 16, 64)),
    "nerf": (lambda: mlp(63, 128, 128, 4), (40001, 63)),
    "policy": (lambda: mlp(48, 64, 64, 12, act=nn.Tanh), (4096, 48)),
    "gelu": (lambda: mlp(33, 64, 20, act=nn.GELU), (64, 513, 33)),
    "gated": (Gated, (30000, 48)),
}


def error(found: torch.Tensor, precise: torch.Tensor) -> float:
    return float((found.double() - precise).norm() / precise.norm())


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=("bf16", "f16"))
@pytest.mark.parametrize("name", NETS)
def test_networks_and_their_gradients(name: str, dtype: torch.dtype):
    make, shape = NETS[name]
    torch._dynamo.reset()
    eager = make().cuda().to(dtype)
    x = torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True)
    precise, fused = copy.deepcopy(eager).double(), torchweld.fuse(copy.deepcopy(eager))
    target = torch.randn_like(eager(x))
    results = []
    for net, given in ((eager, x), (fused, x), (precise, x.double())):
        given = given.detach().requires_grad_()
        made = net(given)
        grads = torch.autograd.grad(made, (given, *net.parameters()), target.to(made.dtype))
        results.append((made.detach(), *grads))
    for theirs, mine, right in zip(*results, strict=True):
        allowed = 1.5 * error(theirs, right) * (1 + 4 / mine.numel() ** 0.5)
        assert error(mine, right) <= allowed + torch.finfo(dtype).eps / 4


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_four_layers_are_one_kernel_forward(dtype: torch.dtype):
    torch._dynamo.reset()
    fused = torchweld.fuse(mlp(64, 64, 64, 64, 64).cuda().to(dtype))
    x = torch.randn(1 << 18, 64, device="cuda", dtype=dtype, requires_grad=True)
    made = fused(x)
    made.backward(torch.randn_like(made))
    (forward,) = (r.graph for r in records(fused) if r.kind == "forward")
    assert not any(isinstance(n, Extern) for n in forward.nodes)
    chains = [n for n in forward.nodes if isinstance(n, Comp) and chain_of(n) is not None]
    assert len(chains) == 1
