"""Aligned products on a GPU: the head of a language model and its loss, with odd classes."""

from __future__ import annotations

import torch
from torch import nn

import torchweld
from torchweld.api import records

CLASSES, PITCH = 50257, 50304


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(256, CLASSES, bias=False)

    def forward(self, x, target):
        return nn.functional.cross_entropy(self.head(torch.tanh(x)).float(), target)


def test_logits_and_their_gradients_lie_in_aligned_rows():
    torch.manual_seed(0)
    model = Head().to("cuda", torch.bfloat16)
    x = torch.randn(1024, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(CLASSES, (1024,), device="cuda")
    fused = torchweld.fuse(model)
    results = []
    for call in (model, fused):
        loss = call(x, target)
        loss.backward()
        results.append([loss.detach(), x.grad, model.head.weight.grad])
        x.grad = model.head.weight.grad = None
    for eager, ours in zip(*results):
        assert (ours - eager).float().norm() <= 2e-2 * eager.float().norm()
    buffers = [b for record in records(fused) for b in record.graph.buffers.values()]
    assert any(b.strides[-2:] == (PITCH, 1) for b in buffers)
    assert not any(b.strides[-2:] == (CLASSES, 1) for b in buffers)
    events = [note for record in records(fused) for note in record.events]
    assert not [note for note in events if note.kind.startswith("copied")]
