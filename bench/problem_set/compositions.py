"""A product or a convolution of usual size, and several operations behind it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from problem_set.core import function, net, problem_of, weight

problem = problem_of("compositions")


def behind(first: nn.Module, rest: Callable, **parts: nn.Module | nn.Parameter) -> nn.Module:
    """`rest(self, first(x))`, a module of a class of its own."""

    def forward(self, x):
        return rest(self, self.first(x))

    return net(forward, first=first, **parts)


@problem
def linear_sigmoid_sum_logsumexp(scale):
    def rest(self, y):
        return torch.logsumexp(torch.sigmoid(y).sum(1), dim=0)

    return behind(nn.Linear(512, 1024), rest), [torch.randn(64 * scale, 512)]


@problem
def linear_softmax_dropout(scale):
    def rest(self, y):
        return F.softmax(F.dropout(y, 0.0), dim=1)

    return behind(nn.Linear(512, 1024), rest), [torch.randn(64 * scale, 512)]


@problem
def linear_batch_norm_scale_softmax(scale):
    def rest(self, y):
        return torch.softmax(self.scale * self.norm(y), dim=1)

    parts = dict(norm=nn.BatchNorm1d(512), scale=weight(1))
    return behind(nn.Linear(512, 512), rest, **parts), [torch.randn(64 * scale, 512)]


@problem
def linear_average_pool_gelu_max(scale):
    def rest(self, y):
        pooled = F.avg_pool1d(y.unsqueeze(1), 4).squeeze(1)
        return torch.max(F.gelu(pooled) * 2.0, dim=1).values

    return behind(nn.Linear(512, 512), rest), [torch.randn(64 * scale, 512)]


@problem
def linear_max_pool_sum_scale(scale):
    def rest(self, y):
        return F.max_pool1d(y.unsqueeze(1), 2).squeeze(1).sum(1) * 0.5

    return behind(nn.Linear(512, 2048), rest), [torch.randn(32 * scale, 512)]


@problem
def linear_swish_sum_group_norm(scale):
    def rest(self, y):
        return self.norm(torch.sigmoid(y) * y + self.bias)

    parts = dict(norm=nn.GroupNorm(16, 1024), bias=weight(1024))
    return behind(nn.Linear(256, 1024), rest, **parts), [torch.randn(64 * scale, 256)]


@problem
def linear_group_norm_min_bias(scale):
    def rest(self, y):
        return torch.min(self.norm(y), dim=1, keepdim=True).values + self.bias

    parts = dict(norm=nn.GroupNorm(8, 256), bias=weight(1, 256, 1, 1))
    return behind(nn.Linear(512, 256), rest, **parts), [torch.randn(16 * scale, 512)]


@problem
def linear_minimum_subtract(scale):
    def rest(self, y):
        return torch.min(y, self.bound) - self.bound

    parts = dict(bound=weight())
    return behind(nn.Linear(1024, 1024), rest, **parts), [torch.randn(64 * scale, 1024)]


@problem
def linear_divide_sum_scale(scale):
    """A product whose columns are only added up."""
    made = net(
        lambda self, x: torch.sum(x @ self.weight.T / 2, dim=1, keepdim=True) * 1.5,
        weight=weight(2048, 1024, std=0.02),
    )
    return made, [torch.randn(64 * scale, 1024)]


@problem
def batched_product_instance_norm_residual(scale):
    def forward(self, x, y):
        z = self.norm(self.linear(x).unsqueeze(1).unsqueeze(1)).squeeze(1).squeeze(1)
        return (z + y) * y

    parts = dict(linear=nn.Linear(512, 512), norm=nn.InstanceNorm2d(1))
    return net(forward, **parts), [torch.randn(64 * scale, 512), torch.randn(64 * scale, 512)]


@problem
def conv_instance_norm_divide(scale):
    def rest(self, y):
        return self.norm(y) / 2.0

    made = behind(nn.Conv2d(16, 64, 3), rest, norm=nn.InstanceNorm2d(64))
    return made, [torch.randn(4 * scale, 16, 64, 64)]


@problem
def conv_min_tanh_tanh(scale):
    def rest(self, y):
        return torch.tanh(torch.tanh(torch.min(y, dim=1, keepdim=True).values))

    return behind(nn.Conv2d(16, 64, 3), rest), [torch.randn(4 * scale, 16, 96, 96)]


@problem
def conv_softplus_tanh_batch_norm(scale):
    def rest(self, y):
        return self.norm(torch.tanh(F.softplus(y)) * y)

    made = behind(nn.Conv2d(32, 64, 3), rest, norm=nn.BatchNorm2d(64))
    return made, [torch.randn(4 * scale, 32, 64, 64)]


@problem
def conv_average_pool_sigmoid_sum(scale):
    def rest(self, y):
        return torch.sigmoid(F.avg_pool2d(y, 4)).sum(dim=(1, 2, 3))

    return behind(nn.Conv2d(8, 64, 3), rest), [torch.randn(4 * scale, 8, 98, 98)]


@problem
def conv_tanh_scale_bias_max_pool(scale):
    def rest(self, y):
        return F.max_pool2d(torch.tanh(y) * 2.0 + self.bias, 4)

    made = behind(nn.Conv2d(8, 64, 3), rest, bias=weight(64, 1, 1))
    return made, [torch.randn(4 * scale, 8, 98, 98)]


@problem
def conv_group_norm_scale_pool_clamp(scale):
    def rest(self, y):
        return F.max_pool2d(self.norm(y) * self.scale, 4).clamp(0.0, 1.0)

    parts = dict(norm=nn.GroupNorm(16, 64), scale=weight(64, 1, 1))
    return behind(nn.Conv2d(8, 64, 3), rest, **parts), [torch.randn(4 * scale, 8, 98, 98)]


@problem
def conv_mean_of_image(scale):
    def rest(self, y):
        return torch.mean(F.gelu(y), dim=(2, 3))

    return behind(nn.Conv2d(8, 64, 3), rest), [torch.randn(4 * scale, 8, 96, 96)]


@problem
def conv3d_scale_tanh_sigmoid(scale):
    def rest(self, y):
        return torch.sigmoid(torch.tanh(y * self.scale) * self.bias)

    parts = dict(scale=weight(16, 1, 1, 1), bias=weight(16, 1, 1, 1))
    made = behind(nn.Conv3d(3, 16, 3), rest, **parts)
    return made, [torch.randn(2 * scale, 3, 16, 48, 48)]


@problem
def conv3d_group_norm_min_clamp(scale):
    def rest(self, y):
        return torch.clamp(torch.min(self.norm(y), self.low), min=0.0, max=1.0)

    made = behind(nn.Conv3d(3, 16, 3), rest, norm=nn.GroupNorm(8, 16), low=weight())
    return made, [torch.randn(2 * scale, 3, 16, 48, 48)]


@problem
def conv3d_logsumexp_relu_pool(scale):
    def rest(self, y):
        return F.relu(torch.logsumexp(F.max_pool3d(y, 2), dim=1, keepdim=True))

    return behind(nn.Conv3d(3, 32, 3, padding=1), rest), [torch.randn(scale, 3, 16, 64, 64)]


@problem
def conv3d_softmax_pool_pool(scale):
    def rest(self, y):
        return F.max_pool3d(F.max_pool3d(torch.softmax(y, dim=1), 2), 2)

    return behind(nn.Conv3d(3, 16, 3), rest), [torch.randn(2 * scale, 3, 16, 48, 48)]


@problem
def conv_transpose_pool_hardtanh_mean_tanh(scale):
    def rest(self, y):
        return torch.tanh(F.hardtanh(F.max_pool2d(y, 2)).mean(dim=(2, 3), keepdim=True))

    made = behind(nn.ConvTranspose2d(32, 32, 3, padding=1), rest)
    return made, [torch.randn(4 * scale, 32, 64, 64)]


@problem
def conv_transpose_softmax_bias_sigmoid(scale):
    def rest(self, y):
        return torch.sigmoid((torch.softmax(y, dim=1) + self.bias) * 2.0)

    conv = nn.ConvTranspose2d(32, 64, 4, stride=2, padding=1, output_padding=1)
    return behind(conv, rest, bias=weight(64, 1, 1)), [torch.randn(2 * scale, 32, 32, 32)]


@problem
def conv_transpose_add_min_gelu(scale):
    def rest(self, y):
        return F.gelu(torch.min(y + 0.5, torch.zeros((), device=y.device))) * 2.0

    conv = nn.ConvTranspose2d(32, 64, 4, stride=2)
    return behind(conv, rest), [torch.randn(2 * scale, 32, 32, 32)]


@problem
def conv_transpose3d_norm_pool_pool(scale):
    def rest(self, y):
        return F.avg_pool3d(F.avg_pool3d(self.norm(y), 2), 2)

    conv = nn.ConvTranspose3d(3, 16, 3, stride=2, padding=1)
    made = behind(conv, rest, norm=nn.BatchNorm3d(16))
    return made, [torch.randn(2 * scale, 3, 16, 24, 24)]


@problem
def conv_transpose3d_swish_group_norm_hardswish(scale):
    def rest(self, y):
        return F.hardswish(self.norm(torch.sigmoid(y) * y))

    conv = nn.ConvTranspose3d(3, 16, 3, stride=2, padding=1)
    made = behind(conv, rest, norm=nn.GroupNorm(4, 16))
    return made, [torch.randn(2 * scale, 3, 16, 24, 24)]


@problem(trains=False)
def product_of_few_columns(scale):
    return function(torch.matmul), [torch.randn(2048 * scale, 64), torch.randn(64, 48)]


@problem
def product_of_long_depth(scale):
    return function(torch.matmul), [torch.randn(256, 8192 * scale), torch.randn(8192 * scale, 256)]


@problem
def product_of_odd_sizes(scale):
    return function(torch.matmul), [torch.randn(515, 61 * scale), torch.randn(61 * scale, 397)]
