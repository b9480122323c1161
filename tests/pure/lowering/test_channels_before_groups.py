"""Reductions over groups of channels that lie innermost, in two steps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lowered import capture

from torchweld.capture.lower import lower
from torchweld.core.options import Options
from torchweld.ir.check import check_graph
from torchweld.ir.interpret import run_graph
from torchweld.layout.channel_groups import channels_before_groups
from torchweld.plan.search import plan
from torchweld.targets.find import target_of

CPU = target_of("cpu")


def before_and_after(function, *args):
    graph = plan(lower(capture(function, *args), Options()).graph, CPU, Options()).graph
    after = channels_before_groups(graph)
    check_graph(after)
    return graph, after


def image(*shape) -> torch.Tensor:
    return torch.randn(shape).to(memory_format=torch.channels_last)


def normalised(x, w, b):
    return F.silu(F.group_norm(x + 1, 3, w, b))


def saved(x, w, b):
    y, mean, rstd = torch.ops.aten.native_group_norm(x, w, b, x.shape[0], 12, 30, 3, 1e-5)
    return y, mean, rstd


def added_up(x, w, b):
    groups = x.permute(0, 2, 3, 1).unflatten(3, (3, 4))
    return groups * groups.sum((1, 2, 4), keepdim=True) + w.view(3, 4)


@pytest.mark.parametrize("function", [normalised, saved, added_up])
@pytest.mark.parametrize("batch", [1, 2])
def test_the_steps_mean_the_same(function, batch):
    torch.manual_seed(0)
    args = image(batch, 12, 5, 6), torch.randn(12), torch.randn(12)
    before, after = before_and_after(function, *args)
    assert len(after.nodes) == len(before.nodes) + 2
    for one, other in zip(run_graph(before, args), run_graph(after, args)):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "function, shape",
    [
        (lambda x: F.group_norm(x, 2), (2, 128, 5, 6)),
        (lambda x: F.group_norm(x, 4), (2, 8, 3, 5)),
        (lambda x: F.group_norm(x.contiguous(), 3), (2, 12, 5, 6)),
        (lambda x: x.softmax(1), (2, 12, 5, 6)),
        (lambda x: x.unflatten(1, (3, 4)).flatten(2).softmax(2), (2, 12, 5, 6)),
    ],
    ids=["many channels", "few pixels", "channels outermost", "one channel", "two reductions"],
)
def test_others_stay(function, shape):
    before, after = before_and_after(function, image(*shape))
    assert after.nodes == before.nodes
