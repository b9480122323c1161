"""Depthwise convolutions as pointwise kernels do not spill. No GPU is needed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

pytest.importorskip("triton")

from torchweld.capture.captured import Captured
from torchweld.core.options import Options
from torchweld.ir.nodes import Extern
from torchweld.pipeline import plan_graph
from torchweld.runtime.triton_compile import compile_source, resources
from torchweld.targets.find import named_target
from torchweld.templates.generate import generate_all

CONVOLVE = {4: F.conv2d, 5: F.conv3d}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize(("image", "window"), [
    ((8, 64, 16, 32, 32), (3, 3, 3)), ((16, 96, 56, 56), (5, 5)),
], ids=str)  # fmt: skip
def test_no_register_is_spilled(image, window, last, dtype):
    layout = torch.contiguous_format
    if last:
        layout = torch.channels_last if len(image) == 4 else torch.channels_last_3d
    x = torch.empty(image, dtype=dtype, device="meta").to(memory_format=layout)
    w = torch.empty(image[1], 1, *window, dtype=dtype, device="meta")

    def run(x, w):
        y = CONVOLVE[x.dim()](x, w, padding=tuple(n // 2 for n in window), groups=x.shape[1])
        return [F.silu(y)]

    captured = Captured(make_fx(run)(x, w), "test", "inference")
    _, plan = plan_graph(captured, Options(), named_target("H100"))
    assert not any(isinstance(n, Extern) for n in plan.graph.nodes)
    for bundle in generate_all(plan.kernels).values():
        for source in bundle.sources:
            assert resources(compile_source(source, 90)).spill_bytes == 0
