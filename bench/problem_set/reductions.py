"""Reductions, norms, losses and elementwise functions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from problem_set.core import function, net, problem_of

problem = problem_of("reductions")


@problem(scale=8)
def frobenius_norm(scale):
    return function(lambda x: x / torch.norm(x, p="fro")), [torch.randn(16 * scale, 64, 64, 64)]


@problem(scale=32)
def l1_norm(scale):
    x = torch.randn(128 * scale, 16384)
    return function(lambda x: x / x.abs().sum(1, keepdim=True)), [x]


@problem
def l2_norm(scale):
    x = torch.randn(128 * scale, 16384)
    return function(lambda x: x / torch.norm(x, p=2, dim=1, keepdim=True)), [x]


@problem
def rms_norm_channels(scale):
    x = torch.randn(8 * scale, 64, 64, 64)
    return function(lambda x: x / torch.sqrt(x.square().mean(1, keepdim=True) + 1e-5)), [x]


@problem
def instance_norm(scale):
    return nn.InstanceNorm2d(64), [torch.randn(8 * scale, 64, 64, 64)]


@problem
def group_norm(scale):
    return nn.GroupNorm(8, 64), [torch.randn(8 * scale, 64, 64, 64)]


@problem
def layer_norm_image(scale):
    return nn.LayerNorm((64, 64, 64)), [torch.randn(8 * scale, 64, 64, 64)]


@problem
def batch_norm(scale):
    return nn.BatchNorm2d(64), [torch.randn(8 * scale, 64, 64, 64)]


@problem(trains=False)
def argmax_middle(scale):
    return function(lambda x: torch.argmax(x, dim=1)), [torch.randn(16 * scale, 256, 256)]


@problem
def product_middle(scale):
    x = 1 + 0.01 * torch.randn(16 * scale, 256, 256)
    return function(lambda x: torch.prod(x, dim=1)), [x]


@problem
def minimum_middle(scale):
    return function(lambda x: torch.min(x, dim=1)[0]), [torch.randn(16 * scale, 256, 256)]


@problem
def gelu_written_out(scale):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    return net(forward), [torch.randn(2000 * scale, 2000)]


@problem
def triplet_loss(scale):
    return function(F.triplet_margin_loss), [torch.randn(128 * scale, 4096) for _ in range(3)]


@problem
def kl_divergence(scale):
    rows = [torch.rand(128 * scale, 4096).softmax(-1) for _ in range(2)]
    return function(lambda p, q: F.kl_div(torch.log(p), q, reduction="batchmean")), rows


@problem
def huber_loss(scale):
    return function(F.smooth_l1_loss), [torch.randn(128 * scale, 4096) for _ in range(2)]


@problem
def hinge_loss(scale):
    def forward(self, predicted, sign):
        return torch.mean(torch.clamp(1 - predicted * sign, min=0))

    signs = torch.randint(0, 2, (128 * scale,)) * 2 - 1
    return net(forward), [torch.randn(4096, 128 * scale), signs.float()]


@problem
def cosine_loss(scale):
    rows = [torch.randn(128 * scale, 4096) for _ in range(2)]
    return function(lambda p, q: (1 - F.cosine_similarity(p, q, dim=1)).mean()), rows


@problem
def cross_entropy(scale):
    logits, classes = torch.randn(4096 * scale, 10), torch.randint(0, 10, (4096 * scale,))
    return function(F.cross_entropy), [logits, classes]


@problem
def focal_loss(scale):
    def forward(self, x, target):
        loss = F.binary_cross_entropy_with_logits(x, target, reduction="none")
        p = torch.sigmoid(x)
        right = p * target + (1 - p) * (1 - target)
        return (loss * (1 - right) ** 2).mean()

    shape = 256 * scale, 1000
    return net(forward), [torch.randn(shape), (torch.rand(shape) > 0.9).float()]


@problem
def dice_loss(scale):
    def forward(self, x, target):
        p = x.softmax(1)
        both, either = (p * target).sum((2, 3)), p.sum((2, 3)) + target.sum((2, 3))
        return (1 - (2 * both + 1) / (either + 1)).mean()

    shape = 4 * scale, 8, 128, 128
    return net(forward), [torch.randn(shape), torch.rand(shape)]


@problem(scale=8)
def contrastive_loss(scale):
    def forward(self, a, b):
        scores = F.normalize(a, dim=1) @ F.normalize(b, dim=1).T / 0.07
        return F.cross_entropy(scores, torch.arange(a.shape[0], device=a.device))

    return net(forward), [torch.randn(512 * scale, 128) for _ in range(2)]
