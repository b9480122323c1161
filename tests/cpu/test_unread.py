"""Rows that nobody reads are not made: which operations make less, and that results and gradients
are eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.capture import unread
from torchweld.capture.constant import example, name_of
from torchweld.exact.budget import compare
from torchweld.exact.campaign import checks
from torchweld.exact.programs import Input, Program

B, S, D = 2, 7, 8
X = torch.randn(B, S, D, generator=torch.Generator().manual_seed(0))
W = torch.randn(D, D, generator=torch.Generator().manual_seed(1))
UP = torch.randn(4 * D, D, generator=torch.Generator().manual_seed(2))


def smaller(function, *args, dynamic: bool = False) -> list[str]:
    """The products that make less, by name, each with its rows."""
    graphs = []

    def backend(gm, inputs):
        unread.take_parts_first(gm)
        graphs.append(gm.graph)
        return gm.forward

    torch.compiler.reset()
    found = torch.compile(function, backend=backend, dynamic=dynamic)(*args)
    assert torch.allclose(found, function(*args), atol=1e-5)
    names = ("linear", "matmul", "scaled_dot_product_attention")
    products = [n for graph in graphs for n in graph.nodes if name_of(n) in names]
    sizes = [(name_of(n), example(n).shape[-2]) for n in products]
    return [f"{name} {rows}" for name, rows in sizes if rows != S]


def block(x, causal=False):
    h = F.layer_norm(x, (D,))
    q, k, v = (F.linear(h, W * n).view(B, S, 2, D // 2).transpose(1, 2) for n in (1, 2, 3))
    a = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    x = x + F.linear(a.transpose(1, 2).reshape(B, S, D), W)
    return x + F.linear(F.gelu(F.linear(F.layer_norm(x, (D,)), UP)), UP.T)


ONE_ROW = ["linear 1", "scaled_dot_product_attention 1", "linear 1", "linear 1", "linear 1"]
FOUND = {
    "a class token": (lambda x: block(x)[:, 0].tanh(), ONE_ROW),
    "the last token": (lambda x: block(x, causal=True)[:, -1].tanh(), ONE_ROW),
    "the last token, kept": (lambda x: block(x)[:, -1:].tanh(), ONE_ROW),
    "logits that are shifted": (
        lambda x: F.linear(x, UP)[:, :-1].reshape(-1, 4 * D).log_softmax(-1), ["linear 6"]
    ),
    "attention by hand": (
        lambda x: ((x @ x.mT).masked_fill(x[..., :1].mT > 0, -9.0).softmax(-1) @ x)[:, 2:4] * 2,
        ["matmul 2", "matmul 2"],
    ),
    "a gate of two halves": (
        lambda x: torch.mul(*F.linear(x, UP).chunk(2, -1))[:, 0].sum(), ["linear 1"]
    ),
    "rows of a batch": (lambda x: F.linear(x, W)[0, -1].exp(), ["linear 1"]),
}  # fmt: skip
KEPT = {
    "a causal row in the middle": lambda x: block(x, causal=True)[:, 2].tanh(),
    "a part that is returned": lambda x: F.linear(x, W)[:, -1],
    "a view of one": lambda x: F.linear(x, W)[:, -1].unsqueeze(1),
    "two parts": lambda x: (lambda h: h[:, 0].exp() + h[:, 1:].amax(1))(F.linear(x, W)),
    "a running sum behind it": lambda x: F.linear(x, W).cumsum(1)[:, -1] * 2,
    "a graph that writes": lambda x: (F.linear(x, W)[:, 0] * 2).add_(1),
    "nothing": lambda x: F.linear(x, W)[:, :0].sum(),
    "few rows less of a narrow result": lambda x: F.linear(x, W[:2])[:, 1:] * 2,
}
MIDDLE = ["linear 1"] * 3  # its queries are all made


@pytest.mark.parametrize("name", FOUND)
def test_products_of_rows_that_are_not_read_are_smaller(name):
    function, wanted = FOUND[name]
    assert smaller(function, X) == wanted
    step(function)


@pytest.mark.parametrize("name", KEPT)
def test_other_rows_are_made(name):
    wanted = MIDDLE if name == "a causal row in the middle" else []
    assert smaller(KEPT[name], X) == wanted


def test_any_number_of_rows():
    found = smaller(lambda x: F.linear(F.gelu(F.linear(x, W)), W)[:, -1] * 2, X, dynamic=True)
    assert found == ["linear 1", "linear 1"]


def test_numbers_that_are_drawn_are_drawn_for_all_rows():
    def dropped(x):
        return F.linear(F.dropout(F.linear(x, W), 0.5), W)[:, 0] * 2

    torch.manual_seed(3)
    eager = dropped(X)
    torch.manual_seed(3)
    torch.compiler.reset()
    found = torch.compile(dropped, backend=_changed)(X)
    assert torch.allclose(found, eager, atol=1e-5)


def _changed(gm, inputs):
    assert unread.take_parts_first(gm) == 1  # what is behind the dropout
    return gm.forward


@pytest.mark.parametrize("kept", [1, 2], ids=["an argument less", "a part of other rows"])
def test_what_torch_refuses_of_a_part_or_has_another_shape_stays_whole(kept, monkeypatch):
    def rule(node, dim, part):
        return (unread.Taken(node.args[0], 2 - kept), *node.args[1:kept]), {}

    monkeypatch.setattr("torchweld.capture.part_rules._RULES", {"linear": rule})
    assert smaller(lambda x: F.linear(x, W)[:, 0] * 2, X) == []


def step(function) -> None:
    """Results and gradients of the kernels, beside eager's."""

    def run(call, dtype=torch.float32):
        x = X.to(dtype, copy=True).requires_grad_()
        result = call(x)
        result.square().sum().backward()
        return result.detach(), x.grad

    def exact(x):
        torch.compiler.reset()
        return function(x)

    torch.compiler.reset()
    with pytest.MonkeyPatch.context() as patch:
        eager, found = run(function), run(torchweld.fuse(function))
        for name in ("W", "UP"):
            patch.setitem(globals(), name, globals()[name].double())
        wide = run(exact, torch.float64)
    for name, *three in zip(("result", "gradient"), found, eager, wide):
        error = compare(name, *three)
        assert error.ok, error


def test_a_part_of_what_one_number_is_returned_of():
    given = Input((2, 5, 8), torch.float32), Input((16, 8), torch.float32)
    lines = "h = F.linear(x0, x1)", "u = h.amax()", "y = h[:, -1] * 2"
    assert checks.compiled(Program(given, lines, ("y", "u"))) == []
