"""Programs that the campaign found wrong on a GPU, made small, and its first seeds."""

from __future__ import annotations

import pytest
import torch

from torchweld.api import dynamo_backend
from torchweld.exact.campaign import checks
from torchweld.exact.campaign.modules import ModuleSample
from torchweld.exact.campaign.run import Campaign, run
from torchweld.exact.programs import Input, Program

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
_EXP = "(s - s.amax(-1, keepdim=True)).exp()"


def program(inputs, *lines: str) -> Program:
    """What the last line assigns to is returned."""
    return Program(tuple(inputs), lines, (lines[-1].split(" ")[0],))


FOUND = {
    "a square, whose gradient is two products": program(
        [Input((2, 2, 65, 65), BF16, seed=1)], "y = torch.einsum('bhij,bhje->bhie', x0, x0)"
    ),
    "weights that meet their values twice": program(
        [Input((3, 2, 33, 17), BF16, seed=2), Input((3, 2, 33, 17), BF16, "gaps", seed=2)],
        "s = (x0 * 0.3) @ x1.transpose(-1, -2)",
        "w = torch.softmax(s - s.detach().amax(-1, keepdim=True), -1)",
        "y = (w + w.flip(1)) @ x0",
    ),
    "a gradient through the maximum of scores": program(
        [Input((3, 2, 101, 16), F32), Input((3, 2, 5, 16), F32, seed=3)],
        "s = x0 @ x1.mT", f"w = {_EXP} / {_EXP}.sum(-1, keepdim=True)", "y = w.tril() @ x1",
    ),
    "one more than the sum of exponentials": program(
        [Input((3, 2, 101, 16), F32, seed=2)],
        "s = F.relu(x0 @ x0.mT)", f"w = {_EXP} / (1 + {_EXP}.sum(-1, keepdim=True))", "y = w @ x0",
    ),
    "a convolution by 1 x 1 whose weight is transposed": program(
        [Input((2, 64, 16, 16), BF16), Input((64, 128, 1, 1), BF16, seed=1)],
        "y = F.conv2d(x0, x1.transpose(0, 1)).relu()",
    ),
    "the variance of an empty row": program([Input((2, 0), F32)], "y = x0.var(-1)"),
    "a factor that is read backwards": program(
        [Input((2,), F16, seed=3), Input((16, 2), F16, "permuted", seed=1)],
        "y = F.linear(x0.flip(-1), x1, x1[:, 0])",
    ),
    "the magnitude of truths": program(
        [Input((5, 5), torch.bool, seed=3)], "y = x0 / x0.abs().sum(-1, True)"
    ),
    "maxima that are scattered": program(
        [Input((7, 1, 5), F32, seed=3)],
        "y = x0.scatter_reduce(0, torch.zeros_like(x0, dtype=torch.int64), x0 * 2, 'amax')",
    ),
    "the deviation of a constant row": program(
        [Input((7,), F16, "expanded")], "y = x0.std(-1, keepdim=True)"
    ),
    "a product without itself": program([Input((64, 5), F32)], "p = x0 * x0", "y = p - p"),
    "a product less itself, behind a choice": program(
        [Input((1, 1, 7, 1), F32, seed=1)],
        "v = x0.transpose(0, -1) * 1.5", "y = torch.cat([v[:1], v, v[1:]]).var(-1)",
    ),
    "a mean much smaller than the numbers": program(
        [Input((64, 4, 64, 64), F32)], "y = torch.var_mean(x0, (0, 2, 3))[1]"
    ),
    "a quotient by a number": Program(
        (Input((9,), F32, "plain", "hard"),), ("y = x0 / 3", "z = x0.select(0, 0)"), ("y", "z")
    ),
    "means of integers": Program(
        (Input((5, 7, 9), F32), Input((5, 7, 9), torch.int64, "gaps")),
        ("y = x1.float().mean(-2)", "z = x1.float().mean((0, 2))"), ("y", "z"),
        bitwise=frozenset(("y", "z")),
    ),
    "heads that wgmma takes wrongly": program(
        [Input((3, 2, 33, 17), BF16, "expanded"), Input((3, 2, 33, 17), BF16, seed=1),
         Input((3, 2, 33, 8), BF16, "permuted", seed=2)],
        "q = F.rms_norm(x0, x0.shape[-1:])", "k = x1.roll(1, -1) * 0.5 + x1",
        "s = (q @ k.mT).transpose(-1, -2).contiguous().mT",
        "w = torch.softmax(s - s.detach().amax(-1, keepdim=True), -1).nan_to_num(0.0)",
        "y = w @ x2",
    ),
    "scores of 16 bits that are computed again for their gradient": program(
        [Input((2, 1, 5, 2), BF16, "expanded", "offset")],
        "w = ((x0 * 0.3) @ x0.mT).softmax(-1)", "y = (w / (w.sum(-1, keepdim=True) + 1e-6)) @ x0",
    ),
    "pairs of a transform, a view of it": program(
        [Input((3, 8, 16), F32)], "y = torch.fft.fft2(x0).real + x0"
    ),
    "log sigmoid": ModuleSample("nn.LogSigmoid", 0, F32, training=True, seed=3),
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def backend():
    """By its name, also where the package is not installed."""
    if "torchweld" not in torch.compiler.list_backends():
        torch._dynamo.register_backend(dynamo_backend, "torchweld")


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_stays_right(name):
    assert checks.compiled(FOUND[name], "cuda") == []


@pytest.mark.parametrize("part", range(4))
def test_nothing_is_wrong(tmp_path, part):
    seeds = range(10 * part, 10 * part + 10)
    log = run(Campaign(tmp_path, "compiled", "cuda"), seeds, processes=0)
    assert [f for f in log.finished if f.found] == []
    assert sum(bool(f.kind) for f in log.finished) > 4


@pytest.mark.parametrize("part", range(4))
def test_nothing_is_wrong_whatever_is_fast(tmp_path, part):
    """Plans for devices whose rates are drawn: small programs go the ways of large ones. 60,000,127
    is right only beside a norm in float64 that has the epsilon of eager's."""
    first = 60_000_000 + 10 * part
    seeds = [*range(first, first + 10), *([60_000_127] if part == 0 else [])]
    log = run(Campaign(tmp_path, "priced", "cuda"), seeds, processes=0)
    assert [f for f in log.finished if f.wrong] == []
    assert sum(bool(f.kind) for f in log.finished) > 4
