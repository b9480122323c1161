"""The first elements of rows in order, on any device, among ties, NaN, infinities, both zeros."""

from __future__ import annotations

import warnings

import torch

import torchweld

SIZES = (7, 5, 33)
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int32, torch.int16, torch.uint8, torch.int8)


def rows(dtype: torch.dtype, device: str = "cpu") -> torch.Tensor:
    """Of SIZES; those of floats have all that orders differently."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SIZES, generator=generator)
    if not dtype.is_floating_point:
        lowest = 0 if dtype == torch.uint8 else -120
        return (x * 50).clamp(lowest, 120).to(dtype).to(device)
    x[0, 0, 3] = x[1, 2] = float("nan")
    x[2, 1, 4:9] = float("-inf")
    x[3] = 0
    x[3, :, ::2] = -0.0
    x[4, 0, :30] = float("-inf")
    return x.to(dtype).to(device)


def check(function, x: torch.Tensor, d: int, kept: bool = True, stable: bool = False) -> None:
    """`function(x)`: (elements, their places) along d, which is not `kept` where there is one. The
    elements are eager's on a CPU (eager's stable sort of bfloat16 on a GPU has NaN at the other
    end, torch 2.11), and are where they are said to be, each at another place; where that is
    `stable`, which it is in eager."""
    torch.compiler.reset()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", torchweld.TorchweldWarning)
        values, places = (t.cpu() for t in torchweld.fuse(function)(x))
    x = x.cpu()
    wanted, there = function(x)
    assert not stable or torch.equal(places, there)
    if stable and x.dtype.is_floating_point:  # zeros have two signs
        known = ~wanted.isnan()
        assert torch.equal(values[known].signbit(), wanted[known].signbit())
    torch.testing.assert_close(values, wanted, rtol=0, atol=0, equal_nan=True)
    values, places = (t if kept else t.unsqueeze(d) for t in (values, places))
    torch.testing.assert_close(x.gather(d, places), values, rtol=0, atol=0, equal_nan=True)
    assert (places.sort(d).values.diff(dim=d) > 0).all()


def check_all(dtype: torch.dtype, d: int, device: str = "cpu") -> None:
    x, length = rows(dtype, device), SIZES[d]
    for k in {1, 3, min(length, 20)}:
        for largest in (True, False):
            check(lambda x, k=k, largest=largest: x.topk(k, d, largest), x, d)
    for descending in (True, False):
        asked = {"dim": d, "descending": descending, "stable": True}
        check(lambda x, asked=asked: torch.sort(x, **asked), x, d, stable=True)
    few = min(length, 4)
    values = torchweld.fuse(lambda x: (x.topk(few, d)[0], x.median(d)[0], x.kthvalue(few, d)[0]))
    with torch.no_grad():
        wanted = x.topk(few, d)[0], x.median(d)[0], x.kthvalue(few, d)[0]
        torch.testing.assert_close(values(x), wanted, rtol=0, atol=0, equal_nan=True)
    check(lambda x: x.kthvalue(min(length, 4), d), x, d, kept=False)
    check(lambda x: x.median(d, keepdim=True), x, d)


def routed(x, w, k: int):
    """The weights of the experts of each token, and which they are."""
    weights, experts = (x @ w).softmax(-1).topk(k, -1)
    return weights / weights.sum(-1, keepdim=True), experts
