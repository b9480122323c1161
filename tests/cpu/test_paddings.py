"""Zeros around images that convolutions read are the convolutions' padding: as exact as eager."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.ir.nodes import Comp, Extern, Graph
from torchweld.runtime.library_calls import LIBRARY
from torchweld.templates.conv.comp import UNEVEN

CONVOLVE = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
pytestmark = [
    pytest.mark.filterwarnings("error::torchweld.core.events.TorchweldWarning"),
    pytest.mark.usefixtures("convolutions_of_ours"),
]


# image, weight, zeros, arguments; groups follow from both
CASES = {
    "depthwise": ((2, 19, 14, 17), (19, 1, 3, 3), (1, 1, 1, 1), dict()),
    "same, in steps": ((2, 32, 14, 18), (32, 1, 3, 3), (0, 1, 0, 1), dict(stride=2)),
    "same, 5 x 5": ((3, 17, 15, 16), (17, 1, 5, 5), (1, 2, 2, 2), dict(stride=2)),
    "colours in steps": ((2, 3, 33, 30), (24, 3, 3, 3), (0, 1, 0, 1), dict(stride=2)),
    "dense": ((2, 24, 13, 15), (20, 24, 3, 3), (1, 1, 1, 1), dict()),
    "one side": ((2, 9, 13, 15), (9, 1, 3, 3), (2, 0), dict()),
    "and more": ((2, 9, 13, 15), (9, 1, 3, 3), (2, 0, 0, 1), dict(padding=(1, 2))),
    "both make it even": ((2, 9, 13, 15), (9, 1, 3, 3), (2, 2, 0, 0), dict(padding=(1, 0))),
    "causal": ((3, 20, 101), (20, 1, 4), (3, 0), dict()),
    "causal, far": ((2, 24, 64), (16, 24, 3), (8, 0), dict(dilation=4)),
    "behind": ((2, 24, 64), (16, 24, 3), (0, 4), dict(dilation=2)),
    "volume": ((1, 8, 7, 9, 11), (8, 1, 3, 3, 3), (1, 0, 2, 1, 0, 2), dict(stride=(1, 2, 1))),
    "wider than the image": ((2, 8, 3, 4), (8, 1, 3, 3), (5, 7, 6, 0), dict(stride=3)),
    "groups": ((2, 12, 10, 11), (24, 2, 3, 3), (1, 0, 0, 1), dict()),
}


def tensors(case: str) -> tuple[list[torch.Tensor], tuple[int, ...], dict]:
    image, weight, zeros, how = CASES[case]
    torch.manual_seed(len(case))
    made = [torch.randn(image), torch.randn(weight) / weight[1] ** 0.5, torch.randn(weight[0])]
    return made, zeros, how | {"groups": image[1] // weight[1]}


def convolved(x, w, b, zeros, how):
    return CONVOLVE[x.dim()](F.pad(F.silu(x), zeros), w, b, **how).relu()


def assert_as_exact(found, eager, wanted):
    for ours, theirs, right in zip(found, eager, wanted, strict=True):
        ours, theirs = ((t.double() - right).norm() / right.norm() for t in (ours, theirs))
        assert ours <= 2 * theirs + 2e-7


@pytest.mark.parametrize("case", CASES)
def test_inference(case):
    args, zeros, how = tensors(case)
    with torch.no_grad():
        fused = torchweld.fuse(lambda x, w, b: convolved(x, w, b, zeros, how))
        found, eager = fused(*args), convolved(*args, zeros, how)
        wanted = convolved(*(a.double() for a in args), zeros, how)
    assert found.shape == eager.shape and found.stride() == eager.stride()
    assert_as_exact([found], [eager], [wanted])


@pytest.mark.parametrize("case", CASES)
def test_training(case):
    args, zeros, how = tensors(case)
    seed = torch.randn_like(convolved(*args, zeros, how))

    def gradients(function, dtype):
        leaves = [a.to(dtype).requires_grad_() for a in args]
        result = function(*leaves)
        return [result.detach(), *torch.autograd.grad(result, leaves, seed.to(dtype))]

    def apply(x, w, b):
        return convolved(x, w, b, zeros, how)

    single = torch.float32
    found, eager = gradients(torchweld.fuse(apply), single), gradients(apply, single)
    assert_as_exact(found, eager, gradients(apply, torch.float64))


def graphs(fused) -> list[Graph]:
    return [record.graph for record in torchweld.records(fused)]


POINTWISE = ("one side", "causal")


@pytest.mark.parametrize("case", ["depthwise", "same, in steps", "same, 5 x 5", "one side",
                                  "causal", "volume"])  # fmt: skip
def test_nothing_larger_is_in_memory(case):
    args, zeros, how = tensors(case)
    with torch.no_grad():
        fused = torchweld.fuse(lambda x, w, b: convolved(x, w, b, zeros, how))
        fused(*args)
    (graph,) = graphs(fused)
    kernels = [type(n) for n in graph.nodes]  # silu, then the rest, which may take it in
    assert kernels == [Comp, Comp] or (case in POINTWISE and kernels == [Comp])
    sizes = {a.numel() for a in (*args, convolved(*args, zeros, how))}
    assert {math.prod(b.shape) for b in graph.buffers.values()} <= sizes


def test_a_backward_keeps_the_image_without_zeros():
    args, zeros, how = tensors("depthwise")
    fused = torchweld.fuse(lambda x, w, b: CONVOLVE[4](F.pad(x, zeros), w, b, **how))
    fused(*(a.requires_grad_() for a in args)).sum().backward()
    shapes = {b.shape for graph in graphs(fused) for b in graph.buffers.values()}
    assert (2, 19, 16, 19) not in shapes


OTHERS = {
    "ones": lambda x, w: F.conv2d(F.pad(x, (0, 1, 0, 1), value=1.0), w),
    "mirrored": lambda x, w: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), w),
    "read twice": lambda x, w: (lambda p: F.conv2d(p, w) + p[..., 1:-1, 1:-1].sum(1, True))(
        F.pad(x, (1, 1, 1, 1))),
    "returned": lambda x, w: (lambda p: (F.conv2d(p, w), p))(F.pad(x, (1, 1, 1, 1))),
    "returned, uneven": lambda x, w: (lambda p: (F.conv2d(p, w), p))(F.pad(x, (0, 1, 0, 1))),
    "images": lambda x, w: F.conv2d(F.pad(x, (0, 0, 0, 0, 0, 0, 1, 1)), w, padding=1),
    "cut": lambda x, w: F.conv2d(F.pad(x, (-1, 1, 0, 1)), w),
    "transposed": lambda x, w: F.conv_transpose2d(F.pad(x, (0, 1, 1, 1)), w),
    "same": lambda x, w: F.conv2d(F.pad(x, (1, 1, 1, 1)), w, padding="same"),
    "after a write": lambda x, w: (lambda y: (F.pad(y, (1, 1, 1, 1)), y.add_(1))[0])(x * 2).sin(),
}


def written(x, w):
    y = x * 2
    p = F.pad(y, (1, 1, 1, 1))
    y.add_(1)
    return F.conv2d(p, w) + y.sum()


@pytest.mark.parametrize("function", [*OTHERS.values(), written], ids=[*OTHERS, "written"])
def test_what_is_anything_else_is_eagers(function):
    torch.manual_seed(0)
    x, w = torch.randn(2, 8, 9, 7), torch.randn(8, 8, 3, 3)
    with torch.no_grad():
        found, wanted = torchweld.fuse(function)(x, w), function(x, w)
    torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5)


def test_the_call_that_stands_for_no_kernel():
    x, w, b = torch.randn(2, 6, 8, 9), torch.randn(4, 3, 3, 2), torch.randn(4)
    node = Extern("c", UNEVEN, (), (), ("y",))
    call = LIBRARY[UNEVEN](node, None)
    found = call(x, w, b, [2, 1], [1, 0, 0, 3], [1, 2], False, [0, 0], 2)
    padded = F.pad(x, (0, 3, 1, 0))
    wanted = F.conv2d(padded, w, b, (2, 1), 0, (1, 2), 2)
    assert torch.equal(found, wanted)
