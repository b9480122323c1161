"""Tensors of more than 2^31 elements, and numbers of more than 32 bits made of indices: whatever
dimension a kernel goes along, its addresses have 64 bits where they need them."""

from __future__ import annotations

import fcntl
import gc
import tempfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import torchweld

BF16 = torch.bfloat16
NEEDED = 60 << 30  # bytes of the largest of these programs, in eager and in ours


@pytest.fixture(autouse=True)
def _alone():
    """One at a time on the device."""
    if torch.cuda.get_device_properties(0).total_memory < NEEDED:
        pytest.skip("the device has too little memory")
    torch.compiler.reset()
    torch.manual_seed(0)
    with Path(tempfile.gettempdir(), "torchweld-far").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        gc.collect()
        torch.cuda.empty_cache()


def numbers(*shape: int, dtype=BF16) -> torch.Tensor:
    made = torch.empty(shape, dtype=dtype, device="cuda")
    return made.uniform_(-1, 1) if dtype.is_floating_point else made.random_(0, 100)


def places(count: int, of: int) -> torch.Tensor:
    return torch.randint(of, (count,), device="cuda")


COLUMNS = 131_080  # of 16,400 rows: 2.15e9 elements
INT8 = torch.int8


def tall(dtype=BF16):
    return (numbers(16_400, COLUMNS, dtype=dtype),)


# name: (function, inputs)
PROGRAMS = {
    "sums of columns": (lambda x: x.sum(0, dtype=torch.float32), tall),
    "largest of columns": (lambda x: (x.amax(0), x.argmax(0)), lambda: tall(INT8)),
    "end of columns": (lambda x: x[-300:, :8].cumsum(0, dtype=torch.float32), tall),
    "a softmax across": (lambda x: x.softmax(0), lambda: (numbers(70, 31_000_000),)),
    "a scan across": (
        lambda x: x.cumsum(1, dtype=torch.int8), lambda: (numbers(3, 90, 8_000_000, dtype=INT8),)
    ),
    "a norm of a middle dimension": (
        lambda x: F.layer_norm(x.transpose(1, 2), (40,)), lambda: (numbers(2_000, 40, 27_000),)
    ),
    "turned": (lambda x: x.t().contiguous() + 1, lambda: tall(INT8)),
    "joined": (
        lambda x, y: torch.cat([x, y], 1).clamp(min=3),
        lambda: (*tall(INT8), numbers(16_400, 77, dtype=INT8)),
    ),
    "apart": (
        lambda x: torch.stack([x[:, 0] + 1, x[:, 1] - 1]),
        lambda: (numbers(370, 2, 3_000_000, dtype=INT8),),
    ),
    "all": (lambda x: (x.view(-1).argmax(), x.abs().amax()), lambda: tall(INT8)),
    "a window": (lambda x: F.max_pool2d(x, 2), lambda: (numbers(600, 64, 240, 240),)),
    "a convolution": (
        lambda x, w: F.relu(F.conv2d(x, w, padding=1)),
        lambda: (numbers(600, 64, 240, 240), numbers(64, 64, 3, 3)),
    ),
    "a depthwise convolution": (
        lambda x, w: F.relu(F.conv2d(x, w, padding=1, groups=64)),
        lambda: (numbers(600, 64, 240, 240), numbers(64, 1, 3, 3)),
    ),
    "rows by place": (
        lambda x, i: F.embedding(i, x).sum(-1, dtype=torch.float32),
        lambda: (*tall(), places(999, 16_400)),
    ),
    "columns by place": (
        lambda x, i: x[:, i % 1000].sum(0, dtype=torch.float32),
        lambda: (*tall(), places(999, COLUMNS)),
    ),
    "sums by place": (
        lambda x, i: torch.zeros(20_000, COLUMNS, device="cuda", dtype=BF16).index_add(0, i, x),
        lambda: (numbers(777, COLUMNS), places(777, 20_000)),
    ),
    "a product with what is computed": (
        lambda x, w: x @ (w.to(BF16) * 0.01),
        lambda: (numbers(64, 16_400), numbers(16_400, COLUMNS, dtype=INT8)),
    ),
    "a batch of products": (
        lambda x, y: (x @ y).relu(),
        lambda: (numbers(3_600, 16, 38_400), numbers(3_600, 38_400, 16)),
    ),
    "a product of many rows": (
        lambda x, w: F.gelu(x @ w), lambda: (numbers(16_400, 96), numbers(96, COLUMNS))
    ),
    "a product of many rows, float32": (
        lambda x, w: (x @ w).relu(),
        lambda: [numbers(*s, dtype=torch.float32) for s in ((16_400, 40), (40, COLUMNS))],
    ),
    "attention with a mask": (
        lambda q, k, v, m: (q @ k.mT * 0.1 + m).softmax(-1) @ v,
        lambda: (*(numbers(16, 15, 3_000, 64) for _ in range(3)), numbers(16, 15, 3_000, 3_000)),
    ),
    "attention of tokens that are far apart": (
        lambda q, k, v: (q @ k.mT * 0.1).softmax(-1) @ v,
        lambda: [numbers(500, 70_000, 64)[:, ::200].transpose(0, 1) for _ in range(3)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_more_elements_than_32_bits_count(name):
    program, inputs = PROGRAMS[name]
    inputs = inputs()
    with torch.no_grad():
        wanted = program(*inputs)
        found = torchweld.fuse(program)(*inputs)
    one = isinstance(wanted, torch.Tensor)
    for a, b in [(found, wanted)] if one else zip(found, wanted):
        assert a.shape == b.shape
        for rows, expected in zip(a.reshape(-1).split(1 << 28), b.reshape(-1).split(1 << 28)):
            torch.testing.assert_close(rows, expected, rtol=0.02, atol=0.05)


def test_gradients_of_columns():
    """Of a bias, which is their sum."""
    x = numbers(16_400, 64)
    weight, bias = numbers(COLUMNS, 64), numbers(COLUMNS)
    given = [t.requires_grad_() for t in (weight, bias)]

    def loss(x, weight, bias):
        return F.silu(F.linear(x, weight, bias)).sum(dtype=torch.float32)

    wanted = torch.autograd.grad(loss(x, *given), given)
    found = torch.autograd.grad(torchweld.fuse(loss)(x, *given), given)
    for a, b in zip(found, wanted):
        assert (a.float() - b.float()).norm() <= 0.01 * b.float().norm()


@pytest.mark.parametrize("step", [30_000_000, -30_000_000, 300_000_000])
@pytest.mark.parametrize("columns", [100, 5_000])
def test_numbers_of_indices(columns, step):
    def program(x):
        return (x + torch.arange(columns, device=x.device) * step).amax(-1)

    x = torch.arange(7 * columns, device="cuda").view(7, columns)
    assert torch.equal(torchweld.fuse(program)(x), program(x))
