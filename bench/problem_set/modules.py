"""Popular modules outside libraries, as people write them by hand: attention and its relatives,
graphs, flows, losses, routing, rendering. Sizes are odd on purpose."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from problem_set.core import function, net, problem_of, weight

problem = problem_of("modules")


# -- attention and its relatives --


@problem
def nano_gpt(scale):
    """With its loss, tied weights and a mask in a buffer."""

    def forward(self, ids):
        length = ids.shape[1]
        x = self.token(ids) + self.position(torch.arange(length, device=ids.device))
        q, k, v = self.qkv(self.norm1(x)).split(42, dim=2)
        q, k, v = (t.view(*ids.shape, 3, 14).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-2, -1) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf"))
        y = (F.softmax(scores, dim=-1) @ v).transpose(1, 2).contiguous().view(x.shape)
        x = x + self.out(y)
        x = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        logits = F.linear(self.norm3(x), self.token.weight)
        shifted, targets = logits[:, :-1].reshape(-1, 65), ids[:, 1:].reshape(-1)
        return logits, F.cross_entropy(shifted, targets, ignore_index=-1)

    norms = {f"norm{i}": nn.LayerNorm(42) for i in (1, 2, 3)}
    made = net(
        forward, token=nn.Embedding(65, 42), position=nn.Embedding(32, 42), up=nn.Linear(42, 168),
        qkv=nn.Linear(42, 126), out=nn.Linear(42, 42), down=nn.Linear(168, 42), **norms,
    )  # fmt: skip
    made.register_buffer("bias", torch.tril(torch.ones(32, 32)).view(1, 1, 32, 32))
    return made, [torch.randint(0, 65, (3 * scale, 19))]


@problem
def alibi_rotary_memory(scale):
    """As x-transformers: slopes by head, rotated halves, memory tokens, gated feed forward."""

    def rotated(t, angles):
        one, two = t.chunk(2, dim=-1)
        return t * angles.cos() + torch.cat((-two, one), dim=-1) * angles.sin()

    def forward(self, x):
        batch, length, width = x.shape
        x = torch.cat((self.memory.expand(batch, -1, -1), x), dim=1)
        n = x.shape[1]
        h = F.normalize(x, dim=-1) * width**0.5 * self.gamma
        q, k, v = self.qkv(h).reshape(batch, n, 3, 4, 12).permute(2, 0, 3, 1, 4)
        at = torch.arange(n, device=x.device)
        rates = 1e4 ** (-torch.arange(0, 12, 2, device=x.device) / 12.0)
        angles = torch.einsum("i,j->ij", at.float(), rates)
        angles = torch.cat((angles, angles), dim=-1)
        bias = -(at[None] - at[:, None]).abs() * self.slopes[:, None, None]
        scores = torch.einsum("bhid,bhjd->bhij", rotated(q, angles), rotated(k, angles)) * 12**-0.5
        scores = torch.einsum("hg,bgij->bhij", self.talk, scores + bias)
        scores = scores.masked_fill(at[None] > at[:, None], -torch.finfo(scores.dtype).max)
        y = torch.einsum("bhij,bhjd->bihd", scores.softmax(dim=-1, dtype=torch.float32), v)
        x = x + self.out(y.flatten(2))
        value, gate = self.up(x).chunk(2, dim=-1)
        return (x + self.down(value * F.gelu(gate)))[:, -length:]

    made = net(forward, memory=weight(5, 48), gamma=weight(48), talk=weight(4, 4, std=0.5),
               qkv=nn.Linear(48, 144, bias=False), out=nn.Linear(48, 48), up=nn.Linear(48, 128),
               down=nn.Linear(64, 48))  # fmt: skip
    made.register_buffer("slopes", 2.0 ** -torch.arange(1, 5).float())
    return made, [torch.randn(2 * scale, 17, 48)]


@problem
def diffusion_transformer(scale):
    """As DiT: patches, a sinusoidal time, adaptive norms with gates, patches back to an image."""

    def forward(self, x, time):
        steps = torch.arange(16, dtype=torch.float32, device=x.device)
        half = torch.exp(-math.log(10000) * steps / 16)
        angles = time[:, None].float() * half[None]
        embedded = torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1).to(x.dtype)
        c = self.time2(F.silu(self.time1(embedded)))
        t = self.patch(x).flatten(2).transpose(1, 2) + self.place
        s1, m1, g1, s2, m2, g2 = self.modulate(F.silu(c)).chunk(6, dim=1)
        h = F.layer_norm(t, (32,), eps=1e-6) * (1 + m1.unsqueeze(1)) + s1.unsqueeze(1)
        q, k, v = self.qkv(h).view(*h.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        t = t + g1.unsqueeze(1) * self.out(y)
        h = F.layer_norm(t, (32,), eps=1e-6) * (1 + m2.unsqueeze(1)) + s2.unsqueeze(1)
        t = t + g2.unsqueeze(1) * self.down(F.gelu(self.up(h), approximate="tanh"))
        t = self.last(t).reshape(x.shape[0], 6, 6, 2, 2, 4)
        return torch.einsum("nhwpqc->nchpwq", t).reshape(x.shape[0], 4, 12, 12)

    made = net(
        forward, time1=nn.Linear(32, 32), time2=nn.Linear(32, 32), patch=nn.Conv2d(4, 32, 2, 2),
        place=weight(1, 36, 32), modulate=nn.Linear(32, 192), qkv=nn.Linear(32, 96),
        out=nn.Linear(32, 32), up=nn.Linear(32, 128), down=nn.Linear(128, 32),
        last=nn.Linear(32, 16),
    )  # fmt: skip
    return made, [torch.randn(2 * scale, 4, 12, 12), torch.randint(0, 1000, (2 * scale,))]


@problem
def diffusion_unet_block(scale):
    """As diffusers: a residual block with time, attention to text, then half the size."""

    def forward(self, x, time, text):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        x = self.short(x) + self.conv2(F.silu(self.norm2(h)))
        b, c, height, width = x.shape
        t = self.norm3(x).permute(0, 2, 3, 1).reshape(b, height * width, c)
        heads = [f(s).view(b, -1, 4, 6).transpose(1, 2)
                 for f, s in ((self.q, t), (self.k, text), (self.v, text))]  # fmt: skip
        t = t + self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        x = x + t.reshape(b, height, width, c).permute(0, 3, 1, 2)
        return self.down(F.pad(x, (0, 1, 0, 1))), F.interpolate(x, scale_factor=2.0, mode="nearest")

    made = net(
        forward, norm1=nn.GroupNorm(4, 12), conv1=nn.Conv2d(12, 24, 3, padding=1),
        time=nn.Linear(20, 24), norm2=nn.GroupNorm(4, 24), conv2=nn.Conv2d(24, 24, 3, padding=1),
        short=nn.Conv2d(12, 24, 1), norm3=nn.GroupNorm(4, 24, eps=1e-6), q=nn.Linear(24, 24),
        k=nn.Linear(15, 24), v=nn.Linear(15, 24), out=nn.Linear(24, 24),
        down=nn.Conv2d(24, 24, 3, stride=2),
    )  # fmt: skip
    return made, [torch.randn(2 * scale, 12, 10, 10), torch.randn(2 * scale, 20),
                  torch.randn(2 * scale, 7, 15)]  # fmt: skip


@problem
def shifted_windows(scale):
    """As Swin: roll, windows, a table of biases by index, a mask of regions, and back."""

    def windows(x):
        b, h, w, c = x.shape
        return x.view(b, h // 4, 4, w // 4, 4, c).transpose(2, 3).reshape(-1, 16, c)

    def forward(self, x):
        b, h, w, c = x.shape
        t = windows(torch.roll(self.norm(x), shifts=(-2, -2), dims=(1, 2)))
        q, k, v = self.qkv(t).reshape(-1, 16, 3, 3, 8).permute(2, 0, 3, 1, 4)
        scores = (q * 8**-0.5) @ k.transpose(-2, -1)
        bias = self.table[self.index.view(-1)].view(16, 16, -1).permute(2, 0, 1)
        scores = (scores + bias.unsqueeze(0)).view(b, -1, 3, 16, 16)
        scores = (scores + self.mask[None, :, None]).view(-1, 3, 16, 16)
        t = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, c))
        t = t.view(b, h // 4, w // 4, 4, 4, c).transpose(2, 3).reshape(b, h, w, c)
        x = x + torch.roll(t, shifts=(2, 2), dims=(1, 2))
        parts = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.reduce(torch.cat(parts, -1))

    made = net(forward, norm=nn.LayerNorm(24), qkv=nn.Linear(24, 72), table=weight(49, 3),
               out=nn.Linear(24, 24), reduce=nn.Linear(96, 48, bias=False))  # fmt: skip
    at = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
    apart = (at[:, :, None] - at[:, None]) + 3
    made.register_buffer("index", apart[0] * 7 + apart[1])
    region = torch.zeros(1, 12, 8, 1)
    for n, rows in enumerate((slice(0, -4), slice(-4, -2), slice(-2, None))):
        for m, columns in enumerate((slice(0, -4), slice(-4, -2), slice(-2, None))):
            region[:, rows, columns] = 3 * n + m
    region = windows(region).squeeze(-1)
    mask = (region[:, None] != region[:, :, None]).float() * -100.0
    made.register_buffer("mask", mask)
    return made, [torch.randn(2 * scale, 12, 8, 24)]


@problem
def conformer_block(scale):
    """Half feed forwards, attention with shifted relative positions, a gated convolution."""

    def forward(self, x):
        b, n, _ = x.shape
        x = x + 0.5 * self.down(F.silu(self.up(self.norm1(x))))
        q, k, v = (t.view(b, n, 4, 9) for t in self.qkv(self.norm2(x)).chunk(3, dim=-1))
        place = self.place(self.angles[: 2 * n - 1]).view(-1, 4, 9)
        content = torch.einsum("bihd,bjhd->bhij", q + self.u, k)
        far = torch.einsum("bihd,jhd->bhij", q + self.v, place)
        far = F.pad(far, (1, 0)).view(b, 4, 2 * n, n)[:, :, 1:].reshape(b, 4, n, 2 * n - 1)
        y = ((content + far[..., :n]) / 3.0).softmax(-1)
        x = x + self.out(torch.einsum("bhij,bjhd->bihd", y, v).reshape(b, n, 36))
        h = F.glu(self.inside(self.norm3(x).transpose(1, 2)), dim=1)
        x = x + self.outside(F.silu(self.batch(self.depth(h)))).transpose(1, 2)
        return self.norm4(x)

    norms = {f"norm{i}": nn.LayerNorm(36) for i in (1, 2, 3, 4)}
    made = net(
        forward, up=nn.Linear(36, 72), down=nn.Linear(72, 36), qkv=nn.Linear(36, 108),
        place=nn.Linear(36, 36, bias=False), u=weight(4, 9), v=weight(4, 9), out=nn.Linear(36, 36),
        inside=nn.Conv1d(36, 72, 1), depth=nn.Conv1d(36, 36, 7, padding=3, groups=36),
        batch=nn.BatchNorm1d(36), outside=nn.Conv1d(36, 36, 1), **norms,
    )  # fmt: skip
    made.register_buffer("angles", torch.randn(64, 36))
    return made, [torch.randn(2 * scale, 13, 36)]


@problem
def retention_and_linear_attention(scale):
    def forward(self, x):
        q, k, v, g = self.qkvg(x).view(*x.shape[:2], 4, 3, 8).permute(2, 0, 3, 1, 4)
        at = torch.arange(x.shape[1], device=x.device)
        apart = (at[:, None] - at[None]).clamp(min=0)
        decay = torch.where(at[:, None] >= at[None], self.rate[:, None, None] ** apart, 0.0)
        kept = (q @ k.transpose(-1, -2)) * decay
        kept = kept / kept.detach().sum(-1, keepdim=True).abs().clamp(min=1)
        one = F.group_norm((kept @ v).transpose(1, 2).reshape(-1, 24), 3).view(x.shape)
        fq, fk = F.elu(q) + 1, F.elu(k) + 1
        state = torch.einsum("bhnd,bhne->bhnde", fk, v).cumsum(2)
        total = torch.einsum("bhnd,bhnd->bhn", fq, fk.cumsum(2)).unsqueeze(-1)
        two = torch.einsum("bhnd,bhnde->bhne", fq, state) / (total + 1e-6)
        return one * F.silu(g.transpose(1, 2).flatten(2)) + two.transpose(1, 2).flatten(2)

    made = net(forward, qkvg=nn.Linear(24, 96))
    made.register_buffer("rate", 1 - 2.0 ** -torch.arange(3, 6).float())
    return made, [torch.randn(2 * scale, 21, 24)]


@problem
def selective_scan(scale):
    """As Mamba's slow path: a depthwise causal convolution and a loop over time."""

    def forward(self, x):
        h, gate = self.inside(x).chunk(2, dim=-1)
        h = F.silu(self.conv(h.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
        step, b, c = self.select(h).split([5, 7, 7], dim=-1)
        step = F.softplus(self.step(step))
        decay = torch.exp(step.unsqueeze(-1) * -torch.exp(self.a_log))
        change = step.unsqueeze(-1) * b.unsqueeze(2) * h.unsqueeze(-1)
        state, outs = x.new_zeros(x.shape[0], 22, 7), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + change[:, t]
            outs.append(torch.einsum("bdn,bn->bd", state, c[:, t]))
        return self.out((torch.stack(outs, dim=1) + h * self.skip) * F.silu(gate))

    made = net(
        forward, inside=nn.Linear(11, 44), conv=nn.Conv1d(22, 22, 4, groups=22, padding=3),
        select=nn.Linear(22, 19, bias=False), step=nn.Linear(5, 22), a_log=weight(22, 7, std=0.3),
        skip=weight(22), out=nn.Linear(22, 11, bias=False),
    )  # fmt: skip
    return made, [torch.randn(2 * scale, 9, 11)]


@problem
def slot_attention(scale):
    def forward(self, x):
        keys, values = self.k(x), self.v(x)
        slots = self.start.expand(x.shape[0], -1, -1)
        for _ in range(3):
            before = slots
            scores = torch.einsum("bid,bjd->bij", self.q(self.norm(slots)), keys) * 14**-0.5
            weights = scores.softmax(dim=1) + 1e-8
            weights = weights / weights.sum(dim=-1, keepdim=True)
            found = torch.einsum("bjd,bij->bid", values, weights)
            slots = self.gru(found.reshape(-1, 14), before.reshape(-1, 14)).view(before.shape)
        return slots

    made = net(forward, k=nn.Linear(10, 14), v=nn.Linear(10, 14), q=nn.Linear(14, 14),
               norm=nn.LayerNorm(14), gru=nn.GRUCell(14, 14), start=weight(1, 5, 14))  # fmt: skip
    return made, [torch.randn(3 * scale, 20, 10)]


# -- graphs and points --


def _edges(nodes: int, count: int) -> Tensor:
    return torch.randint(0, nodes, (2, count))


@problem
def graph_convolution_normalised(scale):
    """Degrees by scatter, messages by index, sums by index_add."""

    def forward(self, x, edges):
        source, target = edges
        degree = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device).scatter_add_(
            0, target, torch.ones_like(target, dtype=x.dtype))  # fmt: skip
        inverse = degree.pow(-0.5)
        inverse = inverse.masked_fill(inverse == float("inf"), 0.0)
        message = self.linear(x)[source] * (inverse[source] * inverse[target]).unsqueeze(-1)
        out = x.new_zeros(x.shape[0], 12).index_add_(0, target, message)
        return F.relu(out + self.bias)

    made = net(forward, linear=nn.Linear(9, 12, bias=False), bias=weight(12))
    return made, [torch.randn(31 * scale, 9), _edges(31 * scale, 97 * scale)]


@problem
def edge_convolution(scale):
    """As DGCNN: nearest points by distance, differences to them, maxima over them."""

    def forward(self, x):
        inner = -2 * torch.matmul(x.transpose(2, 1), x)
        square = torch.sum(x**2, dim=1, keepdim=True)
        near = (-square - inner - square.transpose(2, 1)).topk(k=5, dim=-1)[1]
        b, c, n = x.shape
        near = (near + torch.arange(b, device=x.device).view(-1, 1, 1) * n).view(-1)
        x = x.transpose(2, 1).contiguous()
        found = x.view(b * n, c)[near].view(b, n, 5, c)
        x = x.view(b, n, 1, c).repeat(1, 1, 5, 1)
        pairs = torch.cat((found - x, x), dim=3).permute(0, 3, 1, 2).contiguous()
        return F.leaky_relu(self.norm(self.conv(pairs)), 0.2).max(dim=-1)[0]

    made = net(forward, conv=nn.Conv2d(6, 16, 1, bias=False), norm=nn.BatchNorm2d(16))
    return made, [torch.randn(2 * scale, 3, 37)]


@problem
def hashed_grid(scale):
    """As instant-ngp: corners hashed by products and xor, read and weighted by nearness."""

    def forward(self, x):
        found = []
        for level in range(3):
            at = x.sigmoid() * 4 * 2**level
            low = at.floor()
            part = at - low
            feature = 0.0
            for corner in range(8):
                bits = self.corners[corner]
                place = low.long() + bits
                hashed = (place[:, 0] * 1) ^ (place[:, 1] * 2654435761) ^ (place[:, 2] * 805459861)
                near = torch.where(bits.bool(), part, 1 - part).prod(-1, keepdim=True)
                feature = feature + near * self.table[level][hashed % 64]
            found.append(feature)
        return self.out(torch.cat(found, -1))

    made = net(forward, table=weight(3, 64, 2), out=nn.Linear(6, 4))
    made.register_buffer("corners", torch.arange(8)[:, None] >> torch.arange(3) & 1)
    return made, [torch.randn(29 * scale, 3)]


# -- flows, distributions, codes --


@problem
def invertible_convolution(scale):
    """As Glow: normalised activations and a 1 x 1 convolution with its log determinant."""

    def forward(self, x):
        pixels = x.shape[2] * x.shape[3]
        x = (x + self.shift) * self.log_scale.exp()
        lower = torch.tril(self.lower, -1) + torch.eye(6, device=x.device)
        upper = torch.triu(self.upper, 1) + torch.diag(self.sign * self.log_s.exp())
        w = self.order @ lower @ upper
        out = F.conv2d(x, w.view(6, 6, 1, 1))
        return out, (self.log_s.sum() + self.log_scale.sum()) * pixels

    made = net(forward, shift=weight(1, 6, 1, 1), log_scale=weight(1, 6, 1, 1, std=0.1),
               lower=weight(6, 6), upper=weight(6, 6), log_s=weight(6, std=0.1))  # fmt: skip
    made.register_buffer("order", torch.eye(6)[torch.randperm(6)])
    made.register_buffer("sign", torch.tensor([1.0, -1, 1, 1, -1, 1]))
    return made, [torch.randn(2 * scale, 6, 5, 7)]


@problem
def rational_spline(scale):
    """A monotonic spline: widths, heights and slopes of bins, found by comparison and gathered."""

    def forward(x, params):
        w, h, d = params.split([8, 8, 9], dim=-1)
        widths, heights = (1e-3 + (1 - 8e-3) * F.softmax(t, dim=-1) for t in (w, h))
        cum_w, cum_h = (F.pad(t.cumsum(-1), (1, 0)) * 6 - 3 for t in (widths, heights))
        slopes = 1e-3 + F.softplus(d)
        inside = x.clamp(-2.99, 2.99)
        at = (inside[..., None] >= cum_w[..., :-1]).sum(-1, keepdim=True) - 1

        def read(t):
            return t.gather(-1, at).squeeze(-1)

        width = read(cum_w[..., 1:] - cum_w[..., :-1])
        height = read(cum_h[..., 1:] - cum_h[..., :-1])
        theta = (inside - read(cum_w)) / width
        delta, one, two = height / width, read(slopes), read(slopes[..., 1:])
        both = theta * (1 - theta)
        under = delta + (one + two - 2 * delta) * both
        y = read(cum_h) + height * (delta * theta.pow(2) + one * both) / under
        slope = delta.pow(2) * (two * theta.pow(2) + 2 * delta * both + one * (1 - theta).pow(2))
        logdet = slope.log() - 2 * under.log()
        return torch.where(x.abs() < 2.99, y, x), torch.where(x.abs() < 2.99, logdet, 0.0).sum(-1)

    return function(forward), [torch.randn(17 * scale, 5) * 2, torch.randn(17 * scale, 5, 25)]


@problem
def vector_quantiser(scale):
    """The nearest code, its gradient passed straight through, and how often codes are used."""

    def forward(self, x):
        flat = x.permute(0, 2, 3, 1).reshape(-1, 8)
        apart = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.codes.t() + (
            self.codes.pow(2).sum(1))  # fmt: skip
        at = apart.argmin(1)
        chosen = F.one_hot(at, 19).type_as(x)
        found = (chosen @ self.codes).view(x.shape[0], 5, 4, 8).permute(0, 3, 1, 2)
        loss = F.mse_loss(found, x.detach()) + 0.25 * F.mse_loss(found.detach(), x)
        used = chosen.mean(0)
        perplexity = torch.exp(-torch.sum(used * torch.log(used + 1e-10)))
        return x + (found - x).detach(), loss, perplexity, at

    return net(forward, codes=weight(19, 8)), [torch.randn(2 * scale, 8, 5, 4)]


@problem
def mixture_density(scale):
    def forward(self, x, y):
        logits, mean, log_std = self.out(torch.tanh(self.inside(x))).view(-1, 3, 5, 4).unbind(1)
        normal = torch.distributions.Normal(mean, log_std.exp(), validate_args=False)
        each = normal.log_prob(y.unsqueeze(1)).sum(-1) + F.log_softmax(logits.mean(-1), -1)
        return -torch.logsumexp(each, dim=1).mean(), (logits.softmax(1) * mean).sum(1)

    made = net(forward, inside=nn.Linear(6, 25), out=nn.Linear(25, 60))
    return made, [torch.randn(11 * scale, 6), torch.randn(11 * scale, 4)]
