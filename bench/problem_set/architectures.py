"""Whole networks of usual width, cut to a few layers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from problem_set.core import net, problem_of, weight
from problem_set.networks import chain, mlp

problem = problem_of("architectures")


def conv_norm_relu(inputs: int, outputs: int, side: int, **more) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, side, padding=side // 2, bias=False, **more)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class Residual(nn.Module):
    """x + inner(x)."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


@problem
def deep_narrow_mlp(scale):
    return mlp(1024, *[512] * 10, 100), [torch.randn(32 * scale, 1024)]


@problem
def wide_mlp(scale):
    return mlp(1024, 4096, 4096, 1000), [torch.randn(8 * scale, 1024)]


@problem(scale=4)
def inception_block(scale):
    def forward(self, x):
        pooled = self.pooled(F.max_pool2d(x, 3, stride=1, padding=1))
        return torch.cat([self.one(x), self.three(x), self.five(x), pooled], dim=1)

    parts = dict(
        one=conv_norm_relu(192, 64, 1),
        three=nn.Sequential(conv_norm_relu(192, 96, 1), conv_norm_relu(96, 128, 3)),
        five=nn.Sequential(conv_norm_relu(192, 16, 1), conv_norm_relu(16, 32, 5)),
        pooled=conv_norm_relu(192, 32, 1),
    )
    return net(forward, **parts), [torch.randn(4 * scale, 192, 28, 28)]


@problem(scale=4)
def bottleneck_stage(scale):
    def block(width):
        inner = nn.Sequential(
            conv_norm_relu(4 * width, width, 1), conv_norm_relu(width, width, 3),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        return nn.Sequential(Residual(inner), nn.ReLU())

    return chain(block(64), block(64), block(64)), [torch.randn(4 * scale, 256, 28, 28)]


@problem(scale=4)
def squeeze_and_excite(scale):
    def forward(self, x):
        y = self.depthwise(F.silu(self.norm(self.expand(x))))
        gate = torch.sigmoid(self.up(F.silu(self.down(y.mean((2, 3), keepdim=True)))))
        return x + self.project(y * gate)

    parts = dict(
        expand=nn.Conv2d(32, 192, 1, bias=False), norm=nn.BatchNorm2d(192),
        depthwise=nn.Conv2d(192, 192, 5, padding=2, groups=192), down=nn.Conv2d(192, 8, 1),
        up=nn.Conv2d(8, 192, 1), project=nn.Conv2d(192, 32, 1),
    )  # fmt: skip
    return net(forward, **parts), [torch.randn(4 * scale, 32, 56, 56)]


@problem(scale=4)
def convnext_block(scale):
    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)

    parts = dict(
        depthwise=nn.Conv2d(96, 96, 7, padding=3, groups=96), norm=nn.LayerNorm(96),
        up=nn.Linear(96, 384), down=nn.Linear(384, 96), scale=weight(96, std=0.1),
    )  # fmt: skip
    return net(forward, **parts), [torch.randn(4 * scale, 96, 56, 56)]


def attended(self, q, k, v, heads, mask=None):
    """Attention by hand over `heads` of the last dimension."""
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(mask, float("-inf"))
    return (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)


@problem(scale=4, low=True)
def causal_transformer(scale):
    """Two layers, norms first, a tied output."""

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        mask = torch.ones(2 * x.shape[1:2], dtype=torch.bool, device=x.device).triu(1)
        for layer in self.layers:
            q, k, v = layer["qkv"](layer["first"](x)).chunk(3, -1)
            x = x + layer["out"](attended(self, q, k, v, 8, mask))
            x = x + layer["mlp"](layer["second"](x))
        return self.norm(x) @ self.embedding.weight.T

    def layer():
        return nn.ModuleDict(dict(
            first=nn.LayerNorm(512), second=nn.LayerNorm(512), qkv=nn.Linear(512, 1536),
            out=nn.Linear(512, 512),
            mlp=nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)),
        ))  # fmt: skip

    parts = dict(
        embedding=nn.Embedding(4096, 512), positions=weight(256, 512, std=0.02),
        layers=nn.ModuleList([layer(), layer()]), norm=nn.LayerNorm(512),
    )  # fmt: skip
    return net(forward, **parts), [torch.randint(0, 4096, (2 * scale, 256))]


@problem(scale=4, low=True)
def diffusion_transformer_block(scale):
    """Shift, scale and gate of both halves from a condition."""

    def forward(self, x, condition):
        shift, by, gate, shift2, by2, gate2 = (
            self.modulation(F.silu(condition)).unsqueeze(1).chunk(6, -1)
        )
        y = self.norm(x) * (1 + by) + shift
        q, k, v = self.qkv(y).chunk(3, -1)
        x = x + gate * self.out(attended(self, q, k, v, 6))
        y = self.norm(x) * (1 + by2) + shift2
        return x + gate2 * self.down(F.gelu(self.up(y), approximate="tanh"))

    parts = dict(
        norm=nn.LayerNorm(384, elementwise_affine=False), modulation=nn.Linear(384, 2304),
        qkv=nn.Linear(384, 1152), out=nn.Linear(384, 384), up=nn.Linear(384, 1536),
        down=nn.Linear(1536, 384),
    )  # fmt: skip
    return net(forward, **parts), [torch.randn(8 * scale, 256, 384), torch.randn(8 * scale, 384)]


@problem(scale=4, low=True)
def rotary_grouped_attention(scale):
    """RMSNorm, rotary embeddings, two heads of queries for each of keys."""

    def rotated(x, cos, sin):
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    def forward(self, x):
        y = x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype)
        q, k, v = (p(y * self.scale) for p in (self.q, self.k, self.v))
        q, k, v = (t.unflatten(-1, (-1, 64)).transpose(1, 2) for t in (q, k, v))
        q, k = rotated(q, self.cos, self.sin), rotated(k, self.cos, self.sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return x + self.o(out.transpose(1, 2).flatten(2))

    angles = torch.outer(torch.arange(256.0), 1e4 ** (-torch.arange(0, 64, 2) / 64)).repeat(1, 2)
    parts = dict(
        q=nn.Linear(512, 512, bias=False), k=nn.Linear(512, 256, bias=False),
        v=nn.Linear(512, 256, bias=False), o=nn.Linear(512, 512, bias=False), scale=weight(512),
        cos=nn.Parameter(angles.cos(), False), sin=nn.Parameter(angles.sin(), False),
    )  # fmt: skip
    return net(forward, **parts), [torch.randn(4 * scale, 256, 512)]


@problem(scale=4)
def window_mlp(scale):
    """Mixing inside shifted windows of an image, per head."""

    def forward(self, x):
        n, h, w, c = x.shape
        y = torch.roll(self.norm(x), (-3, -3), (1, 2))
        y = y.view(n, h // 7, 7, w // 7, 7, 3, c // 3).permute(0, 1, 3, 5, 2, 4, 6)
        y = self.mix(y.reshape(-1, 3 * 49, c // 3)).view(n, h // 7, w // 7, 3, 7, 7, c // 3)
        y = y.permute(0, 1, 4, 2, 5, 3, 6).reshape(n, h, w, c)
        x = x + torch.roll(y, (3, 3), (1, 2))
        return x + self.mlp(x)

    mix = nn.Conv1d(3 * 49, 3 * 49, 1, groups=3)
    block = nn.Sequential(nn.LayerNorm(96), nn.Linear(96, 384), nn.GELU(), nn.Linear(384, 96))
    parts = dict(norm=nn.LayerNorm(96), mix=mix, mlp=block)
    return net(forward, **parts), [torch.randn(2 * scale, 56, 56, 96)]


@problem(scale=4)
def graph_attention(scale):
    """Messages along edges: gathered, weighted by a softmax over each node's edges, added up."""

    def forward(self, x, source, target):
        h = self.linear(x).view(-1, 4, 32)
        a = F.leaky_relu((h * self.left).sum(-1)[source] + (h * self.right).sum(-1)[target], 0.2)
        top = torch.full((x.shape[0], 4), -1e30, dtype=a.dtype, device=a.device)
        top = top.scatter_reduce(0, target[:, None].expand_as(a), a.detach(), "amax")
        a = (a - top[target]).exp()
        total = torch.zeros_like(top).index_add(0, target, a)
        messages = h[source] * (a / (total[target] + 1e-9)).unsqueeze(-1)
        return F.elu(torch.zeros_like(h).index_add(0, target, messages)).flatten(1)

    nodes, edges = 1024 * scale, 8192 * scale
    parts = dict(linear=nn.Linear(64, 128), left=weight(4, 32), right=weight(4, 32))
    ends = [torch.randint(0, nodes, (edges,)) for _ in range(2)]
    return net(forward, **parts), [torch.randn(nodes, 64), *ends]


@problem(scale=4)
def variational_autoencoder(scale):
    """A fixed noise; the loss with its divergence."""

    def forward(self, x, noise):
        mean, log_variance = self.encoder(x).chunk(2, -1)
        y = torch.sigmoid(self.decoder(mean + noise * (0.5 * log_variance).exp()))
        loss = F.binary_cross_entropy(y, torch.sigmoid(x), reduction="sum")
        return loss - 0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()

    parts = dict(encoder=mlp(784, 400, 40, last=nn.Identity()),
                 decoder=mlp(20, 400, 784, last=nn.Identity()))  # fmt: skip
    return net(forward, **parts), [torch.randn(64 * scale, 784), torch.randn(64 * scale, 20)]


@problem(scale=4)
def coupling_flow(scale):
    """Four affine couplings and their determinant."""

    def forward(self, x):
        total = x.new_zeros(x.shape[0])
        for layer in self.layers:
            left, right = x.chunk(2, -1)
            scale, shift = layer(left).chunk(2, -1)
            scale = torch.tanh(scale)
            x = torch.cat([right * scale.exp() + shift, left], -1)
            total = total + scale.sum(-1)
        return -0.5 * x.square().sum(-1) + total

    layers = nn.ModuleList(mlp(32, 128, 128, 64, last=nn.Identity()) for _ in range(4))
    return net(forward, layers=layers), [torch.randn(512 * scale, 64)]


@problem(scale=4)
def image_text_loss(scale):
    def forward(self, images, texts):
        a, b = F.normalize(self.image(images), dim=-1), F.normalize(self.text(texts), dim=-1)
        logits = self.temperature.exp() * a @ b.T
        labels = torch.arange(logits.shape[0], device=logits.device)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2

    parts = dict(image=nn.Linear(768, 256), text=nn.Linear(512, 256), temperature=weight())
    return net(forward, **parts), [torch.randn(64 * scale, 768), torch.randn(64 * scale, 512)]


@problem(scale=4)
def conformer_convolution(scale):
    def forward(self, x):
        y = F.glu(self.first(self.norm(x).transpose(1, 2)), dim=1)
        y = F.silu(self.batch_norm(self.depthwise(y)))
        return x + self.last(y).transpose(1, 2)

    parts = dict(
        norm=nn.LayerNorm(256), first=nn.Conv1d(256, 512, 1), last=nn.Conv1d(256, 256, 1),
        depthwise=nn.Conv1d(256, 256, 31, padding=15, groups=256), batch_norm=nn.BatchNorm1d(256),
    )  # fmt: skip
    return net(forward, **parts), [torch.randn(4 * scale, 200, 256)]


@problem(scale=4, low=True)
def low_rank_adapters(scale):
    """Frozen projections with two adapters, and a gated unit behind them."""

    def forward(self, x):
        q = F.linear(x, self.q) + 2.0 * (x @ self.qa) @ self.qb
        v = F.linear(x, self.v) + 2.0 * (x @ self.va) @ self.vb
        return F.silu(q) * v

    frozen = {n: nn.Parameter(torch.randn(1024, 1024) / 32, False) for n in "qv"}
    low = {n + "a": weight(1024, 8, std=0.03) for n in "qv"}
    low |= {n + "b": weight(8, 1024, std=0.03) for n in "qv"}
    return net(forward, **frozen, **low), [torch.randn(128 * scale, 1024)]


@problem(scale=4)
def gated_linear_attention(scale):
    """Chunks of a decayed linear attention."""

    def forward(self, q, k, v, gates):
        decay = F.logsigmoid(gates).cumsum(-1)
        weights = (decay.unsqueeze(-1) - decay.unsqueeze(-2)).tril().exp().tril()
        inside = ((q @ k.transpose(-1, -2)) * weights) @ v
        carried = (k * (decay[..., -1:] - decay).exp().unsqueeze(-1)).transpose(-1, -2) @ v
        before = torch.cat([torch.zeros_like(carried[:, :, :1]), carried[:, :, :-1]], 2)
        return inside + (q * decay.exp().unsqueeze(-1)) @ before

    shape = (scale, 4, 8, 64)
    inputs = [torch.randn(*shape, 32) / 6 for _ in range(3)]
    return net(forward), [*inputs, torch.randn(shape)]
