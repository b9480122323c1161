"""Places among sorted numbers, on any device: equal numbers, NaN, infinities, rows out of order."""

from __future__ import annotations

import warnings

import torch

import torchweld

DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32,
    torch.int16, torch.uint8,
)  # fmt: skip
LENGTHS = (1, 2, 3, 7, 8, 17, 100)


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator) * 9
    return (x.abs() if dtype == torch.uint8 else x).to(dtype)


def same(function, *given: torch.Tensor, kernels: int | None = None, within: float = 0) -> None:
    """The results are eager's, to the bit if not `within` an error; of so many `kernels`."""
    torch.compiler.reset()
    fused = torchweld.fuse(function)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", torchweld.TorchweldWarning)
        found, wanted = fused(*given), function(*given)
    for a, b in zip(found, wanted):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=within, atol=within, equal_nan=True)
    (record,) = torchweld.records(fused)
    assert kernels is None or len(record.graph.nodes) == kernels


def check_one_row(dtype: torch.dtype, length: int, device: str = "cpu") -> None:
    ordered = numbers((length,), dtype).sort().values.to(device)
    values = numbers((5, 33), dtype).to(device)
    values[2, :length] = ordered[:33]
    same(
        lambda b, v: (
            torch.searchsorted(b, v), torch.searchsorted(b, v, side="right", out_int32=True),
            torch.bucketize(v, b), torch.bucketize(v, b, right=True, out_int32=True)),
        ordered, values,
    )  # fmt: skip


def check_rows(device: str = "cpu") -> None:
    """Each among its own, as eager's search goes where there is no order."""
    ordered, values = numbers((6, 3, 19), torch.float32).sort(-1).values, torch.randn(6, 3, 41)
    values[:, :, 0], values[:, :, 1], values[:, :, 2] = torch.nan, torch.inf, -torch.inf
    ordered[1] = ordered[1].flip(-1)
    ordered[2, :, -4:] = torch.nan
    ordered[3, :, 5:] = torch.inf
    ordered[4] = 0
    values[4, :, ::2] = -0.0
    given = ordered.to(device), values.to(device)
    same(lambda b, v: (torch.searchsorted(b, v), torch.searchsorted(b, v, right=True)), *given)
    b, v = ordered.transpose(0, 1), values.transpose(0, 1)
    same(lambda b, v: (torch.searchsorted(b, v),), b.to(device), v.to(device))


def check_interpolated(device: str = "cpu") -> None:
    """Between the numbers of a row that are next to each value, as for the second samples along
    NeRF's rays: a running sum, and a kernel that searches, reads by the places that it finds, which
    are known to be of the row, and computes."""

    def program(steps: torch.Tensor, values: torch.Tensor):
        ordered = steps.cumsum(-1)
        above = torch.searchsorted(ordered, values, right=True).clamp(1, ordered.shape[-1] - 1)
        low, high = ordered.gather(-1, above - 1), ordered.gather(-1, above)
        return ((values - low) / (high - low),)

    torch.manual_seed(0)
    steps, values = torch.rand(300, 31, device=device) + 0.1, torch.rand(300, 65, device=device) * 9
    same(program, steps, values, kernels=2, within=1e-4)
