"""Gradients of convolutions in groups by kernels of our own on a CPU: as exact as eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.core import dtypes
from torchweld.ir.nodes import Buffer
from torchweld.ir.parser import parse_comp
from torchweld.ir.views import contiguous_strides
from torchweld.templates.weight_gradient.schedule import weight_sums

CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
BACKWARD = "aten.convolution_backward.default"

pytestmark = [
    pytest.mark.filterwarnings("error::torchweld.core.events.TorchweldWarning"),
    pytest.mark.usefixtures("convolutions_of_ours"),
]


# image, weight, arguments; groups follow from both
CASES = {
    "3x3": ((3, 37, 19, 23), (37, 1, 3, 3), dict(padding=1)),
    "steps": ((2, 40, 20, 17), (40, 1, 5, 3), dict(padding=(2, 0), stride=(2, 3))),
    "dilated": ((2, 16, 21, 25), (16, 1, 3, 4), dict(padding=3, dilation=(3, 2))),
    "wide": ((2, 19, 9, 30), (19, 1, 1, 11), dict(padding=(0, 5))),
    "7x7 of small images": ((5, 50, 7, 6), (50, 1, 7, 7), dict(padding=3)),
    "padding beyond": ((1, 18, 5, 4), (18, 1, 3, 3), dict(padding=6, stride=2)),
    "one pixel": ((4, 33, 9, 9), (33, 1, 1, 1), dict(stride=2)),
    "several results": ((2, 12, 11, 13), (36, 1, 3, 3), dict(padding=1)),
    "two channels": ((2, 24, 11, 13), (36, 2, 3, 3), dict(padding=1)),
    "a row": ((3, 20, 301), (20, 1, 9), dict(padding=4, stride=2)),
    "volumes": ((2, 17, 5, 6, 9), (17, 1, 3, 2, 3), dict(padding=1, stride=(2, 1, 1))),
    "one image": ((1, 48, 70, 90), (48, 1, 3, 3), dict(padding=1)),
}
TURNED = {
    "turned": ((2, 21, 9, 11), (21, 1, 4, 3), dict(padding=1, stride=2, output_padding=1)),
    "turned row": ((2, 16, 40), (16, 1, 5), dict(padding=2)),
}


def taken(fused) -> tuple[int, int]:
    """Kernels of the template, and calls that still make a weight's gradient."""
    plans = torchweld.records(fused)
    nodes = [n for r in plans for n in r.graph.nodes if getattr(n, "target", "") == BACKWARD]
    calls = [n for n in nodes if n.outputs[1] is not None]
    texts = [s.text for r in plans for b in r.bundles.values() for s in b.sources]
    entries = [text.split("omp parallel")[-1] for text in texts]
    return sum("tw_weight_gradient<" in text for text in entries), len(calls)


def gradients(function, tensors, dtype=torch.float32):
    leaves = [t.detach().to(dtype).requires_grad_() for t in tensors]
    out = function(*leaves)
    generator = torch.Generator().manual_seed(1)
    seed = torch.randn(out.shape, generator=generator).to(dtype)
    return torch.autograd.grad((out * seed).sum(), leaves)


def check(function, tensors, calls=0) -> None:
    fused = torchweld.fuse(function, dynamic=False)
    exact = gradients(function, tensors, torch.float64)
    eager, ours = gradients(function, tensors), gradients(fused, tensors)
    for name, one, other, best in zip("xwb", ours, eager, exact):
        assert one.stride() == other.stride(), name
        errors = [((t.double() - best).norm() / best.norm()).item() for t in (one, other)]
        assert errors[0] <= 2 * errors[1] + 2e-7, (name, errors)
    assert taken(fused) == (int(calls == 0), calls)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", [*CASES, *TURNED])
def test_as_exact_as_eager(name, threads):
    torch.manual_seed(0)
    shape, weight, how = (CASES | TURNED)[name]
    convolve = (TRANSPOSE if name in TURNED else CONVOLVE)[len(shape) - 2]
    groups = shape[1] // weight[1] if name in CASES else weight[0]
    bias = weight[0] if name in CASES else weight[1] * groups
    tensors = torch.randn(shape), torch.randn(weight), torch.randn(bias)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check(lambda x, w, b: torch.tanh(convolve(x * 2, w, b, groups=groups, **how)), tensors)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("weight", "calls"), [((24, 1, 5, 5), 0), ((24, 1, 3, 3), 1)], ids=str)
def test_channels_last(weight, calls):
    """Short windows so stay with the library."""
    torch.manual_seed(0)
    tensors = [torch.randn(2, 24, 13, 11), torch.randn(weight)]
    tensors = [t.to(memory_format=torch.channels_last) for t in tensors]
    padding = weight[2] // 2
    check(lambda x, w: torch.sigmoid(F.conv2d(x, w, padding=padding, groups=24)), tensors, calls)


def test_between_tokens():
    """The gradient that it is given is a view of rows with channels innermost."""
    torch.manual_seed(0)
    tensors = torch.randn(2, 40, 9, 12), torch.randn(40, 1, 7, 7), torch.randn(24, 40)

    def function(x, w, v):
        y = F.conv2d(x, w, padding=3, groups=40).permute(0, 2, 3, 1)
        return F.gelu(F.layer_norm(y, (40,))) @ v.T

    check(function, tensors)


def test_what_lies_outside_is_not_read():
    """Rows that are not there are skipped: infinities in an image reach what they belong to."""
    x, w = torch.randn(1, 16, 6, 5), torch.randn(16, 1, 3, 3)
    x[0, 3, 0, 2] = torch.inf
    function = lambda x, w: F.conv2d(x, w, padding=1, groups=16)  # noqa: E731
    ours = gradients(torchweld.fuse(function, dynamic=False), (x, w))[1]
    eager = gradients(function, (x, w))[1]
    assert torch.equal(ours.isfinite(), eager.isfinite())


def test_batches_of_any_size():
    torch.manual_seed(0)
    function = lambda x, w: torch.tanh(F.conv2d(x * 2, w, padding=1, groups=20))  # noqa: E731
    fused = torchweld.fuse(function)
    for batch in (3, 5, 2):
        tensors = torch.randn(batch, 20, 9, 7), torch.randn(20, 1, 3, 3)
        for one, other in zip(gradients(fused, tensors), gradients(function, tensors)):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert taken(fused)[0]


@pytest.mark.parametrize(("groups", "channels"), [(1, 8), (2, 8)])
def test_many_channels_stay_with_the_library(groups, channels):
    tensors = torch.randn(2, groups * channels, 9, 9), torch.randn(16, channels, 3, 3)
    check(lambda x, w: F.conv2d(x, w, groups=groups), tensors, calls=1)


def test_places_that_are_computed_are_no_windows():
    comp = parse_comp("""comp c [o:4, c:3, k:3, n:2, i:5] {
      %0 = load at[k] : i64
      %1 = load x[n, c, %0] exact : f32
      %2 = load g[n, o, i] exact : f32
      %3 = mul %1 %2 : f32
      %4 = reduce.sum[n, i] %3 : f32
      store w[o, c, k] %4
    }""")
    shapes = {"x": (2, 3, 9), "g": (2, 4, 5), "w": (4, 3, 3)}
    buffers = {n: Buffer(n, s, dtypes.f32, contiguous_strides(s)) for n, s in shapes.items()}
    buffers["at"] = Buffer("at", (3,), dtypes.i64, (1,))
    assert weight_sums(comp, buffers) is None
