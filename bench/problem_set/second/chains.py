"""Pools, convolutions, and chains behind products and convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from problem_set.second.kit import R, case, net, weight

# -- pools and convolutions --
whole, plain = case("convolutions")

plain(
    "max_pool1d_dilated", lambda x: F.max_pool1d(x, 5, 2, 2, dilation=2), lambda s: [R(s, 77, 3333)]
)
plain(
    "average_pool1d_odd",
    lambda x: F.avg_pool1d(x, 7, 3, 3, count_include_pad=False),
    lambda s: [R(s, 100, 3333)],
)
plain(
    "max_pool2d_dilated",
    lambda x: F.max_pool2d(x, 3, 1, 1, dilation=2),
    lambda s: [R(s, 33, 90, 77)],
)
plain(
    "average_pool2d_rectangular",
    lambda x: F.avg_pool2d(x, (5, 3), (2, 1), (1, 1)),
    lambda s: [R(s, 33, 100, 77)],
)
plain("max_pool3d_overlapping", lambda x: F.max_pool3d(x, 3, 2, 1), lambda s: [R(s, 9, 31, 33, 35)])
plain(
    "average_pool3d_of_time",
    lambda x: F.avg_pool3d(x, (4, 1, 1), (2, 1, 1)),
    lambda s: [R(s, 7, 32, 33, 35)],
)
plain(
    "adaptive_pool_odd",
    lambda x: F.adaptive_avg_pool2d(x, (6, 7)) - F.adaptive_max_pool2d(x, (6, 7)),
    lambda s: [R(2 * s, 77, 50, 41)],
)
whole(
    "conv1d_strided_dilated",
    lambda s: (nn.Conv1d(33, 77, 7, stride=3, dilation=2), [R(2 * s, 33, 3000)]),
)
whole(
    "conv1d_grouped_wide",
    lambda s: (nn.Conv1d(120, 120, 15, padding=7, groups=6), [R(s, 120, 1500)]),
)
whole(
    "conv_asymmetric",
    lambda s: (nn.Conv2d(24, 48, (3, 7), padding=(1, 3), stride=(1, 2)), [R(s, 24, 100, 77)]),
)
whole(
    "conv_asymmetric_dilated",
    lambda s: (nn.Conv2d(17, 40, (5, 3), dilation=(2, 3), bias=False), [R(s, 17, 99, 100)]),
)
whole(
    "conv_separated_in_rows_and_columns",
    lambda s: (
        nn.Sequential(
            nn.Conv2d(32, 32, (1, 5), padding=(0, 2)), nn.Conv2d(32, 48, (5, 1), padding=(2, 0))
        ),
        [R(s, 32, 77, 77)],
    ),
)
whole(
    "conv_grouped_strided",
    lambda s: (nn.Conv2d(60, 120, 3, stride=2, groups=5), [R(s, 60, 101, 77)]),
)
whole(
    "depthwise_strided_of_five",
    lambda s: (nn.Conv2d(99, 99, 5, stride=2, padding=2, groups=99), [R(s, 99, 77, 77)]),
)
whole(
    "depthwise_of_twice_as_many",
    lambda s: (nn.Conv2d(50, 100, 3, padding=1, groups=50, bias=False), [R(s, 50, 70, 71)]),
)
whole("pointwise_odd", lambda s: (nn.Conv2d(77, 133, 1), [R(s, 77, 63, 65)]))
whole("conv_of_one_image", lambda s: (nn.Conv2d(3, 40, 5, padding=2), [R(1, 3, 33 * s, 33 * s)]))
whole(
    "conv3d_asymmetric",
    lambda s: (nn.Conv3d(6, 20, (3, 5, 7), padding=(1, 2, 3)), [R(s, 6, 10, 40, 41)]),
)
whole(
    "conv3d_strided_grouped",
    lambda s: (nn.Conv3d(16, 32, 3, stride=(1, 2, 2), groups=4), [R(s, 16, 15, 45, 47)]),
)
whole(
    "conv_transpose1d_strided",
    lambda s: (
        nn.ConvTranspose1d(60, 33, 5, stride=3, padding=1, output_padding=1),
        [R(s, 60, 1000)],
    ),
)
whole(
    "conv_transpose_asymmetric",
    lambda s: (
        nn.ConvTranspose2d(33, 20, (3, 5), stride=(1, 2), padding=(1, 2)),
        [R(s, 33, 60, 41)],
    ),
)
whole(
    "conv_transpose_dilated_grouped",
    lambda s: (
        nn.ConvTranspose2d(32, 32, 3, stride=2, padding=2, dilation=2, groups=4),
        [R(s, 32, 45, 47)],
    ),
)
whole(
    "conv_transpose3d_asymmetric",
    lambda s: (
        nn.ConvTranspose3d(16, 12, (3, 4, 4), stride=(1, 2, 2), padding=1),
        [R(s, 16, 9, 25, 27)],
    ),
)

# -- chains --
whole, plain = case("chains")


def chain(name, first, rest, inputs, parts=lambda: {}, **fields):
    """`rest(self, first(x))`."""

    def forward(self, x):
        return rest(self, self.first(x))

    whole(name, lambda s: (net(forward, first=first(), **parts()), [inputs(s)]), **fields)


L, C = nn.Linear, nn.Conv2d
chain(
    "gemm_relu_divide",
    lambda: L(777, 1000),
    lambda m, y: F.relu(y) / 2.5,
    lambda s: R(100 * s, 777),
)
chain(
    "gemm_leaky_add_clamp",
    lambda: L(1000, 1333),
    lambda m, y: torch.clamp(F.leaky_relu(y, 0.2) + m.bias, -1, 2),
    lambda s: R(64 * s, 1000),
    lambda: dict(bias=weight(1333)),
)
chain(
    "gemm_mish_layer_norm_residual",
    lambda: L(600, 600),
    lambda m, y: y + m.norm(F.mish(y)),
    lambda s: R(125 * s, 600),
    lambda: dict(norm=nn.LayerNorm(600)),
    low=True,
)
chain(
    "gemm_softplus_mean_subtract",
    lambda: L(500, 900),
    lambda m, y: F.softplus(y) - F.softplus(y).mean(0, keepdim=True),
    lambda s: R(100 * s, 500),
)
chain(
    "gemm_absolute_square_root_sum",
    lambda: L(800, 1111),
    lambda m, y: (y.abs() + 1e-3).sqrt().sum(1, keepdim=True),
    lambda s: R(100 * s, 800),
)
chain(
    "gemm_group_norm_mish_gate_maximum",
    lambda: L(700, 960),
    lambda m, y: (F.mish(m.norm(y)) * m.gate.sigmoid()).amax(1),
    lambda s: R(100 * s, 700),
    lambda: dict(norm=nn.GroupNorm(15, 960), gate=weight(960)),
)
chain(
    "gemm_argmax_of_softmax",
    lambda: L(333, 1500),
    lambda m, y: y.softmax(-1).max(-1),
    lambda s: R(125 * s, 333),
)
chain(
    "gemm_l2_normalise_scale",
    lambda: L(512, 300, bias=False),
    lambda m, y: F.normalize(y, dim=1) * m.scale.exp(),
    lambda s: R(250 * s, 512),
    lambda: dict(scale=weight(1)),
)
chain(
    "gemm_elu_batch_norm_product_of_halves",
    lambda: L(400, 1000),
    lambda m, y: (lambda a, b: a * b)(*m.norm(F.elu(y)).chunk(2, 1)),
    lambda s: R(128 * s, 400),
    lambda: dict(norm=nn.BatchNorm1d(1000)),
)
chain(
    "gemm_running_sum_tanh",
    lambda: L(300, 777),
    lambda m, y: torch.tanh(y.cumsum(1) * 0.1),
    lambda s: R(125 * s, 300),
)
chain(
    "gemm_three_activations_added",
    lambda: L(640, 640),
    lambda m, y: F.silu(y) + torch.tanh(y) + F.hardsigmoid(y) * y,
    lambda s: R(150 * s, 640),
)
chain(
    "gemm_gumbel_straight_through",
    lambda: L(200, 333),
    lambda m, y: (y.softmax(1) > 1 / 333).to(y.dtype) - y.softmax(1).detach() + y.softmax(1),
    lambda s: R(300 * s, 200),
)
chain(
    "gemm_variance_of_groups",
    lambda: L(512, 990),
    lambda m, y: y.unflatten(1, (33, 30)).var(2).log1p(),
    lambda s: R(128 * s, 512),
)
chain(
    "gemm_pair_of_products_gate",
    lambda: L(256, 1024),
    lambda m, y: m.second(F.relu(y).square()) * m.third(y).sigmoid(),
    lambda s: R(128 * s, 256),
    lambda: dict(second=L(1024, 256), third=L(1024, 256)),
    low=True,
)
chain(
    "gemm_max_pool_gelu_scale_sum",
    lambda: L(333, 1001),
    lambda m, y: (F.gelu(F.max_pool1d(y[:, None], 3, 2).squeeze(1)) * 0.3).sum(1),
    lambda s: R(200 * s, 333),
)
chain(
    "gemm_logsumexp_leaky_gelu",
    lambda: L(1000, 512),
    lambda m, y: F.gelu(F.leaky_relu(y.logsumexp(1, keepdim=True))),
    lambda s: R(100 * s, 1000),
)
chain(
    "conv_relu_bias_hardswish",
    lambda: C(24, 64, 3),
    lambda m, y: F.hardswish(F.relu(y) + m.bias),
    lambda s: R(s, 24, 65, 77),
    lambda: dict(bias=weight(64, 1, 1)),
)
chain(
    "conv_subtract_tanh_average_pool",
    lambda: C(16, 50, 3, padding=1),
    lambda m, y: F.avg_pool2d(torch.tanh(y - 0.5) - 0.2, 3, 2),
    lambda s: R(s, 16, 77, 99),
)
chain(
    "conv_logsumexp_of_space",
    lambda: C(24, 72, 3),
    lambda m, y: F.elu(torch.logsumexp(y, (2, 3))),
    lambda s: R(s, 24, 66, 67),
)
chain(
    "conv_layer_norm_of_channels_gelu",
    lambda: C(32, 60, 3),
    lambda m, y: F.gelu(m.norm(y.permute(0, 2, 3, 1))).permute(0, 3, 1, 2),
    lambda s: R(s, 32, 60, 61),
    lambda: dict(norm=nn.LayerNorm(60)),
)
chain(
    "conv_softmax_of_channels_entropy",
    lambda: C(12, 30, 3),
    lambda m, y: -(y.softmax(1) * (y.softmax(1) + 1e-6).log()).sum(1),
    lambda s: R(s, 12, 111, 99),
)
chain(
    "conv_batch_norm_maxout",
    lambda: C(20, 64, 3, padding=1),
    lambda m, y: m.norm(y).unflatten(1, (16, 4)).amax(2),
    lambda s: R(s, 20, 64, 63),
    lambda: dict(norm=nn.BatchNorm2d(64)),
)
chain(
    "conv_global_maximum_softmax",
    lambda: C(30, 100, 3),
    lambda m, y: y.amax((2, 3)).softmax(1),
    lambda s: R(s, 30, 65, 65),
)
chain(
    "conv_of_five_norm_pool_sigmoid_shift",
    lambda: C(8, 48, 5, stride=2),
    lambda m, y: torch.sigmoid(F.max_pool2d(m.norm(y), 2) * 1.3) - m.shift,
    lambda s: R(s, 8, 150, 131),
    lambda: dict(norm=nn.InstanceNorm2d(48, affine=True), shift=weight(48, 1, 1)),
)
chain(
    "conv_two_branches_minimum",
    lambda: C(20, 40, 3, padding=1),
    lambda m, y: torch.minimum(m.one(y), m.two(y)).mean((2, 3)),
    lambda s: R(s, 20, 57, 57),
    lambda: dict(one=C(40, 40, 1), two=C(40, 40, 3, padding=1)),
)
chain(
    "conv1d_group_norm_glu_skip",
    lambda: nn.Conv1d(60, 120, 5, padding=2),
    lambda m, y: F.glu(m.norm(y), 1) + y[:, :60],
    lambda s: R(s, 60, 1333),
    lambda: dict(norm=nn.GroupNorm(6, 120)),
)
chain(
    "conv1d_batch_norm_relu_pool_std",
    lambda: nn.Conv1d(40, 80, 9, stride=2),
    lambda m, y: torch.cat([F.relu(m.norm(y)).mean(2), F.relu(m.norm(y)).std(2)], 1),
    lambda s: R(s, 40, 3000),
    lambda: dict(norm=nn.BatchNorm1d(80)),
)
chain(
    "conv3d_leaky_sum_clamp_gelu",
    lambda: nn.Conv3d(6, 24, 3),
    lambda m, y: F.gelu(torch.clamp(F.leaky_relu(y, 0.2) + m.bias, -1, 1)),
    lambda s: R(s, 6, 14, 33, 35),
    lambda: dict(bias=weight(24, 1, 1, 1)),
)
chain(
    "conv3d_batch_norm_swish_mean_of_time",
    lambda: nn.Conv3d(4, 24, (3, 3, 3), padding=1),
    lambda m, y: F.silu(m.norm(y)).mean(2),
    lambda s: R(s, 4, 13, 40, 41),
    lambda: dict(norm=nn.BatchNorm3d(24)),
)
chain(
    "conv3d_min_of_channels_sum_of_space",
    lambda: nn.Conv3d(5, 18, 3, stride=2),
    lambda m, y: y.amin(1).sum((2, 3)).sigmoid(),
    lambda s: R(s, 5, 21, 50, 51),
)
chain(
    "conv_transpose_batch_norm_tanh_max_pool_norm",
    lambda: nn.ConvTranspose2d(40, 30, 4, 2, 1),
    lambda m, y: m.last(F.max_pool2d(torch.tanh(m.norm(y)), 2)),
    lambda s: R(s, 40, 31, 33),
    lambda: dict(norm=nn.BatchNorm2d(30), last=nn.GroupNorm(5, 30)),
)
chain(
    "conv_transpose_softmax_of_space_sum",
    lambda: nn.ConvTranspose2d(48, 24, 3, 2, 1, 1),
    lambda m, y: (y.flatten(2).softmax(2) * y.flatten(2)).sum(2),
    lambda s: R(s, 48, 33, 35),
)
chain(
    "conv_transpose3d_relu_scale_mean_add",
    lambda: nn.ConvTranspose3d(12, 12, 3, 2, 1),
    lambda m, y: F.relu(y) * 2 + y.mean(1, keepdim=True),
    lambda s: R(s, 12, 9, 17, 19),
)
chain(
    "conv_transpose1d_layer_norm_swish",
    lambda: nn.ConvTranspose1d(48, 33, 4, 2, 1),
    lambda m, y: F.silu(F.layer_norm(y, y.shape[-1:])),
    lambda s: R(s, 48, 1001),
)
chain(
    "depthwise_pointwise_hardtanh_norm",
    lambda: C(64, 64, 5, padding=2, groups=64),
    lambda m, y: m.norm(F.hardtanh(m.point(y), 0, 6)),
    lambda s: R(s, 64, 50, 51),
    lambda: dict(point=C(64, 90, 1), norm=nn.BatchNorm2d(90)),
)
chain(
    "conv_spatial_attention",
    lambda: C(16, 48, 3, padding=1),
    lambda m, y: (
        y * torch.sigmoid(m.gate(torch.cat([y.mean(1, keepdim=True), y.amax(1, keepdim=True)], 1)))
    ),
    lambda s: R(s, 16, 63, 64),
    lambda: dict(gate=C(2, 1, 7, padding=3)),
)
