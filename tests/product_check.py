"""Whether the results of a product kernel are right: against float64, and eager's arithmetic."""

from __future__ import annotations

import torch

from triton_cases import Case, expected, tensors


def problems(case: Case, got: dict[str, torch.Tensor]) -> list[str]:
    """What is wrong with each result; none if all are as exact as eager's, NaN and infinities where
    eager has them. Products are summed in float32 in another order than eager's."""
    inputs = tensors(case)
    exact, eager = (expected(case, inputs, exact=e) for e in (True, False))
    return [f"{n}: {p}" for n in case.comp.writes if (p := _problem(got[n], eager[n], exact[n]))]


def _problem(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> str:
    if got.dtype != eager.dtype or got.shape != eager.shape:
        return f"{got.dtype} {got.shape}, not {eager.dtype} {eager.shape}"
    if not got.dtype.is_floating_point:
        wrong = int((got != eager).sum())
        return f"{wrong} of {got.numel()} differ" if wrong > 1e-4 * got.numel() else ""
    if not (torch.equal(got.isnan(), eager.isnan()) and torch.equal(got.isinf(), eager.isinf())):
        return "NaN or infinities elsewhere than eager's"
    finite = eager.isfinite() & exact.isfinite()
    infinite = eager.isinf()
    if not torch.equal(got[infinite], eager[infinite]):
        return "infinities of another sign"
    mine, theirs = ((t.double() - exact)[finite] for t in (got, eager))
    exact = exact[finite].double()
    if not exact.numel():
        return ""
    scale = exact.square().mean().sqrt()
    summing = 2.0**-20 * scale  # of float32, over some thousand terms
    resolution = torch.finfo(got.dtype).eps * exact.abs()
    l2, bound = mine.norm(), 1.2 * theirs.norm() + 0.1 * resolution.norm()
    if l2 > bound + summing * exact.numel() ** 0.5:
        return f"L2 error {l2:.2e} where eager has {theirs.norm():.2e}"
    worst, bound = mine.abs().max(), 2 * theirs.abs().max() + resolution.max() + 8 * summing
    return f"error {worst:.2e}, at most {bound:.2e} allowed" if worst > bound else ""
