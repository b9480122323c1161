"""Scans along long axes of few rows: (function, shape and dtype of its argument) by name."""

from __future__ import annotations

import torch


def reversed_sum(x):
    return x.flip(-1).cumsum(-1).flip(-1)


def with_work_around(x):
    return (x.sin().cumsum(-1) * x + 1).relu()


def slots(x):
    """Of the k-th token of each expert."""
    hot = x.argmax(-1)[:, None] == torch.arange(x.shape[-1], device=x.device)
    return (hot.long().cumsum(0) * hot).sum(-1)


CASES = {
    "sum": (lambda x: x.cumsum(-1), (3, 20011), torch.float32),
    "one row": (lambda x: x.cumsum(0), (70001,), torch.float32),
    "whole stretches": (lambda x: x.cumsum(-1), (2, 65536), torch.float32),
    "product": (lambda x: (1 + 1e-4 * x).cumprod(-1), (2, 20000), torch.float32),
    "down": (lambda x: x.cumsum(0), (9001, 5), torch.float32),
    "middle": (lambda x: x.cumsum(1), (2, 9001, 3), torch.float32),
    "reversed": (reversed_sum, (2, 70001), torch.float32),
    "work around": (with_work_around, (2, 20011), torch.float32),
    "slots": (slots, (9000, 7), torch.float32),
    "16 bits": (lambda x: x.cumsum(-1) * 2, (2, 70001), torch.bfloat16),
    "two": (lambda x: x.cumsum(-1) / (x.abs() + 1).cumsum(-1), (2, 20011), torch.float32),
    "without": (lambda x: x.cumsum(-1) - x, (2, 20011), torch.float32),
}
