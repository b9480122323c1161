"""Errors of kernels alone: of a right kernel as small as ATen's, of a wrong one large."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

import torchweld
from torchweld.ir.nodes import Comp
from torchweld.observe.report import kernel_errors
from torchweld.observe.report.kernel_errors import kernel_error, with_kernel_errors


class Gelu(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(33)

    def forward(self, x):
        return self.norm(torch.nn.functional.gelu(x) * x)


def compiled(model, *inputs, **options):
    fused = torchweld.fuse(model, inputs, **options)
    with torch.no_grad():
        fused(*inputs)
    return torchweld.explain(fused).graphs, torchweld.records(fused)


def comp_of(record) -> Comp:
    return next(node for node in record.graph.nodes if isinstance(node, Comp))


def test_a_fused_kernel_is_as_exact_as_aten():
    parts, records = compiled(Gelu(), torch.randn(7, 33))
    (part,) = with_kernel_errors(parts, records)
    error = part.groups[0].error
    assert 0 < error.fused_l2 < 3 * error.aten_l2 < 1e-5
    assert 0 < error.fused_max < 5 * error.aten_max < 1e-5


def test_a_wrong_kernel_shows():
    _, (record,) = compiled(Gelu(), torch.randn(7, 33))
    comp = comp_of(record)
    (source,) = record.bundles[comp.name].sources
    assert "0.7071067811865476f" in source.text
    wrong = replace(source, text=source.text.replace("0.7071067811865476f", "0.71f"))
    bundle = replace(record.bundles[comp.name], sources=(wrong,))
    assert kernel_error(comp, bundle, record.graph).fused_l2 > 1e-4


def test_a_kernel_that_does_not_compile_has_none():
    _, (record,) = compiled(Gelu(), torch.randn(7, 33))
    comp = comp_of(record)
    (source,) = record.bundles[comp.name].sources
    broken = replace(source, text=source.text + "\nthis is no C++;")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torchweld.TorchweldWarning)
        error = kernel_error(comp, replace(record.bundles[comp.name], sources=(broken,)),
                             record.graph)
    assert error is None


def test_sizes_that_are_symbols_take_their_hints():
    model = Gelu()
    fused = torchweld.fuse(model, dynamic=True)
    with torch.no_grad():
        fused(torch.randn(6, 33))
    (record,) = torchweld.records(fused)
    assert record.graph.symbols
    error = kernel_error(comp_of(record), record.bundles[comp_of(record).name], record.graph)
    assert 0 < error.fused_l2 < 1e-5


def test_a_kernel_of_integers_has_none():
    class Index(torch.nn.Module):
        def forward(self, x):
            return (x * 2 + 1).clamp(max=5) - x

    parts, records = compiled(Index(), torch.arange(9))
    (group,) = with_kernel_errors(parts, records)[0].groups
    assert group.error is None


def test_indices_and_tables_are_random_and_in_range():
    class Look(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(5, 9)

        def forward(self, x):
            return self.table(x).exp().sum(-1)

    parts, records = compiled(Look(), torch.arange(4))
    groups = with_kernel_errors(parts, records)[0].groups
    assert any(group.error and group.error.fused_l2 < 1e-5 for group in groups)


def test_a_large_kernel_is_left_out(monkeypatch):
    monkeypatch.setattr(kernel_errors, "MOST_ELEMENTS", 100)
    parts, records = compiled(Gelu(), torch.randn(7, 33))
    assert with_kernel_errors(parts, records)[0].groups[0].error is None


def test_one_that_cannot_run_is_told(monkeypatch):
    def fail(*_):
        raise RuntimeError("no memory\nat all")

    monkeypatch.setattr(kernel_errors, "_run_kernel", fail)
    parts, records = compiled(Gelu(), torch.randn(7, 33))
    (part,) = with_kernel_errors(parts, records)
    assert part.groups[0].error is None
    said = [e.message for e in torchweld.events()]
    assert any(m.endswith("was not checked alone: no memory") for m in said)


@pytest.mark.parametrize("dtype, most", [(torch.bfloat16, 5e-3), (torch.float16, 6e-4)])
def test_16_bit_kernels_are_rounded_once(dtype, most):
    parts, records = compiled(Gelu().to(dtype), torch.randn(5, 33, dtype=dtype))
    error = with_kernel_errors(parts, records)[0].groups[0].error
    assert 0 < error.fused_l2 < most
