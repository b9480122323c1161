"""Matrix products, alone and with what follows them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from problem_set.core import function, net, problem_of, weight

problem = problem_of("products")


@problem
def matmul_3d(scale):
    return function(torch.matmul), [torch.randn(16 * scale, 128, 256), torch.randn(256, 96)]


@problem
def matmul_4d(scale):
    def forward(self, x, w):
        return torch.einsum("bijl,lk->bijk", x, w)

    return net(forward), [torch.randn(4 * scale, 16, 32, 128), torch.randn(128, 192)]


@problem
def matmul_batched(scale):
    return function(torch.bmm), [torch.randn(8 * scale, 64, 128), torch.randn(8 * scale, 128, 96)]


@problem
def matmul_both_transposed(scale):
    return function(lambda a, b: a.T @ b.T), [torch.randn(512, 64 * scale), torch.randn(256, 512)]


@problem
def matmul_triangular(scale):
    side = 256 if scale == 1 else 2048
    squares = [torch.tril(torch.randn(side, side)) for _ in range(2)]
    return function(lambda a, b: torch.tril(a @ b)), squares


@problem
def matmul_diagonal(scale):
    inputs = [torch.randn(512), torch.randn(512, 64 * scale)]
    return function(lambda diagonal, x: torch.diag(diagonal) @ x), inputs


@problem
def matrix_vector(scale):
    return function(torch.matmul), [torch.randn(256 * scale, 4096), torch.randn(4096, 1)]


@problem
def gemm_swish_scale(scale):
    def forward(self, x):
        y = self.linear(x)
        return y * torch.sigmoid(y) * 2.0

    return net(forward, linear=nn.Linear(1024, 512)), [torch.randn(128 * scale, 1024)]


@problem
def gemm_batch_norm_gelu_relu(scale):
    def forward(self, x):
        return F.relu(F.gelu(self.norm(self.linear(x))))

    parts = dict(linear=nn.Linear(512, 1024), norm=nn.BatchNorm1d(1024))
    return net(forward, **parts), [torch.randn(64 * scale, 512)]


@problem
def gemm_group_norm_hardtanh(scale):
    def forward(self, x):
        return F.hardtanh(self.norm(self.linear(x)), -2.0, 2.0)

    parts = dict(linear=nn.Linear(512, 512), norm=nn.GroupNorm(8, 512))
    return net(forward, **parts), [torch.randn(128 * scale, 512)]


@problem
def gemm_max_sum_scale(scale):
    def forward(self, x):
        y = F.max_pool1d(self.linear(x).unsqueeze(1), 2).squeeze(1)
        return torch.sum(y, dim=1) * 0.5

    return net(forward, linear=nn.Linear(512, 512)), [torch.randn(128 * scale, 512)]


@problem
def gemm_subtract_mean_gelu_residual(scale):
    def forward(self, x):
        y = torch.mean(self.linear(x) - self.shift, dim=1, keepdim=True)
        return F.gelu(torch.logsumexp(y, dim=1, keepdim=True)) + x

    parts = dict(linear=nn.Linear(512, 384), shift=weight(384))
    return net(forward, **parts), [torch.randn(64 * scale, 512)]


@problem
def gemm_instance_norm_residual(scale):
    """Each image is one pixel, so that the norm gives zero."""

    def forward(self, x, y):
        z = self.norm(self.linear(x).unsqueeze(1).unsqueeze(1)).squeeze(1).squeeze(1)
        return (z + y) * y

    parts = dict(linear=nn.Linear(64, 128), norm=nn.InstanceNorm2d(128))
    return net(forward, **parts), [torch.randn(128 * scale, 64), torch.randn(128 * scale, 128)]


@problem(scale=1)
def graph_convolution(scale):
    def forward(self, x, adjacent):
        return adjacent @ self.second(F.relu(adjacent @ self.first(x)))

    parts = dict(first=nn.Linear(128, 64), second=nn.Linear(64, 16))
    return net(forward, **parts), [torch.randn(500, 128), torch.rand(500, 500).softmax(-1)]
