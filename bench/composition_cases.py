"""Tables from which `bench/compositions.py` draws: views and reductions, pairs of rows, single
operators, and small networks of one product and what follows it."""
from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

Axes = int | tuple[int, int]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """`make(device, dtype)` is a function or module of random tensors of `shapes`; those numbered
    in `turned` lie column by column."""

    name: str
    make: Callable[[str, torch.dtype], Callable]
    shapes: tuple[Shape, ...]
    turned: tuple[int, ...] = ()


SIZES = {
    "cpu": ((64, 128, 256), (8, 512, 515), (2, 64, 16384), (1000, 30, 40), (4096, 4, 64),
            (50, 3, 7000), (3000, 17, 13)),
    "cuda": ((128, 256, 256), (32, 511, 515), (4, 64, 32768), (2048, 64, 64), (16384, 4, 128),
             (100, 3, 30000), (8000, 37, 33)),
}  # fmt: skip
PAIRS = {  # rows of one, rows of the other, terms
    "cpu": ((256, 256, 64), (100, 300, 17), (64, 64, 1000), (1024, 1024, 8), (33, 2000, 40)),
    "cuda": ((1024, 1024, 64), (500, 3000, 17), (256, 256, 1000), (4096, 4096, 8)),
}
VIEWS = {
    "as it is": lambda t: t,
    "turned 02": lambda t: t.transpose(0, 2),
    "turned 12": lambda t: t.transpose(1, 2),
    "turned 01": lambda t: t.transpose(0, 1),
    "every second": lambda t: t[..., ::2],
    "every second row": lambda t: t[:, ::2],
    "neighbours": lambda t: torch.maximum(t[..., :-1:2], t[..., 1::2]),
    "neighbouring rows": lambda t: t[:, :-1:2] + t[:, 1::2],
    "backwards": lambda t: t.flip(-1),
    "cat": lambda t: torch.cat([t, t * 2], -1),
    "cat rows": lambda t: torch.cat([t, t * 2], 1),
    "padded": lambda t: F.pad(t, (1, 1)),
    "rolled": lambda t: t.roll(3, -1),
    "repeated": lambda t: t.repeat_interleave(2, -1),
    "differences": lambda t: t.diff(dim=-1),
    "windows": lambda t: t.unfold(-1, 4, 4).sum(-1),
    "stacked": lambda t: torch.stack([t, -t], -1).flatten(-2),
    "broadcast": lambda t: t * t[:1, :1] + t[:, :1],
}
OVER_AXES = {  # (tensor, axes) -> tensor
    "sum": lambda t, d: t.sum(d),
    "maximum": lambda t, d: t.amax(d),
    "range": lambda t, d: t.amax(d) - t.amin(d),
    "variance": lambda t, d: t.var(d),
    "norm": lambda t, d: t.norm(dim=d),
    "logsumexp": lambda t, d: torch.logsumexp(t, d),
    "count": lambda t, d: (t > 1).sum(d),
    "standardised": lambda t, d: (t - t.mean(d, keepdim=True)) / (t.std(d, keepdim=True) + 1e-5),
}
OVER_ONE = {
    "product": lambda t, d: (1 + t / 16).prod(d),
    "argmax": lambda t, d: t.argmax(d),
    "softmax": lambda t, d: t.softmax(d) * 2,
    "log_softmax": lambda t, d: t.log_softmax(d),
    "running sum": lambda t, d: t.cumsum(d) * 2,
    "normalised": lambda t, d: F.normalize(t, dim=d),
}
OF_PAIRS = {
    "squares": lambda a, b: (a - b) ** 2,
    "absolute": lambda a, b: (a - b).abs(),
    "relu": lambda a, b: (a + b).relu(),
    "tanh": lambda a, b: torch.tanh(a + b),
}
OVER_TERMS = ("sum", "maximum", "logsumexp")

# matrix, sequence, image: what the operators below are applied to.
PLAIN = {
    "cpu": ((1024, 1000), (4, 256, 512), (8, 32, 56, 56)),
    "cuda": ((8192, 4000), (16, 1024, 1024), (32, 64, 112, 112)),
}
MATRIX, SEQUENCE, IMAGE = range(3)
OPERATORS: dict[str, tuple[int, Callable]] = {
    "gelu": (MATRIX, F.gelu),
    "gelu tanh": (MATRIX, lambda x: F.gelu(x, approximate="tanh")),
    "mish": (MATRIX, F.mish),
    "silu and gate": (MATRIX, lambda x: F.silu(x[:, ::2]) * x[:, 1::2]),
    "glu": (MATRIX, F.glu),
    "softplus": (MATRIX, F.softplus),
    "elu": (MATRIX, F.elu),
    "selu": (MATRIX, F.selu),
    "hardsigmoid": (MATRIX, F.hardsigmoid),
    "hardtanh": (MATRIX, F.hardtanh),
    "logsigmoid": (MATRIX, F.logsigmoid),
    "leaky relu": (MATRIX, F.leaky_relu),
    "erf, erfc": (MATRIX, lambda x: torch.erf(x) * torch.erfc(x)),
    "log1p of exp": (MATRIX, lambda x: x.exp().log1p()),
    "atan2": (MATRIX, lambda x: torch.atan2(x[:, ::2], x[:, 1::2])),
    "powers": (MATRIX, lambda x: x.abs() ** 1.5 + x**3),
    "lgamma": (MATRIX, lambda x: torch.lgamma(x.abs() + 1)),
    "softmax": (MATRIX, lambda x: x.softmax(-1)),
    "softmax over rows": (MATRIX, lambda x: x.softmax(0)),
    "log softmax": (MATRIX, lambda x: x.log_softmax(-1)),
    "softmin": (MATRIX, lambda x: F.softmin(x, -1)),
    "layer norm": (SEQUENCE, lambda x: F.layer_norm(x, x.shape[-1:])),
    "rms norm": (SEQUENCE, lambda x: F.rms_norm(x, x.shape[-1:])),
    "group norm": (IMAGE, lambda x: F.group_norm(x, 8)),
    "instance norm": (IMAGE, F.instance_norm),
    "batch norm": (IMAGE, lambda x: F.batch_norm(x, None, None, training=True)),
    "local response norm": (IMAGE, lambda x: F.local_response_norm(x, 5)),
    "l1 norm": (MATRIX, lambda x: x / x.abs().mean(1, keepdim=True)),
    "frobenius norm": (IMAGE, lambda x: x / torch.norm(x)),
    "normalize": (MATRIX, F.normalize),
    "max pool": (IMAGE, lambda x: F.max_pool2d(x, 2)),
    "max pool 3, stride 2": (IMAGE, lambda x: F.max_pool2d(x, 3, 2, 1)),
    "average pool": (IMAGE, lambda x: F.avg_pool2d(x, 3, 2, 1)),
    "average pool to 1": (IMAGE, lambda x: F.adaptive_avg_pool2d(x, 1)),
    "average pool to 7": (IMAGE, lambda x: F.adaptive_avg_pool2d(x, 7)),
    "max pool to 5": (IMAGE, lambda x: F.adaptive_max_pool2d(x, 5)),
    "max pool of 1 d": (SEQUENCE, lambda x: F.max_pool1d(x, 4, 2, 1)),
    "norm pool": (IMAGE, lambda x: F.lp_pool2d(x, 2, 2)),
    "nearest twice": (IMAGE, lambda x: F.interpolate(x, scale_factor=2.0)),
    "bilinear twice": (IMAGE, lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear")),
    "bilinear half": (IMAGE, lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear")),
    "bicubic": (IMAGE, lambda x: F.interpolate(x, size=80, mode="bicubic")),
    "pixel shuffle": (IMAGE, lambda x: F.pixel_shuffle(x, 2)),
    "pixel unshuffle": (IMAGE, lambda x: F.pixel_unshuffle(x, 2)),
    "channel shuffle": (IMAGE, lambda x: F.channel_shuffle(x, 4)),
    "unfold": (IMAGE, lambda x: F.unfold(x[:8], 3, padding=1)),
    "patches": (IMAGE, lambda x: x.unfold(2, 8, 8).unfold(3, 8, 8).flatten(4).mean(-1)),
    "reflect": (IMAGE, lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect")),
    "replicate": (IMAGE, lambda x: F.pad(x, (3, 3, 3, 3), mode="replicate")),
    "circular": (IMAGE, lambda x: F.pad(x, (3, 3, 3, 3), mode="circular")),
    "roll both": (IMAGE, lambda x: x.roll((3, 3), (2, 3))),
    "flip": (IMAGE, lambda x: x.flip(3) + x),
    "rot90": (IMAGE, lambda x: x.rot90(1, (2, 3)) * 2),
    "channels last": (IMAGE, lambda x: x.permute(0, 2, 3, 1).contiguous()),
    "windows of Swin": (IMAGE, lambda x: x.unflatten(3, (-1, 7)).unflatten(2, (-1, 7))
                        .permute(0, 2, 4, 3, 5, 1).flatten(0, 2).contiguous()),
    "heads": (SEQUENCE, lambda x: x.unflatten(-1, (8, -1)).transpose(1, 2).contiguous()),
    "rotary": (SEQUENCE, lambda x: torch.cat([-x[..., 256:512], x[..., :256]], -1) * 0.5
               + x[..., :512]),
    "cat of three": (MATRIX, lambda x: torch.cat([x, x * 2, x.relu()], 1)),
    "stack of two": (MATRIX, lambda x: torch.stack([x, x + 1], 1)),
    "chunks": (MATRIX, lambda x: torch.stack([c.sum(1) for c in x.chunk(4, 1)])),
    "tril": (SEQUENCE, lambda x: x.tril() + 1),
    "causal softmax": (SEQUENCE, lambda x: x.masked_fill(torch.ones(
        x.shape[-2:], dtype=torch.bool, device=x.device).triu(1), -1e9).softmax(-1)),
    "where": (MATRIX, lambda x: torch.where(x > 0, x, x.exp() - 1)),
    "clamp": (MATRIX, lambda x: x.clamp(-0.5, 0.5) * 2),
    "cumsum": (MATRIX, lambda x: x.cumsum(1)),
    "cumsum over rows": (MATRIX, lambda x: x.cumsum(0)),
    "cumprod": (MATRIX, lambda x: (1 + x / 100).cumprod(1)),
    "reverse cumsum": (MATRIX, lambda x: x.flip(1).cumsum(1).flip(1)),
    "cumsum of masked": (MATRIX, lambda x: (x * (x > 0)).cumsum(1)),
    "logcumsumexp": (MATRIX, lambda x: x.logcumsumexp(1)),
    "cummax": (MATRIX, lambda x: x.cummax(1).values),
    "sort": (MATRIX, lambda x: x.sort(1).values * 2),
    "top k": (MATRIX, lambda x: x.topk(8, 1).values.softmax(-1)),
    "median": (MATRIX, lambda x: x.median(1).values),
    "argmax": (MATRIX, lambda x: x.argmax(1)),
    "argmin over rows": (MATRIX, lambda x: x.argmin(0)),
    "maximum and place": (MATRIX, lambda x: x.max(1)),
    "variance and mean": (MATRIX, lambda x: torch.var_mean(x, 1)),
    "sum of all": (MATRIX, lambda x: x.sum()),
    "mean over images": (IMAGE, lambda x: x.mean((0, 2, 3))),
    "product": (MATRIX, lambda x: (1 + x / 100).prod(1)),
    "any": (MATRIX, lambda x: (x > 3).any(1)),
    "histogram by sums": (MATRIX, lambda x: torch.stack(
        [((x >= a) & (x < a + 1)).sum(1) for a in range(-3, 3)])),
    "outer": (MATRIX, lambda x: x[:, 0, None] * x[0]),
    "distances": (MATRIX, lambda x: torch.cdist(x[:512, :64], x[512:1024, :64])),
    "cosine similarity": (MATRIX, lambda x: F.cosine_similarity(x, x.roll(1, 0))),
    "pairwise distance": (MATRIX, lambda x: F.pairwise_distance(x, x.roll(1, 0))),
    "mse": (MATRIX, lambda x: F.mse_loss(x, x.roll(1, 0))),
    "huber": (MATRIX, lambda x: F.huber_loss(x, x.roll(1, 0))),
    "kl": (MATRIX, lambda x: F.kl_div(x.log_softmax(1), x.roll(1, 0).softmax(1))),
    "hinge": (MATRIX, lambda x: (1 - x * x.roll(1, 0)).clamp(min=0).mean()),
    "triplet": (MATRIX, lambda x: F.triplet_margin_loss(x, x.roll(1, 0), x.roll(2, 0))),
    "entropy": (MATRIX, lambda x: -(x.softmax(1) * x.log_softmax(1)).sum(1)),
    "gram": (SEQUENCE, lambda x: x @ x.transpose(1, 2) / x.shape[1]),
    "attention": (SEQUENCE, lambda x: F.scaled_dot_product_attention(
        *[x.unflatten(-1, (8, -1)).transpose(1, 2)] * 3)),
    "attention by hand": (SEQUENCE, lambda x: (x @ x.transpose(1, 2) / 32).softmax(-1) @ x),
    "linear attention": (SEQUENCE, lambda x: (F.elu(x) + 1) @ (
        (F.elu(x) + 1).transpose(1, 2) @ x) / x.shape[1]),
    "quantised and back": (MATRIX, lambda x: (x / x.abs().amax(1, keepdim=True) * 127).round()
                           .clamp(-128, 127) * (x.abs().amax(1, keepdim=True) / 127)),
    "to int8": (MATRIX, lambda x: (x * 32).round().clamp(-128, 127).to(torch.int8)),
    "to half and back": (MATRIX, lambda x: x.half().to(x.dtype) * 2),
    "einsum of three": (MATRIX, lambda x: torch.einsum(
        "ab,ac->abc", x[:, :64].contiguous(), x[:, 64:96].contiguous())),
    "embedding bag by hand": (MATRIX, lambda x: x[torch.arange(
        4096, device=x.device).remainder(997).view(1024, 4)].mean(1)),
    "gathered": (MATRIX, lambda x: x.gather(1, torch.arange(64, device=x.device).mul(7)
                                            .expand(x.shape[0], 64)) * 2),
    "index add": (MATRIX, lambda x: torch.zeros_like(x[:100]).index_add(
        0, torch.arange(x.shape[0], device=x.device) % 100, x)),
    "scatter mean": (MATRIX, lambda x: torch.zeros_like(x[:100]).scatter_reduce(
        0, (torch.arange(x.shape[0], device=x.device) % 100)[:, None].expand_as(x), x, "mean")),
    "segments": (MATRIX, lambda x: x.view(-1, 8, x.shape[1]).amax(1)),
    "one hot product": (MATRIX, lambda x: F.one_hot(
        torch.arange(x.shape[0], device=x.device) % 10, 10).to(x.dtype).t() @ x),
    "shifted": (SEQUENCE, lambda x: x - F.pad(x, (0, 0, 1, 0))[:, :-1]),
    "moving mean": (SEQUENCE, lambda x: F.avg_pool1d(x, 5, 1, 2)),
    "mixing of times": (SEQUENCE, lambda x: torch.lerp(x, F.pad(x, (0, 0, 1, 0))[:, :-1], 0.3)),
    "fft": (SEQUENCE, lambda x: torch.fft.rfft(x.float(), dim=1).abs()),
    "dropout off": (MATRIX, lambda x: F.dropout(x, 0.5, training=False) + 1),
    "outer sums": (SEQUENCE, lambda x: (x.mean(1, keepdim=True) + x.mean(2, keepdim=True)) * x),
    "squeeze and excite": (IMAGE, lambda x: x * x.mean((2, 3), keepdim=True).sigmoid()),
    "depth to sums": (IMAGE, lambda x: x.view(x.shape[0], 4, -1, *x.shape[2:]).sum(1)),
}  # fmt: skip


class Chain(nn.Module):
    """A product and what follows it; `after` holds modules and functions of one tensor."""

    def __init__(self, first: nn.Module, after: list[Callable]):
        super().__init__()
        self.first, self.after = first, after
        self.parts = nn.ModuleList(a for a in after if isinstance(a, nn.Module))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for part in self.after:
            x = part(x)
        return x


NETS = {  # name -> (shape of the input, the product, its channels)
    "cpu": {
        "linear": ((256, 512), lambda: nn.Linear(512, 768), 768),
        "conv2d": ((8, 16, 48, 48), lambda: nn.Conv2d(16, 32, 3), 32),
        "conv3d": ((2, 8, 12, 24, 24), lambda: nn.Conv3d(8, 16, 3), 16),
        "conv2d transposed": (
            (8, 32, 24, 24), lambda: nn.ConvTranspose2d(32, 16, 4, 2, 1), 16),
        "depthwise": ((8, 32, 48, 48), lambda: nn.Conv2d(32, 32, 3, padding=1, groups=32), 32),
        "pointwise": ((8, 32, 48, 48), lambda: nn.Conv2d(32, 64, 1), 64),
        "conv1d": ((16, 32, 500), lambda: nn.Conv1d(32, 64, 3), 64),
    },
    "cuda": {
        "linear": ((1024, 4096), lambda: nn.Linear(4096, 4096), 4096),
        "conv2d": ((64, 32, 128, 128), lambda: nn.Conv2d(32, 64, 3), 64),
        "conv3d": ((16, 16, 24, 48, 48), lambda: nn.Conv3d(16, 32, 3), 32),
        "conv2d transposed": (
            (32, 64, 64, 64), lambda: nn.ConvTranspose2d(64, 32, 4, 2, 1), 32),
        "conv3d transposed": (
            (8, 32, 12, 24, 24), lambda: nn.ConvTranspose3d(32, 32, 3, 2, 1), 32),
        "depthwise": ((64, 64, 112, 112), lambda: nn.Conv2d(64, 64, 3, padding=1, groups=64), 64),
        "pointwise": ((64, 64, 112, 112), lambda: nn.Conv2d(64, 128, 1), 128),
        "conv1d": ((64, 128, 4096), lambda: nn.Conv1d(128, 128, 3), 128),
    },
}  # fmt: skip


def _pool(*of_space: Callable) -> Callable[[int], Callable]:
    return lambda dims: partial(of_space[dims - 1], kernel_size=2)


def _bias(dims: int, channels: int) -> nn.Module:
    class Bias(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.randn(channels, *[1] * dims))

        def forward(self, x):
            return x + self.bias

    return Bias()


BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
AFTER: dict[str, Callable[[int, int], Callable]] = {  # (dimensions of space, channels) -> function
    "relu": lambda d, c: F.relu,
    "gelu": lambda d, c: F.gelu,
    "mish": lambda d, c: F.mish,
    "hardswish": lambda d, c: F.hardswish,
    "tanh": lambda d, c: torch.tanh,
    "sigmoid": lambda d, c: torch.sigmoid,
    "leaky": lambda d, c: partial(F.leaky_relu, negative_slope=0.1),
    "swish": lambda d, c: lambda x: x * torch.sigmoid(x),
    "scale": lambda d, c: lambda x: x * 1.5,
    "divide": lambda d, c: lambda x: x / 3.0,
    "subtract": lambda d, c: lambda x: x - 0.5,
    "clamp": lambda d, c: lambda x: x.clamp(-1.0, 1.0),
    "bias": _bias,
    "residual": lambda d, c: lambda x: x + torch.tanh(x),
    "softmax": lambda d, c: lambda x: x.softmax(1),
    "logsumexp": lambda d, c: lambda x: x.logsumexp(1, keepdim=True),
    "minimum": lambda d, c: lambda x: x.amin(1, keepdim=True),
    "maximum": lambda d, c: lambda x: x.amax(1, keepdim=True),
    "sum of rows": lambda d, c: lambda x: x.sum(-1, keepdim=True),
    "mean of rows": lambda d, c: lambda x: x.mean(-1, keepdim=True),
    "mean of channels": lambda d, c: lambda x: x.mean(1, keepdim=True),
    "group norm": lambda d, c: nn.GroupNorm(8, c),
    "batch norm": lambda d, c: BATCH_NORMS[d](c),
    "instance norm": lambda d, c: F.instance_norm,
    "layer norm": lambda d, c: lambda x: F.layer_norm(x, x.shape[-1:]),
    "max pool": lambda d, c: _pool(F.max_pool1d, F.max_pool2d, F.max_pool3d)(d),
    "average pool": lambda d, c: _pool(F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)(d),
    "mean of space": lambda d, c: lambda x: x.mean(tuple(range(2, x.dim())), keepdim=True),
}  # fmt: skip
# Behind these the channels are one: what counts channels does not follow.
NARROW = {"logsumexp", "minimum", "maximum", "mean of channels"}
OF_CHANNELS = {"group norm", "batch norm", "bias"}
OF_SPACE = {"instance norm", "max pool", "average pool"}
SHRINKS = {"sum of rows", "mean of rows", "mean of space"}


def _plain(function: Callable, *_) -> Callable:
    return function


def _of_view(view, reduction, axes: Axes, t):
    return reduction(view(t) * 1.5, axes)


def _of_pairs(combine, reduction, a, b):
    return reduction(combine(a[:, None], b[None]), -1)


def views(device: str) -> Iterator[Case]:
    one, two = (0, 1, 2), ((0, 1), (0, 2), (1, 2))
    choices = [(r, axes) for r in OVER_AXES.items() for axes in one + two]
    choices += [(r, axis) for r in OVER_ONE.items() for axis in one]
    every = itertools.product(choices, VIEWS.items(), SIZES[device])
    for ((over, reduction), axes), (seen, view), shape in every:
        name = f"view: {over} over {axes} of {shape}, {seen}"
        yield Case(name, partial(_plain, partial(_of_view, view, reduction, axes)), (shape,))


def pairs(device: str) -> Iterator[Case]:
    every = itertools.product(OF_PAIRS.items(), OVER_TERMS, PAIRS[device], ((), (0,), (1,), (0, 1)))
    for (combined, combine), over, (rows, others, terms), turned in every:
        name = f"pairs: {over} of {combined}, {rows} x {others} x {terms}, turned {turned}"
        model = partial(_of_pairs, combine, OVER_AXES[over])
        yield Case(name, partial(_plain, model), ((rows, terms), (others, terms)), turned)


def operators(device: str) -> Iterator[Case]:
    for name, (kind, function) in OPERATORS.items():
        yield Case(f"op: {name}", partial(_plain, function), (PLAIN[device][kind],))


def nets(device: str, count: int = 400) -> Iterator[Case]:
    """The same for each call."""
    draw = random.Random(0)
    for number in range(count):
        first = draw.choice(list(NETS[device]))
        shape, product, channels = NETS[device][first]
        after = _drawn(draw, len(shape) - 2)
        name = f"net: {number} {first}, {', '.join(after)}"
        yield Case(name, partial(_net, product, after, len(shape) - 2, channels), (shape,))


def _drawn(draw: random.Random, space: int) -> tuple[str, ...]:
    taken: list[str] = []
    refused: set[str] = set() if space else set(OF_SPACE | {"mean of space"})
    for _ in range(draw.randint(1, 5)):
        name = draw.choice([n for n in AFTER if n not in refused])
        taken.append(name)
        if name in NARROW:
            refused |= NARROW | OF_CHANNELS | {"softmax"}
        if name in SHRINKS:
            refused |= SHRINKS | OF_SPACE | {"layer norm"}
            refused |= set() if space else OF_CHANNELS | NARROW
        if name in OF_SPACE:
            refused |= {"max pool", "average pool"}
    return tuple(taken)


def _net(product, after: tuple[str, ...], space: int, channels: int, device: str,
         dtype: torch.dtype) -> nn.Module:  # fmt: skip
    torch.manual_seed(0)
    net = Chain(product(), [AFTER[name](space, channels) for name in after])
    return net.to(device, dtype).eval()


GROUPS = (pairs, views, operators, nets)


def made(case: Case, device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    tensors = []
    for number, shape in enumerate(case.shapes):
        turned = number in case.turned
        t = torch.randn(shape[::-1] if turned else shape, device=device, dtype=dtype)
        tensors.append(t.t() if turned else t)
    return tensors
