"""Reductions, softmax, norms and scans against eager and float64."""

from __future__ import annotations

import pytest
import torch
from lowered import check, comps, externs, lowered
from lowered import check_call as call

from torchweld.ir.frame import frame_of
from torchweld.ir.interpret import run_graph

aten = torch.ops.aten
FLOATS = [torch.float32, torch.bfloat16]
ALL = [*FLOATS, torch.int64]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def rand(*shape, dtype=torch.float32):
    return (
        torch.randn(*shape).to(dtype)
        if dtype.is_floating_point
        else torch.randint(-5, 6, shape, dtype=dtype)
    )


@pytest.mark.parametrize("dtype", ALL)
def test_simple(dtype):
    def reduced(x):
        return [
            x.sum(),
            x.sum(1),
            x.sum((0, 2)),
            x.sum(-1, keepdim=True),
            x.sum(1, dtype=torch.float64),
            x.amax(),
            x.amax(1),
            x.amin((0, 2), keepdim=True),
            x.max(),
            x.min(),
            x.any(),
            x.all(1),
            x.any(-1, keepdim=True),
        ]

    check(reduced, rand(3, 5, 7, dtype=dtype))


@pytest.mark.parametrize("dtype", ALL)
def test_positions_are_the_first_ones(dtype):
    x = rand(3, 5, 7, dtype=dtype).round()
    check(
        lambda x: [
            x.argmax(),
            x.argmax(1),
            x.argmin(-1, keepdim=True),
            *x.max(1),
            *x.min(2, keepdim=True),
        ],
        x,
    )


def test_nan_is_an_extreme():
    x = rand(3, 5)
    x[1, 3] = float("nan")
    check(lambda x: [x.argmax(1), x.amax(1), x.amin(0), *x.max(1)], x)


@pytest.mark.parametrize("dtype", ALL)
def test_scans(dtype):
    check(
        lambda x: [x.cumsum(1), x.cumsum(-1), (x + 1).cumprod(2)],
        rand(3, 5, 7, dtype=dtype),
        ulps=32,
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_moments_far_from_zero(dtype):
    x = rand(3, 5, 7, dtype=dtype) + 100
    check(
        lambda x: [
            x.mean(),
            x.mean(1),
            x.var(1),
            x.var((0, 2), correction=0),
            x.std(-1, keepdim=True),
            *torch.var_mean(x, 1, keepdim=True),
        ],
        x,
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_norms_of_vectors(dtype):
    norm = torch.linalg.vector_norm
    check(
        lambda x: [
            x.norm(),
            norm(x, 1, 1),
            norm(x, 3, (0, 1)),
            norm(x, float("inf"), 1),
            norm(x, 0, 1),
        ],
        rand(3, 5, 7, dtype=dtype),
    )


@pytest.mark.parametrize("order", [2, 3, 0.5, -1, 0, float("inf")])
def test_norms_of_single_elements(order):
    """Their powers may be out of range, as torch knows."""
    x = torch.tensor([[[1e-30], [-1e30], [0.0], [-2.5], [float("nan")], [float("inf")]]])
    graph = lowered(lambda x: torch.linalg.vector_norm(x, order, (0, 2)), x).graph
    (found,) = run_graph(graph, [x], exact=False)
    wanted = torch.linalg.vector_norm(x, order, (0, 2))
    torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax(dtype):
    x = 4 * rand(3, 5, 7, dtype=dtype)
    x[0, 0] = -float("inf")  # a masked row is NaN
    x[1, 0, :5] = -float("inf")
    check(lambda x: [torch.softmax(x, -1), torch.softmax(x, 0), torch.log_softmax(x, 1)], x)
    check(lambda x: [x.logsumexp(1), x.logsumexp((1, 2))], x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_gradients(dtype):
    check(
        lambda g, x: [
            aten._softmax_backward_data(g, x.softmax(1), 1, g.dtype),
            aten._log_softmax_backward_data(g, x.log_softmax(1), 1, g.dtype),
        ],
        rand(3, 5, 7, dtype=dtype),
        rand(3, 5, 7, dtype=dtype),
    )


def test_softmax_is_one_kernel():
    (comp,) = comps(lowered(lambda x: torch.softmax(x, -1), rand(3, 5)))
    assert frame_of(comp).columns == ("i1",)


@pytest.mark.parametrize("dtype", FLOATS)
def test_layer_norm(dtype):
    x, w, b = rand(3, 5, 7, dtype=dtype) + 3, rand(7, dtype=dtype), rand(7, dtype=dtype)
    result = check(lambda x, w, b: aten.native_layer_norm(x, (7,), w, b, 1e-5), x, w, b)
    assert len(comps(result)) == 1
    check(lambda x: aten.native_layer_norm(x, (5, 7), None, None, 1e-5), x)
    check(
        lambda g, x, w, b: aten.native_layer_norm_backward(
            g, x, (7,), *aten.native_layer_norm(x, (7,), w, b, 1e-5)[1:], w, b, [True, True, True]
        ),
        rand(3, 5, 7, dtype=dtype),
        x,
        w,
        b,
        ulps=32,
    )


def _rms_norm(x, _, w, eps):
    rstd = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    return x * rstd * w, rstd


def _rms_norm_backward(g, x, _, rstd, w, mask):
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    return torch.autograd.grad(_rms_norm(x, _, w, 1e-5)[0], [x, w], g)


@pytest.mark.parametrize("dtype", FLOATS)
def test_rms_norm(dtype):
    g, x, w = rand(3, 5, 7, dtype=dtype), rand(3, 5, 7, dtype=dtype), rand(7, dtype=dtype)
    rstd = (x.float().square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    call(aten._fused_rms_norm.default, (x, [7], w, 1e-5), _rms_norm)
    call(
        aten._fused_rms_norm_backward.default,
        (g, x, [7], rstd, w, [True, True]),
        _rms_norm_backward,
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_group_norm(dtype):
    x, w, b = rand(3, 6, 4, 5, dtype=dtype) + 3, rand(6, dtype=dtype), rand(6, dtype=dtype)
    check(lambda x, w, b: aten.native_group_norm(x, w, b, 3, 6, 20, 2, 1e-5), x, w, b)
    check(
        lambda g, x, w, b: aten.native_group_norm_backward(
            g,
            x,
            *aten.native_group_norm(x, w, b, 3, 6, 20, 2, 1e-5)[1:],
            w,
            3,
            6,
            20,
            2,
            [True, True, True],
        ),
        rand(3, 6, 4, 5, dtype=dtype),
        x,
        w,
        b,
        ulps=64,
    )


def test_batch_norm():
    x, w, b, m = rand(3, 6, 4, 5) + 3, rand(6), rand(6), rand(6)
    args = (x, w, b, m, m.abs())
    train = aten._native_batch_norm_legit_functional
    check(lambda x, w, b, m, v: train(x, w, b, m, v, True, 0.1, 1e-5), *args)
    check(
        lambda x, w, b, m, v: aten._native_batch_norm_legit_no_training(x, w, b, m, v, 0.1, 1e-5)[
            0
        ],
        *args,
    )
    check(
        lambda g, x, w, m, v: aten.native_batch_norm_backward(
            g,
            x,
            w,
            m,
            v,
            *train(x, w, w, m, v, True, 0.1, 1e-5)[1:3],
            True,
            1e-5,
            [True, True, True],
        ),
        rand(3, 6, 4, 5),
        x,
        w,
        m,
        m.abs(),
        ulps=32,
    )
    check(
        lambda g, x, w, m, v: aten.native_batch_norm_backward(
            g, x, w, m, v, None, None, False, 1e-5, [True, True, True]
        ),
        rand(3, 6, 4, 5),
        x,
        w,
        m,
        m.abs(),
        ulps=32,
    )


def test_scalars_have_one_dimension_to_reduce():
    """Or to name: none is left, and `keepdim` keeps none."""
    result = check(
        lambda x: [
            x.sum(0), x.sum(-1, keepdim=True), x.mean(0), x.amin(0), x.prod(-1), x.logsumexp(0),
            x.softmax(0), x.var(0, correction=0), x.norm(dim=0), x.max(0).values, x.argmax(0),
        ],
        torch.tensor(1.5),
    )  # fmt: skip
    assert externs(result) == []


def test_odd_extents():
    check(lambda x: [x.sum(0), x.sum(1), x.softmax(0), x.mean(0), x.any(0), x.prod(0)], rand(0, 3))
    check(
        lambda x: [
            x.softmax(1),
            x.var(1, correction=0),
            x.amax(1),
            x.argmax(1),
            *x.max(1),
            x.cumsum(1),
            aten.native_layer_norm(x, (1,), None, None, 1e-5)[0],
        ],
        rand(3, 1),
    )
    check(lambda x: [x.sum(), x.softmax(0), x.mean(), x.argmax(), x.amax()], torch.tensor(2.0))


def test_order_of_memory_does_not_matter():
    check(
        lambda x, y: [x.sum(1), (x + y).softmax(0), x.argmax(1)],
        rand(5, 4).t(),
        rand(8, 10)[::2, ::2],
    )
    check(
        lambda x: [x + 1, x.relu().sum(1), x.mean((2, 3))],
        rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    )


def test_refusals_stay_with_aten():
    assert externs(lowered(lambda x: torch.sort(x)[0], rand(70))) == ["aten.sort.default"]
    assert externs(lowered(lambda x: (x > 0).max(0)[0], rand(4, 3))) == ["aten.max.dim"]


def test_the_gradient_of_softmax_subtracts_before_it_multiplies():
    """What cancels is the gradient and its mean, not two rounded products."""
    def gradient(g, y):
        return torch.ops.aten._softmax_backward_data(g, y, -1, torch.float32)

    (comp,) = comps(lowered(gradient, rand(5, 33), rand(5, 33).softmax(-1)))
    last = comp.body[comp.stores[0].value]
    assert last.name == "mul" and "sub" in {getattr(comp.body[v], "name", "") for v in last.args}
