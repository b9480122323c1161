"""Networks with their products in the kernels mean what they meant without."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from nets import calls, captured, comps, formed, run, same_meaning

M, K, N = 33, 24, 40


def r(*shape):
    return torch.randn(shape, dtype=torch.bfloat16)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
    "leaky": lambda x: F.leaky_relu(x, 0.1),
    "clamp": lambda x: x.clamp(-1, 1) * 3,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_after_linear(name):
    act = ACTIVATIONS[name]
    _, after = same_meaning(lambda x, w: act(F.linear(x, w)), r(M, K), r(N, K))
    assert calls(after.graph) == [] and len(comps(after.graph)) == 1


@pytest.mark.parametrize("shape", [(2, 5), (3, 1, 7), (1, 1, 1, 9), (17,)])
def test_leading_dimensions(shape):
    _, after = same_meaning(
        lambda x, w, b: F.silu(F.linear(x, w, b)), r(*shape, K), r(N, K), r(N)
    )
    assert calls(after.graph) == []


@pytest.mark.parametrize("name", ["gelu tanh", "silu", "relu"])
def test_gated_pair_is_one_kernel(name):
    act = ACTIVATIONS[name]
    _, after = same_meaning(
        lambda x, g, u, d: F.linear(act(F.linear(x, g)) * F.linear(x, u), d),
        r(3, 11, K), r(N, K), r(N, K), r(K, N),
    )  # fmt: skip
    assert calls(after.graph) == ["aten.mm.default"]
    (comp,) = comps(after.graph)
    assert sum(1 for i in comp.body if type(i).__name__ == "Reduce") == 2


def test_residual_scale_and_bias():
    _, after = same_meaning(
        lambda x, w, b, h, s: h + s * F.linear(x, w, b), r(2, 9, K), r(N, K), r(N), r(2, 9, N), r(N)
    )
    assert calls(after.graph) == []


def test_transposed_operands():
    _, after = same_meaning(lambda x, w: torch.tanh(x.t() @ w), r(K, M), r(K, N))
    assert calls(after.graph) == []


def test_sliced_operands():
    _, after = same_meaning(
        lambda x, w: torch.relu(x[:, 3 : 3 + K] @ w[1 : 1 + K, ::2]), r(M, 40), r(30, 2 * N)
    )
    assert calls(after.graph) == []


@pytest.mark.parametrize("beta, alpha", [(1, 1), (0, 1), (0.5, -2), (2, 0.25)])
@pytest.mark.parametrize("bias", [(N,), (M, N), (M, 1), (1, 1)])
def test_addmm(beta, alpha, bias):
    _, after = same_meaning(
        lambda c, x, w: torch.addmm(c, x, w, beta=beta, alpha=alpha).sigmoid(),
        r(*bias), r(M, K), r(K, N),
    )  # fmt: skip
    assert calls(after.graph) == []


def test_batches():
    _, after = same_meaning(lambda a, b: F.relu(a @ b.mT) * 0.5, r(2, 3, 7, K), r(2, 3, 5, K))
    assert calls(after.graph) == []


def test_baddbmm():
    _, after = same_meaning(
        lambda c, a, b: F.silu(torch.baddbmm(c, a, b, beta=0.5)), r(4, 1, 5), r(4, 7, K), r(4, K, 5)
    )
    assert calls(after.graph) == []


def test_heads_are_split_by_the_store():
    def heads(x, w, b):
        y = F.linear(x, w, b).view(2, 9, 5, 8).transpose(1, 2)
        return (y * 0.125).contiguous()

    _, after = same_meaning(heads, r(2, 9, K), r(N, K), r(N))
    assert calls(after.graph) == []


def test_a_result_that_is_returned_too_is_stored_too():
    def both(x, w):
        y = x @ w
        return y, F.gelu(y)

    _, after = same_meaning(both, r(M, K), r(K, N))
    assert calls(after.graph) == [] and len(comps(after.graph)[0].stores) == 2


def rotated(q, cos, sin):
    left, right = q.chunk(2, -1)
    return q * cos + torch.cat((-right, left), -1) * sin


@pytest.mark.parametrize("heads, width", [(4, 4), (5, 8), (3, 16)])
def test_rotary_embedding(heads, width):
    """Each half of a head is a product of its own."""

    def embedded(x, w, cos, sin):
        q = F.linear(x, w).view(2, 40, heads, width).transpose(1, 2)
        return rotated(q, cos, sin)

    _, after = same_meaning(
        embedded, r(2, 40, K), r(heads * width, K), r(2, 1, 40, width), r(2, 1, 40, width)
    )
    (comp,) = comps(after.graph)
    assert calls(after.graph) == [] and len(comp.stores) == 2
    assert sum(1 for i in comp.body if type(i).__name__ == "Reduce") == 2


def test_gate_and_up_in_one_weight():
    def chunked(x, w):
        gate, up = F.linear(x, w).chunk(2, -1)
        return F.silu(gate) * up

    _, after = same_meaning(chunked, r(M, K), r(2 * N, K))
    assert calls(after.graph) == []


def test_columns_that_several_points_need_are_not_computed_again():
    def neighbours(x, w):
        y = F.linear(x, w)
        return y[:, 1:] - y[:, :-1]

    _, after = same_meaning(neighbours, r(M, K), r(N, K))
    assert calls(after.graph) == ["aten.mm.default"]


def test_dropout():
    def dropped(x, w, mask):
        return F.linear(x, w) * mask.to(x.dtype) / 0.9

    _, after = same_meaning(dropped, r(M, K), r(N, K), torch.rand(M, N) < 0.9)
    assert calls(after.graph) == []


def mlp(act):
    def steps(dy, *leaves):
        def forward(x, w1, b1, w2, b2):
            return F.linear(act(F.linear(x, w1, b1)), w2, b2)

        y, backward = torch.func.vjp(forward, *leaves)
        return [y, *backward(dy)]

    return steps


@pytest.mark.parametrize("name", ["gelu", "gelu tanh", "silu", "relu"])
def test_training(name):
    before, after = same_meaning(
        mlp(ACTIVATIONS[name]), r(M, K), r(M, K), r(N, K), r(N), r(K, N), r(K)
    )
    assert len(calls(after.graph)) < len(calls(before.graph))


def gated(dy, *leaves):
    y, backward = torch.func.vjp(lambda x, g, u, d: (F.silu(x @ g) * (x @ u)) @ d, *leaves)
    return [y, *backward(dy)]


def test_gated_training():
    before, after = same_meaning(gated, r(M, K), r(M, K), r(K, N), r(K, N), r(N, K))
    assert len(calls(after.graph)) <= len(calls(before.graph)) - 4


def test_symbols():
    _, after = same_meaning(
        lambda x, w, b: F.gelu(F.linear(x, w, b)), r(3, 11, K), r(N, K), r(N), mode="symbolic"
    )
    assert calls(after.graph) == []


def test_siblings_whose_order_changes_while_the_plan_is_made():
    """In this graph a merge puts two nodes in the other order before they are merged themselves."""

    def forward(x, g, u, w, cos, sin):
        h = F.silu(F.linear(x, g)) * F.linear(x, u)
        q = F.linear(h, w).view(*h.shape[:2], -1, 8).transpose(1, 2)
        q = rotated(q, torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))
        return q.transpose(1, 2).reshape(h.shape)

    def steps(dy, *leaves):
        y, backward = torch.func.vjp(forward, *leaves)
        return [y, *backward(dy)]

    b, s, d, n = 1, 5, 32, 8
    same_meaning(steps, r(b, s, n), r(b, s, d), r(n, d), r(n, d), r(n, n), r(s, 4), r(s, 4))


@pytest.mark.parametrize("scaled", [
    lambda a, d: a @ torch.diag(d), lambda a, d: torch.diag(d) @ a,
    lambda a, d: a @ torch.diag_embed(d), lambda a, d: torch.diag(d) @ a @ torch.diag(d),
])  # fmt: skip
def test_what_is_multiplied_with_a_diagonal_matrix_is_not_scaled(scaled):
    """Zero times the infinity is NaN, all along its row or column."""
    a, d = r(N, N), r(N)
    a[1, 2] = torch.inf
    _, after = formed(captured(scaled, a, d))
    (found,) = run(after.graph, (a, d), exact=False)
    torch.testing.assert_close(found, scaled(a, d), equal_nan=True, rtol=2**-7, atol=2**-7)
    assert found.isnan().sum() >= N - 1
