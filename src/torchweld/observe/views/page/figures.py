"""What the page's plots are drawn from, as JSON: launches, points of the roofline, memory."""

from __future__ import annotations

import json

from torchweld.observe.record.profile import Kernel, Profile
from torchweld.observe.record.report import Report
from torchweld.observe.views.rows import operations_text

MOST_LAUNCHES = 6000  # of a timeline; a longer one is cut, and says so


def figures_json(report: Report) -> str:
    """Safe inside a script element."""
    figures = {
        "ways": [
            {"name": w.name, "ms": w.timing.median_ms, "iqr": w.timing.iqr_ms}
            for w in report.ways if w.timing
        ],
        "roofline": _roofline(report.profiles) if report.profiles else None,
        "profiles": [_profile(profile) for profile in report.profiles],
    }  # fmt: skip
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


def _profile(profile: Profile) -> dict:
    launches = profile.launches[:MOST_LAUNCHES]
    return {
        "way": profile.way,
        "step": _short(profile.totals.step_us),
        "kernels": [_kernel(kernel) for kernel in profile.kernels],
        "launches": [[n.kernel, _short(n.start_us), _short(n.duration_us)] for n in launches],
        "memory": _memory(profile),
    }


def _kernel(kernel: Kernel) -> list:
    """name, kind, operations, module, regime, microseconds of a call, bytes, flops, product"""
    calls = max(1, kernel.calls)
    return [
        kernel.name[:160], kernel.kind, operations_text(kernel.places),
        kernel.places[0].module if kernel.places else "", kernel.regime,
        _short(kernel.measured_us / calls), kernel.bytes and kernel.bytes / calls,
        kernel.flops and kernel.flops / calls, kernel.product,
    ]  # fmt: skip


def _memory(profile: Profile) -> dict | None:
    memory = profile.memory
    if memory is None:
        return None
    return {
        "peak": memory.peak_bytes,
        "at": memory.peak_at_us,
        "line": [[_short(when), size] for when, size in memory.timeline],
    }


def _short(microseconds: float) -> float:
    return round(microseconds, 3)
