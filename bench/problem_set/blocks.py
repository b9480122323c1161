"""Blocks of networks: attention, convolutional blocks, gated layers, experts."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from problem_set.core import net, problem_of, weight

problem = problem_of("blocks")


def heads(x: Tensor, count: int) -> Tensor:
    """[b, s, count * d] -> [b, count, s, d]"""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    """[b, heads, s, d] -> [b, s, heads * d]"""
    return x.transpose(1, 2).contiguous().flatten(2)


def conv_norm(inputs: int, outputs: int, kernel: int, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


@problem
def gpt_block(scale, width=256, count=8, length=128):
    """Attention by hand with a mask that is a buffer, as in minGPT."""

    def attended(self, x):
        q, k, v = (heads(t, count) for t in self.qkv(x).chunk(3, -1))
        scores = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(k.size(-1)))
        unseen = self.mask[:, :, : x.shape[1], : x.shape[1]] == 0
        return self.out(joined(scores.masked_fill(unseen, float("-inf")).softmax(-1) @ v))

    def forward(self, x):
        x = x + attended(self, self.norms[0](x))
        return x + self.mlp(self.norms[1](x))

    mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
    parts = dict(qkv=nn.Linear(width, 3 * width), out=nn.Linear(width, width), mlp=mlp, norms=norms)
    made = net(forward, **parts)
    made.register_buffer("mask", torch.tril(torch.ones(length, length))[None, None])
    return made, [torch.randn(8 * scale, length, width)]


@problem
def relu_attention(scale):
    def forward(self, x):
        q, k, v = (heads(t, 8) for t in self.qkv(x).chunk(3, -1))
        return joined(F.relu((q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])) @ v)

    return net(forward, qkv=nn.Linear(256, 768)), [torch.randn(8 * scale, 128, 256)]


@problem
def cross_attention(scale):
    def forward(self, x, context):
        q, k, v = (heads(t, 8) for t in (self.q(x), self.k(context), self.v(context)))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    parts = {name: nn.Linear(256, 256) for name in ("q", "k", "v", "out")}
    inputs = [torch.randn(4 * scale, length, 256) for length in (256, 77)]
    return net(forward, **parts), inputs


@problem
def vision_transformer_block(scale):
    """torch's own layer, over patches of an image that a strided convolution made."""

    def forward(self, image):
        patches = self.patches(image).flatten(2).transpose(1, 2)
        rows = torch.cat([self.first.expand(image.shape[0], -1, -1), patches], 1)
        return self.block(rows + self.places)[:, 0]

    block = nn.TransformerEncoderLayer(192, 3, 768, 0.0, "gelu", batch_first=True, norm_first=True)
    parts = dict(patches=nn.Conv2d(3, 192, 16, 16), block=block)
    learned = dict(first=weight(1, 1, 192), places=weight(1, 50, 192, std=0.02))
    return net(forward, **parts, **learned), [torch.randn(8 * scale, 3, 112, 112)]


@problem
def mixer_block(scale):
    def forward(self, x):
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norms[1](x))

    tokens = nn.Sequential(nn.Linear(196, 128), nn.GELU(), nn.Linear(128, 196))
    channels = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
    norms = nn.ModuleList(nn.LayerNorm(256) for _ in range(2))
    parts = dict(tokens=tokens, channels=channels, norms=norms)
    return net(forward, **parts), [torch.randn(8 * scale, 196, 256)]


@problem
def rms_norm_swiglu(scale, width=512, hidden=1408):
    def forward(self, x):
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        y = scaled.to(x.dtype) * self.scales
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    up = {name: nn.Linear(width, hidden, bias=False) for name in ("gate", "up")}
    parts = dict(down=nn.Linear(hidden, width, bias=False), scales=nn.Parameter(torch.ones(width)))
    return net(forward, **up, **parts), [torch.randn(256 * scale, width)]


@problem
def experts_dense(scale):
    """All experts for all rows, then the best two of each."""

    def forward(self, x):
        p = self.router(x).softmax(-1)
        best, which = p.topk(2, -1)
        gates = torch.zeros_like(p).scatter(1, which, best / best.sum(-1, keepdim=True))
        hidden = F.gelu(torch.einsum("td,edh->teh", x, self.up))
        return torch.einsum("teh,ehd,te->td", hidden, self.down, gates)

    up, down = weight(8, 128, 256, std=0.1), weight(8, 256, 128, std=0.1)
    return net(forward, router=nn.Linear(128, 8), up=up, down=down), [torch.randn(128 * scale, 128)]


@problem
def fourier_mixing(scale):
    def forward(self, x):
        mixed = torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real
        return self.norm(x + mixed)

    return net(forward, norm=nn.LayerNorm(256)), [torch.randn(4 * scale, 128, 256)]


@problem
def embedding_positions_norm(scale):
    def forward(self, ids):
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.norm(self.words(ids) * 16 + self.places(places))

    tables = dict(words=nn.Embedding(5000, 256), places=nn.Embedding(512, 256))
    ids = torch.randint(0, 5000, (16 * scale, 256))
    return net(forward, **tables, norm=nn.LayerNorm(256)), [ids]


@problem
def fire_module(scale):
    def forward(self, x):
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], 1)

    parts = dict(squeeze=nn.Conv2d(96, 16, 1), one=nn.Conv2d(16, 64, 1))
    three = nn.Conv2d(16, 64, 3, padding=1)
    return net(forward, **parts, three=three), [torch.randn(8 * scale, 96, 54, 54)]


@problem
def dense_block(scale):
    def layer(inputs):
        conv = nn.Conv2d(inputs, 16, 3, padding=1, bias=False)
        return nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(), conv)

    def forward(self, x):
        for part in self.layers:
            x = torch.cat([x, part(x)], 1)
        return x

    layers = nn.ModuleList(layer(32 + 16 * i) for i in range(4))
    return net(forward, layers=layers), [torch.randn(4 * scale, 32, 56, 56)]


@problem
def inverted_residual(scale):
    def forward(self, x):
        return x + self.layers(x)

    layers = nn.Sequential(
        conv_norm(32, 192, 1), nn.ReLU6(), conv_norm(192, 192, 5, 192), nn.ReLU6(),
        conv_norm(192, 32, 1),
    )  # fmt: skip
    return net(forward, layers=layers), [torch.randn(8 * scale, 32, 56, 56)]


@problem
def shuffle_unit(scale):
    def forward(self, x):
        y = F.relu(self.first(x)).unflatten(1, (3, -1)).transpose(1, 2).flatten(1, 2)
        return F.relu(self.third(self.second(y)) + x)

    parts = dict(first=conv_norm(240, 60, 1, 3), second=conv_norm(60, 60, 3, 60))
    third = conv_norm(60, 240, 1, 3)
    return net(forward, **parts, third=third), [torch.randn(4 * scale, 240, 28, 28)]


@problem
def residual_block(scale):
    def forward(self, x):
        y = self.second(F.relu(self.first(x)))
        return F.relu(y + self.aside(x))

    down = nn.Sequential(nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(64))
    aside = nn.Sequential(nn.Conv2d(32, 64, 1, stride=2, bias=False), nn.BatchNorm2d(64))
    parts = dict(first=down, second=conv_norm(64, 64, 3), aside=aside)
    return net(forward, **parts), [torch.randn(8 * scale, 32, 56, 56)]


@problem
def group_norm_silu_residual(scale):
    """A block of a diffusion model, with its time."""

    def forward(self, x, time):
        y = self.convs[0](F.silu(self.norms[0](x))) + self.time(F.silu(time))[:, :, None, None]
        return x + self.convs[1](F.silu(self.norms[1](y)))

    convs = nn.ModuleList(nn.Conv2d(64, 64, 3, padding=1) for _ in range(2))
    norms = nn.ModuleList(nn.GroupNorm(8, 64) for _ in range(2))
    made = net(forward, convs=convs, norms=norms, time=nn.Linear(128, 64))
    return made, [torch.randn(4 * scale, 64, 32, 32), torch.randn(4 * scale, 128)]


@problem
def unet_softmax(scale):
    layers = []
    for inputs in (8, 32):
        conv = nn.Conv2d(inputs, 32, 3, padding=1)
        layers += [conv, nn.BatchNorm2d(32), nn.Softmax(dim=-1)]

    def forward(self, x):
        return self.layers(x)

    return net(forward, layers=nn.Sequential(*layers)), [torch.randn(4 * scale, 8, 64, 128)]


@problem
def netvlad(scale):
    """Clusters of local features, of which the last 16 are not counted."""

    def forward(self, x):
        nearness = F.softmax(self.norm(x.flatten(0, 1) @ self.clusters), 1)
        nearness = nearness[:, :32].unflatten(0, x.shape[:2])
        centres = nearness.sum(1, keepdim=True) * self.centres
        found = F.normalize((nearness.transpose(1, 2) @ x).transpose(1, 2) - centres)
        return F.normalize(found.flatten(1))

    parts = dict(clusters=weight(512, 48, std=0.05), centres=weight(1, 512, 32))
    return net(forward, **parts, norm=nn.BatchNorm1d(48)), [torch.randn(16 * scale, 100, 512)]


@problem
def spline_layer(scale):
    """A layer of a Kolmogorov-Arnold network: cubic splines of each input, over learned knots."""

    def forward(self, x):
        knots, wide = self.knots, x.unsqueeze(-1)
        basis = ((wide >= knots[:-1]) & (wide < knots[1:])).to(x.dtype)
        for k in range(1, 4):
            rising = (wide - knots[: -(k + 1)]) / (knots[k:-1] - knots[: -(k + 1)])
            falling = (knots[k + 1 :] - wide) / (knots[k + 1 :] - knots[1:-k])
            basis = rising * basis[..., :-1] + falling * basis[..., 1:]
        return F.silu(x) @ self.straight + basis.flatten(1) @ self.curved

    parts = dict(knots=nn.Parameter(torch.linspace(-2, 2, 12)), straight=weight(64, 32))
    made = net(forward, **parts, curved=weight(64 * 8, 32))
    return made, [torch.rand(512 * scale, 64) * 2 - 1]
