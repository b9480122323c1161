"""Products of complex numbers are taken apart, and the steps to them and back cancel."""

from __future__ import annotations

import pytest
import torch
from lowered import assert_close, externs, run
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from torchweld.capture.captured import Captured
from torchweld.capture.complex_numbers import DECOMPOSITIONS, product
from torchweld.capture.lower import lower


def rotated(x, w):
    """x [batch, positions, heads, 2 pairs], w [positions, pairs] or [positions, pairs, 2]"""
    w = w[None, :, None]
    w = w if w.is_complex() else torch.view_as_complex(w)
    z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(z * w).flatten(3).type_as(x)


def rotated_and_seen(x, w):
    z = torch.view_as_complex(x) * torch.view_as_complex(w)
    return torch.view_as_real(z), z.abs()


def lowered(function, *args):
    def listed(flat):
        results = function(*flat)
        return list(results) if isinstance(results, tuple) else [results]

    table = {"tracing_mode": "fake", "decomposition_table": DECOMPOSITIONS}
    return lower(Captured(make_fx(functionalize(listed), **table)(list(args)), "test", "inference"))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_a_rotary_embedding_is_of_real_numbers(dtype):
    x, w = torch.randn(2, 5, 3, 8).to(dtype), torch.randn(5, 4, 2)
    found = lowered(rotated, x, w)
    assert externs(found) == []
    assert_close(run(found, (x, w), exact=False)[0], rotated(x, w))


def test_of_complex_weights_only_those_are_made_pairs():
    found = lowered(rotated, torch.randn(2, 5, 3, 8), torch.randn(5, 4, dtype=torch.complex64))
    assert [t.split(".")[1] for t in externs(found)] == ["view_as_real_copy"]


def test_what_reads_complex_numbers_has_them():
    called = " ".join(externs(lowered(rotated_and_seen, torch.randn(3, 2), torch.randn(3, 2))))
    assert "view_as_complex" in called and "abs" in called


def test_other_products_stay():
    z = torch.randn(3, dtype=torch.complex64)
    for a, b in ((z, 2.0), (z, z.real), (z, z.conj()), (z.to("meta"), z.to("meta"))):
        assert product(a, b) is NotImplemented
