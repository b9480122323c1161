"""What the page's plots are drawn from, as JSON: launches, points of the roofline, memory."""

from __future__ import annotations

import json

from torchweld.observe.record.profile import Kernel, Profile
from torchweld.observe.record.report import Report
from torchweld.observe.views.rows import KernelRow, kernel_rows, operations_text
from torchweld.observe.views.strip import APART, Strips

MOST_LAUNCHES = 6000  # of a timeline; a longer one is cut, and says so


def figures_json(report: Report, beside: Strips | None = None) -> str:
    """Safe inside a script element. `beside`: the strips whose numbers the timelines have, too."""
    peaks = {way.name: way.peak_bytes for way in report.ways}
    marked = _numbers(beside)
    figures = {
        "roofline": _roofline(report.profiles) if report.profiles else None,
        "profiles": [_profile(p, marked.get(p.way, {}), peaks.get(p.way)) for p in report.profiles],
    }
    return json.dumps(figures, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def product_rates(profiles: list[Profile]) -> dict[str, float]:
    """Rates of products in the types that the model has products in."""
    used = {k.dtype for profile in profiles for k in profile.kernels if k.product}
    rates = profiles[0].roofline.matmul_flops_per_s
    return {dtype: rate for dtype, rate in rates.items() if dtype in used}


def _roofline(profiles: list[Profile]) -> dict:
    roofline = profiles[0].roofline
    return {
        "memory": roofline.memory_bytes_per_s,
        "cache": roofline.cache_bytes_per_s,
        "vector": roofline.vector_flops_per_s,
        "products": product_rates(profiles),
    }


def _numbers(beside: Strips | None) -> dict[str, dict[int, int]]:
    """For each way: the number of the group that a kernel belongs to, by the kernel's id."""
    both = (beside.before, beside.after) if beside else ()
    return {s.way: {k.id: b.group for b in s.blocks for k in b.row.kernels} for s in both}


def _profile(profile: Profile, numbers: dict[int, int], peak_bytes: int | None) -> dict:
    """`peak_bytes`: as the report measured it, with what the way keeps between calls."""
    launches = profile.launches[:MOST_LAUNCHES]
    return {
        "way": profile.way,
        "step": _short(profile.totals.step_us),
        "kernels": [_kernel(kernel, numbers.get(kernel.id, APART)) for kernel in profile.kernels],
        "launches": [[n.kernel, _short(n.start_us), _short(n.duration_us)] for n in launches],
        "points": [_point(row) for row in kernel_rows(profile) if _has_work(row)],
        "memory": _memory(profile, peak_bytes),
    }


def _kernel(kernel: Kernel, number: int) -> list:
    """name, kind, operations, module, number of its group"""
    return [
        kernel.name[:160], kernel.kind, operations_text(kernel.places),
        kernel.places[0].module if kernel.places else "", number,
    ]  # fmt: skip


def _has_work(row: KernelRow) -> bool:
    return row.measured_us > 0 and bool(row.bytes) and bool(row.flops)


def _point(row: KernelRow) -> list:
    """operations, name, module, regime, calls, microseconds of all, flop for each byte, flop/s"""
    return [
        row.operations or row.name[:80], row.name[:160], row.module, row.regime, row.calls,
        _short(row.measured_us), row.flops / row.bytes, row.flops / row.measured_us * 1e6,
    ]  # fmt: skip


def _memory(profile: Profile, peak_bytes: int | None) -> dict | None:
    memory = profile.memory
    if memory is None:
        return None
    return {
        "peak": memory.peak_bytes if peak_bytes is None else peak_bytes,
        "at": memory.peak_at_us,
        "line": [[_short(when), size] for when, size in memory.timeline],
    }


def _short(microseconds: float) -> float:
    return round(microseconds, 3)
