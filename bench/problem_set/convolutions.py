"""Convolutions with what follows them, and pooling."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from problem_set.core import function, net, problem_of, weight

problem = problem_of("convolutions")


@problem
def conv_divide_leaky(scale):
    def forward(self, x):
        return F.leaky_relu(self.conv(x) / 2, 0.01)

    return net(forward, conv=nn.Conv2d(3, 16, 3)), [torch.randn(32 * scale, 3, 32, 32)]


@problem
def conv_hardswish_pool_mish(scale):
    def forward(self, x):
        return F.mish(F.max_pool2d(F.hardswish(self.conv(x) - 0.5), 2))

    return net(forward, conv=nn.Conv2d(3, 16, 3)), [torch.randn(32 * scale, 3, 32, 32)]


@problem
def conv_group_norm_tanh_logsumexp(scale):
    def forward(self, x):
        y = self.conv(x)
        return torch.logsumexp(y + F.hardswish(torch.tanh(self.norm(y))), dim=1, keepdim=True)

    parts = dict(conv=nn.Conv2d(3, 16, 3), norm=nn.GroupNorm(8, 16))
    return net(forward, **parts), [torch.randn(16 * scale, 3, 32, 32)]


@problem
def conv3d_min_softmax(scale):
    def forward(self, x):
        return torch.softmax(torch.min(self.conv(x), dim=2)[0], dim=1)

    return net(forward, conv=nn.Conv3d(3, 16, 3)), [torch.randn(4 * scale, 3, 16, 32, 32)]


@problem
def conv_transpose_mean_logsumexp(scale):
    def forward(self, x):
        y = torch.mean(self.conv(x), dim=(2, 3), keepdim=True) + self.bias
        return torch.sum(torch.logsumexp(y, dim=1, keepdim=True), dim=(2, 3)) * 10

    parts = dict(conv=nn.ConvTranspose2d(3, 16, 3), bias=weight(16, 1, 1))
    return net(forward, **parts), [torch.randn(16 * scale, 3, 32, 32)]


@problem
def conv_transpose_bias_clamp(scale):
    def forward(self, x):
        y = torch.clamp(self.conv(x) + self.bias, min=0.0, max=1.0)
        return torch.clamp(y * 2.0, min=0.0, max=1.0) / 2.0

    conv = nn.ConvTranspose2d(3, 16, 3, stride=2, padding=1, output_padding=1)
    return net(forward, conv=conv, bias=weight(16, 1, 1)), [torch.randn(16 * scale, 3, 32, 32)]


@problem
def conv_transpose3d_layer_norm_gelu(scale):
    """The norm is over the last dimension, the width."""

    def forward(self, x):
        return F.gelu(self.norm(self.conv(x))) * 0.5

    parts = dict(conv=nn.ConvTranspose3d(8, 16, 4, stride=2, padding=1), norm=nn.LayerNorm(32))
    return net(forward, **parts), [torch.randn(2 * scale, 8, 8, 16, 16)]


@problem
def depthwise_separable(scale):
    def forward(self, x):
        return self.pointwise(self.depthwise(x))

    parts = dict(depthwise=nn.Conv2d(32, 32, 3, groups=32), pointwise=nn.Conv2d(32, 64, 1))
    return net(forward, **parts), [torch.randn(8 * scale, 32, 64, 64)]


@problem
def conv1d_dilated(scale):
    return nn.Conv1d(32, 64, 3, stride=2, dilation=4), [torch.randn(8 * scale, 32, 1024)]


@problem
def average_pool3d(scale):
    return function(lambda x: F.avg_pool3d(x, 3, 2, 1)), [torch.randn(4 * scale, 16, 32, 32, 32)]


@problem
def maximum_pool1d(scale):
    return function(lambda x: F.max_pool1d(x, 4, 2, 1)), [torch.randn(16 * scale, 64, 1024)]


@problem
def upsample_block(scale):
    def forward(self, x):
        up = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return F.relu(self.norm(self.conv(up)))

    parts = dict(conv=nn.Conv2d(32, 16, 3, padding=1), norm=nn.BatchNorm2d(16))
    return net(forward, **parts), [torch.randn(4 * scale, 32, 32, 32)]


@problem
def pixel_shuffle_image(scale):
    def forward(self, x):
        fine = F.pixel_shuffle(self.second(F.relu(self.first(x))), 2)
        return torch.clamp(fine + F.interpolate(x, scale_factor=2), 0, 1)

    parts = dict(first=nn.Conv2d(3, 32, 3, padding=1), second=nn.Conv2d(32, 12, 3, padding=1))
    return net(forward, **parts), [torch.rand(4 * scale, 3, 64, 64)]


@problem
def wavenet(scale):
    """Gated, dilated convolutions that see only the past."""

    def forward(self, x):
        skipped = 0
        for step, (conv, out) in enumerate(zip(self.convs, self.outs)):
            a, b = conv(F.pad(x, (2**step, 0))).chunk(2, 1)
            gated = torch.tanh(a) * torch.sigmoid(b)
            skipped, x = skipped + out(gated), x + gated
        return F.relu(skipped)

    convs = nn.ModuleList(nn.Conv1d(32, 64, 2, dilation=2**i) for i in range(5))
    outs = nn.ModuleList(nn.Conv1d(32, 32, 1) for _ in range(5))
    return net(forward, convs=convs, outs=outs), [torch.randn(8 * scale, 32, 1024)]
