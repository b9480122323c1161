"""Operators that the other files lack, over odd sizes: running reductions, order, gathers, pools
and convolutions of other dimensions, masks, losses, short recurrences, mixed types."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from problem_set.core import function, net, problem_of, weight

problem = problem_of("operators")


@problem
def running_maximum(scale):
    def forward(x):
        best, place = torch.cummax(x * 2, dim=1)
        return best - x, place

    return function(forward), [torch.randn(64 * scale, 1537)]


@problem
def running_logsumexp(scale):
    return function(lambda x: torch.logcumsumexp(x, 1) - x), [torch.randn(64 * scale, 1537)]


@problem
def running_mean_of_rows(scale):
    def forward(x):
        steps = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)
        return x - x.cumsum(1) / steps[:, None]

    return function(forward), [torch.randn(8 * scale, 513, 67)]


@problem
def summed_area(scale):
    """Sums over boxes by two running sums."""

    def forward(x):
        area = F.pad(x.cumsum(2).cumsum(3), (1, 0, 1, 0))
        wide = area[:, :, 5:] - area[:, :, :-5]
        return (wide[..., 5:] - wide[..., :-5]) / 25

    return function(forward), [torch.randn(4 * scale, 8, 75, 91)]


@problem(trains=False)
def nucleus_of_logits(scale):
    """Sampling from the smallest set of tokens that has nine tenths of the probability."""

    def forward(x):
        ordered, which = torch.sort(x / 0.8, descending=True)
        p = ordered.softmax(-1)
        cut = ordered.masked_fill(p.cumsum(-1) - p > 0.9, float("-inf"))
        return torch.full_like(x, float("-inf")).scatter(-1, which, cut).softmax(-1)

    return function(forward), [3 * torch.randn(16 * scale, 3001)]


@problem
def sparse_gate(scale):
    def forward(x):
        best, which = torch.topk(torch.sigmoid(x) + x * 0.1, 5, dim=-1)
        return torch.zeros_like(x).scatter(-1, which, best / best.sum(-1, keepdim=True))

    return function(forward), [torch.randn(2000 * scale, 61)]


@problem
def median_filter(scale):
    """Of windows of 3 x 3, by a sort."""

    def forward(x):
        windows = F.unfold(x, 3, padding=1).unflatten(1, (x.shape[1], 9))
        return windows.sort(2).values[:, :, 4].unflatten(-1, x.shape[2:]) - x

    return function(forward), [torch.randn(2 * scale, 3, 63, 65)]


@problem
def einsum_of_four(scale):
    def forward(self, x, y):
        return torch.einsum("bij,bjk,kd,i->bid", x, y, self.weight, self.scale).tanh()

    made = net(forward, weight=weight(37, 45, std=0.1), scale=weight(65))
    return made, [torch.randn(6 * scale, 65, 51), torch.randn(6 * scale, 51, 37)]


@problem
def bilinear_form(scale):
    return nn.Bilinear(33, 29, 17), [torch.randn(257 * scale, 33), torch.randn(257 * scale, 29)]


@problem
def tensor_contraction(scale):
    def forward(self, x):
        return torch.einsum("nchw,cdh->ndw", x, self.weight).relu()

    return net(forward, weight=weight(19, 23, 31, std=0.1)), [torch.randn(8 * scale, 19, 31, 41)]


@problem
def largest_of_groups(scale):
    def forward(x, index):
        start = torch.full((101, x.shape[1]), float("-inf"), device=x.device, dtype=x.dtype)
        best = start.scatter_reduce(0, index[:, None].expand_as(x), x, "amax")
        return (x - best[index]).exp()

    indices = torch.randint(0, 101, (3001 * scale,))
    return function(forward), [torch.randn(3001 * scale, 33), indices]


@problem
def mean_of_groups(scale):
    def forward(x, index):
        sums = torch.zeros(101, x.shape[1], device=x.device, dtype=x.dtype).index_add(0, index, x)
        ones = torch.ones_like(index, dtype=x.dtype)
        count = torch.zeros(101, device=x.device, dtype=x.dtype).index_add(0, index, ones)
        return x - (sums / count.clamp(min=1)[:, None])[index]

    indices = torch.randint(0, 101, (3001 * scale,))
    return function(forward), [torch.randn(3001 * scale, 33), indices]


@problem
def put_and_take(scale):
    def forward(x, rows, columns):
        grid = torch.zeros(65, 127, x.shape[1], device=x.device, dtype=x.dtype)
        grid = grid.index_put((rows, columns), x, accumulate=True)
        return F.silu(grid)[columns % 65, rows]

    count = 4001 * scale
    indices = [torch.randint(0, 65, (count,)), torch.randint(0, 127, (count,))]
    return function(forward), [torch.randn(count, 21), *indices]


@problem
def taken_along(scale):
    def forward(x, index):
        return torch.take_along_dim(x.softmax(1), index, 1).log() * 0.5

    index = torch.randint(0, 513, (64 * scale, 91, 5))
    return function(forward), [torch.randn(64 * scale, 513, 5), index]


@problem
def strided_conv_of_seven(scale):
    def forward(self, x):
        return F.elu(self.conv(x)).mean((2, 3))

    return net(forward, conv=nn.Conv2d(5, 37, 7, stride=3, padding=2)), [
        torch.randn(6 * scale, 5, 75, 69)]  # fmt: skip


@problem
def dilated_conv3d(scale):
    def forward(self, x):
        return F.hardswish(self.conv(x) + self.bias)

    conv = nn.Conv3d(6, 18, 3, padding=2, dilation=2, groups=2)
    made = net(forward, conv=conv, bias=weight(18, 1, 1, 1))
    return made, [torch.randn(2 * scale, 6, 11, 25, 27)]


@problem
def depthwise_conv1d_gated(scale):
    def forward(self, x):
        a, b = self.conv(x).chunk(2, 1)
        return a * torch.sigmoid(b)

    return net(forward, conv=nn.Conv1d(48, 96, 9, padding=4, groups=48)), [
        torch.randn(8 * scale, 48, 501)]  # fmt: skip


@problem
def conv_transpose1d_snake(scale):
    def forward(self, x):
        y = self.conv(x)
        return y + torch.sin(self.scale * y).square() / self.scale

    conv = nn.ConvTranspose1d(40, 24, 8, stride=4, padding=2)
    scales = nn.Parameter(1 + 0.1 * torch.rand(24, 1))
    return net(forward, conv=conv, scale=scales), [torch.randn(6 * scale, 40, 257)]


@problem
def max_pool3d_tanh(scale):
    def forward(x):
        return torch.tanh(F.max_pool3d(x, 3, stride=2, padding=1) * 0.5)

    return function(forward), [torch.randn(4 * scale, 7, 17, 33, 35)]


@problem
def pyramid_of_pools(scale):
    def forward(x):
        parts = [F.adaptive_avg_pool2d(x, n).flatten(1) for n in (1, 2, 3, 6)]
        return torch.cat([*parts, F.adaptive_max_pool2d(x, 4).flatten(1)], 1)

    return function(forward), [torch.randn(4 * scale, 21, 61, 53)]


@problem
def power_pool(scale):
    def forward(x):
        return F.lp_pool2d(F.softplus(x), 3, 3, stride=2) + 1

    return function(forward), [torch.randn(4 * scale, 11, 67, 71)]


@problem
def norm_of_channels_and_time(scale):
    """Statistics over the first and the last dimension, then a softmax over the middle one."""

    def forward(self, x):
        variance, mean = torch.var_mean(x, (0, 2), keepdim=True, correction=0)
        return ((x - mean) * torch.rsqrt(variance + 1e-5) * self.scale).softmax(1)

    return net(forward, scale=weight(1, 45, 1)), [torch.randn(9 * scale, 45, 301)]


@problem
def local_response(scale):
    return function(lambda x: F.local_response_norm(x.abs(), 5) * 2), [
        torch.randn(4 * scale, 27, 45, 47)]  # fmt: skip


@problem
def weight_standardised_conv(scale):
    def forward(self, x):
        variance, mean = torch.var_mean(self.weight, (1, 2, 3), keepdim=True)
        w = (self.weight - mean) * torch.rsqrt(variance + 1e-5)
        return F.group_norm(F.conv2d(x, w, self.bias, padding=1), 3)

    made = net(forward, weight=weight(27, 13, 3, 3), bias=weight(27))
    return made, [torch.randn(4 * scale, 13, 37, 35)]


@problem
def attention_in_segments(scale):
    """Of packed sequences, in a window of the past, with a soft cap."""

    def forward(q, k, v, segment):
        scores = torch.tanh(q @ k.transpose(-1, -2) * 0.05) * 20
        place = torch.arange(q.shape[-2], device=q.device)
        past = place[:, None] - place
        seen = (past >= 0) & (past < 50) & (segment[:, None, :, None] == segment[:, None, None])
        return scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v

    segment = torch.arange(201).div(67, rounding_mode="floor").expand(2 * scale, 201).contiguous()
    return function(forward), [*(torch.randn(2 * scale, 4, 201, 40) for _ in range(3)), segment]


@problem
def talking_heads(scale):
    def forward(self, q, k, v):
        scores = torch.einsum("bhid,bhjd,hg->bgij", q, k, self.before)
        return torch.einsum("bgij,gh,bhjd->bhid", scores.softmax(-1), self.after, v)

    made = net(forward, before=weight(6, 6, std=0.2), after=weight(6, 6))
    return made, [torch.randn(2 * scale, 6, 95, 24) for _ in range(3)]


@problem
def minimal_gated_steps(scale):
    """A recurrence by hand, with a norm in each step."""

    def forward(self, x, h):
        for t in range(6):
            u = torch.cat([x[:, t], h], 1)
            f = torch.sigmoid(self.forget(u))
            h = F.layer_norm((1 - f) * h + f * torch.tanh(self.update(u)), h.shape[1:])
        return h

    made = net(forward, forget=nn.Linear(83, 51), update=nn.Linear(83, 51))
    return made, [torch.randn(24 * scale, 6, 32), torch.randn(24 * scale, 51)]


@problem
def mixture_of_losses(scale):
    def forward(x, y, sign):
        logs = F.log_softmax(x, -1)
        smooth = F.cross_entropy(x, y, label_smoothing=0.1)
        variance = F.softplus(x[:, 2])
        nll = 0.5 * (variance.log() + (x[:, 0] - x[:, 1]) ** 2 / variance).mean()
        margin = F.multi_margin_loss(x, y) + F.soft_margin_loss(x, sign)
        return smooth + nll + margin + F.poisson_nll_loss(x, logs.exp())

    shape = 511 * scale, 203
    signs = torch.randint(0, 2, shape) * 2 - 1
    return function(forward), [torch.randn(shape), torch.randint(0, 203, shape[:1]), signs.float()]


@problem
def ranking_loss(scale):
    """Over all pairs of a row, in the order of what is wanted."""

    def forward(x, wanted):
        differ = x[:, :, None] - x[:, None]
        pairs = (wanted[:, :, None] > wanted[:, None]).to(x.dtype)
        return (F.softplus(-differ) * pairs).sum((1, 2)).div(pairs.sum((1, 2)) + 1).mean()

    return function(forward), [torch.randn(16 * scale, 87), torch.randn(16 * scale, 87)]


@problem
def integer_weights(scale):
    """An int8 weight with a scale for each row, and a sum in float64."""

    def forward(self, x):
        y = F.linear(x, self.codes.to(x.dtype) * self.scale)
        return y, y.double().square().mean(-1).sqrt().to(x.dtype)

    made = net(forward, scale=weight(301, 1, std=0.01))
    made.register_buffer("codes", torch.randint(-127, 128, (301, 203), dtype=torch.int8))
    return made, [torch.randn(37 * scale, 203)]


@problem(trains=False)
def counts_of_bits(scale):
    def forward(x, y):
        words = (x ^ (y >> 3)) & 0xFF
        total = sum((words >> bit) & 1 for bit in range(8))
        return total.to(torch.float32).mean(1), (total > 4).sum(0)

    return function(forward), [torch.randint(0, 1 << 20, (300 * scale, 701)) for _ in range(2)]


@problem
def quantised_straight_through(scale):
    def forward(self, x):
        step = F.softplus(self.step)
        coarse = (x / step).round().clamp(-8, 7) * step
        return x + (coarse - x).detach() + 0.01 * coarse

    return net(forward, step=weight(1, 57, 1)), [torch.randn(8 * scale, 57, 333)]


@problem
def crossed_features(scale):
    """A factorisation machine of embedded categories."""

    def forward(self, which, x):
        e = self.table(which) * x[..., None]
        pairs = e.sum(1).square() - e.square().sum(1)
        return torch.sigmoid(0.5 * pairs.sum(-1) + (self.line(which).squeeze(-1) * x).sum(1))

    made = net(forward, table=nn.Embedding(5003, 17), line=nn.Embedding(5003, 1))
    return made, [torch.randint(0, 5003, (701 * scale, 26)), torch.rand(701 * scale, 26)]


@problem
def relative_shift(scale):
    """Scores of relative positions, shifted by a view (Transformer-XL)."""

    def forward(q, k, r):
        n = q.shape[2]
        moved = F.pad(q @ r.transpose(-1, -2), (1, 0)).flatten(2)[..., n:]
        moved = moved.unflatten(-1, (n, -1))[..., :n]
        return ((q @ k.transpose(-1, -2) + moved) * 0.2).softmax(-1)

    parts = [torch.randn(2 * scale, 3, 77, 25) for _ in range(2)]
    return function(forward), [*parts, torch.randn(2 * scale, 3, 153, 25)]
