"""Losses on a linear layer, for tests of what is done with their logits."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

ROWS, DEPTH, CLASSES = 1024, 24, 3001
BATCH = 4


def logits_of(x, weight):
    return F.linear(x, weight).float() if x.dtype.itemsize == 2 else F.linear(x, weight)


def cross_entropy(x, weight, labels):
    return F.cross_entropy(F.linear(x, weight), labels)


def summed(x, weight, labels):
    return F.cross_entropy(logits_of(x, weight), labels, reduction="sum")


def weighted(x, weight, labels):
    classes = torch.arange(CLASSES, dtype=x.dtype) / CLASSES
    return F.cross_entropy(F.linear(x, weight), labels, weight=classes)


def biased(x, weight, labels):
    return F.cross_entropy(F.linear(x, weight, weight[:, 0]), labels)


def shifted_labels(x, weight, labels):
    labels = F.pad(labels, (0, 1), value=-100)[1:].contiguous()
    return F.cross_entropy(logits_of(x, weight), labels, ignore_index=-100)


def shifted_logits(x, weight, labels):
    logits = logits_of(x.view(BATCH, -1, DEPTH), weight)[:, :-1]
    labels = labels.view(BATCH, -1)[:, 1:]
    return F.cross_entropy(logits.reshape(-1, CLASSES), labels.reshape(-1))


def smoothed(x, weight, labels):
    logits = 3 * torch.tanh(logits_of(x, weight) / 3)
    z = torch.logsumexp(logits, -1)
    return F.cross_entropy(logits, labels, label_smoothing=0.1) + 1e-2 * (z**2).mean()


def focal(x, weight, labels):
    each = F.cross_entropy(logits_of(x, weight), labels, reduction="none")
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


def entropy(x, weight, labels):
    log_p = F.log_softmax(logits_of(x, weight), -1)
    return -(log_p.exp() * log_p).sum(-1).mean()


def binary(x, weight, labels):
    hit = F.one_hot(labels, CLASSES).to(x.dtype)
    return F.binary_cross_entropy_with_logits(F.linear(x, weight), hit)


def kl(x, weight, labels):
    teacher = F.softmax(logits_of(x.detach().flip(1), weight.detach()), -1)
    return F.kl_div(F.log_softmax(logits_of(x, weight), -1), teacher, reduction="batchmean")


def jsd(x, weight, labels):
    p = F.log_softmax(logits_of(x, weight), -1)
    q = F.log_softmax(logits_of(x.detach().flip(1), weight.detach()), -1)
    middle = torch.log(0.5 * (p.exp() + q.exp()))
    parts = (F.kl_div(middle, r, log_target=True, reduction="batchmean") for r in (p, q))
    return 0.5 * sum(parts)


def log_probabilities(x, weight, labels):
    log_p = F.log_softmax(logits_of(x, weight), -1)
    return log_p.gather(-1, labels[..., None]).squeeze(-1)


def dpo(x, weight, labels):
    chosen, rejected = (
        log_probabilities(a, weight, b).sum() for a, b in zip(x.chunk(2), labels.chunk(2))
    )
    return -F.logsigmoid(0.1 * (chosen - rejected) / ROWS)


def grpo(x, weight, labels):
    shape = BATCH, -1
    new = log_probabilities(x.view(*shape, DEPTH), weight, labels.view(shape))
    old, gain = torch.full_like(new, -8.0), torch.arange(BATCH, dtype=new.dtype)[:, None] - 1.5
    ratio = torch.exp(new - old)
    better = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
    return (0.04 * (torch.exp(old - new) - (old - new) - 1) - better).mean()


# Those whose gradients are made in the forward, and those whose backward makes the logits again.
AHEAD: tuple[Callable, ...] = (
    cross_entropy, summed, weighted, biased, shifted_labels, shifted_logits, smoothed, focal,
    entropy, binary, kl, jsd, grpo,
)  # fmt: skip
AGAIN: tuple[Callable, ...] = (dpo,)


def inputs(dtype=torch.float32, rows: int = ROWS) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    x = torch.randn(rows, DEPTH).mul_(0.5).to(dtype).requires_grad_()
    weight = torch.randn(CLASSES, DEPTH).mul_(0.5).to(dtype).requires_grad_()
    return x, weight, torch.randint(0, CLASSES, (rows,))
