"""Attention and other blocks, feed forwards, whole small parts of networks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from problem_set.second.kit import R, case, integers, net, weight

L, C, LN, BN = nn.Linear, nn.Conv2d, nn.LayerNorm, nn.BatchNorm2d

# -- attention --
whole, plain = case("attention")


def heads(t, count):
    return t.unflatten(-1, (count, -1)).transpose(1, 2)


def joined(t):
    return t.transpose(1, 2).flatten(2)


def angles_of(length, width, like):
    rates = 10000.0 ** (-torch.arange(0, width, 2, device=like.device).to(like.dtype) / width)
    at = torch.arange(length, device=like.device).to(like.dtype)[:, None] * rates
    return at.cos().to(like.dtype), at.sin().to(like.dtype)


def interleaved(t):
    c, s = angles_of(t.shape[-2], t.shape[-1], t)
    a, b = t[..., ::2], t[..., 1::2]
    return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)


def rotary_interleaved(self, x):
    q, k, v = (heads(t, 6) for t in self.qkv(x).chunk(3, -1))
    return self.out(
        joined(F.scaled_dot_product_attention(interleaved(q), interleaved(k), v, is_causal=True))
    )


whole(
    "attention_rotary_interleaved",
    lambda s: (
        net(rotary_interleaved, qkv=L(384, 1152, bias=False), out=L(384, 384)),
        [R(s, 333, 384)],
    ),
    low=True,
)


def relative_bias(self, x):
    q, k, v = (heads(t, 5) for t in self.qkv(x).chunk(3, -1))
    at = torch.arange(x.shape[1], device=x.device)
    bias = self.table[:, (at[:, None] - at).clamp(-32, 32) + 32]
    return self.out(joined((q @ k.mT / 8 + bias).softmax(-1) @ v))


whole(
    "attention_clipped_relative_bias",
    lambda s: (
        net(relative_bias, qkv=L(320, 960), out=L(320, 320), table=weight(5, 65, std=0.1)),
        [R(s, 250, 320)],
    ),
    low=True,
)


def local_windows(self, x):
    q, k, v = (heads(t, 4) for t in self.qkv(x).chunk(3, -1))
    at = torch.arange(x.shape[1], device=x.device)
    apart = at[:, None] - at
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(
        (apart < 0) | (apart >= 40), float("-inf")
    )
    return self.out(joined(scores.softmax(-1) @ v))


whole(
    "attention_sliding_window",
    lambda s: (net(local_windows, qkv=L(256, 768), out=L(256, 256)), [R(s, 300, 256)]),
    low=True,
)


def chunked(self, x):
    b, n, c = x.shape
    q, k, v = (t.view(b, n // 50, 50, 3, -1).transpose(2, 3) for t in self.qkv(x).chunk(3, -1))
    k, v = (torch.cat([F.pad(t, (0, 0, 0, 0, 0, 0, 1, 0))[:, :-1], t], -2) for t in (k, v))
    return self.out(((q @ k.mT * 0.125).softmax(-1) @ v).transpose(2, 3).reshape(b, n, c))


whole(
    "attention_chunks_and_the_one_before",
    lambda s: (net(chunked, qkv=L(192, 576), out=L(192, 192)), [R(s, 600, 192)]),
)


def cross(self, x, y, m):
    q, (k, v) = heads(self.q(self.norm(x)), 4), (heads(t, 4) for t in self.kv(y).chunk(2, -1))
    return x + self.gate.tanh() * self.out(
        joined(F.scaled_dot_product_attention(q, k, v, attn_mask=m[:, None, None]))
    )


whole(
    "cross_attention_gated_padded",
    lambda s: (
        net(cross, norm=LN(256), q=L(256, 256), kv=L(333, 512), out=L(256, 256), gate=weight(1)),
        [R(s, 300, 256), R(s, 77, 333), F.pad(torch.rand(s, 76) > 0.3, (1, 0), value=True)],
    ),
    low=True,
)


def grouped_queries(self, x):
    q = F.rms_norm(heads(self.q(x), 9), (48,))
    k, v = F.rms_norm(heads(self.k(x), 3), (48,)), heads(self.v(x), 3)
    k, v = (t.repeat_interleave(3, 1) for t in (k, v))
    scores = 30 * torch.tanh(q @ k.mT / 30)
    scores = scores + torch.full(
        scores.shape[-2:], float("-inf"), dtype=x.dtype, device=x.device
    ).triu(1)
    return self.out(joined(scores.softmax(-1) @ v))


whole(
    "attention_grouped_normed_capped",
    lambda s: (
        net(
            grouped_queries,
            q=L(400, 432, bias=False),
            k=L(400, 144, bias=False),
            v=L(400, 144, bias=False),
            out=L(432, 400),
        ),
        [R(s, 200, 400)],
    ),
    low=True,
)


def one_key_head(self, x):
    q, k, v = self.q(x), *self.kv(x).chunk(2, -1)
    q = q.unflatten(-1, (8, 40))
    return self.out(
        torch.einsum(
            "bnhm,bmd->bnhd", torch.einsum("bnhd,bmd->bnhm", q, k).mul(0.158).softmax(-1), v
        ).flatten(2)
    )


whole(
    "attention_of_one_key_head",
    lambda s: (net(one_key_head, q=L(320, 320), kv=L(320, 80), out=L(320, 320)), [R(s, 256, 320)]),
    low=True,
)


def efficient(self, x):
    q, k, v = (heads(t, 6) for t in self.qkv(x).chunk(3, -1))
    return x + self.out(joined(q.softmax(-1) @ (k.softmax(-2).mT @ v)))


whole(
    "efficient_attention",
    lambda s: (net(efficient, qkv=L(192, 576), out=L(192, 192)), [R(s, 1000, 192)]),
    low=True,
)


def causal_linear(q, k, v):
    q, k = F.relu(q) + 1e-3, F.relu(k) + 1e-3
    scores = (q @ k.mT).tril()
    return scores @ v / scores.sum(-1, keepdim=True)


plain(
    "causal_linear_attention_squared", causal_linear, lambda s: [R(s, 5, 333, 48) for _ in range(3)]
)


def alibi(self, x):
    q, k, v = (heads(t, 8) for t in self.qkv(x).chunk(3, -1))
    at = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
    slopes = 0.5 ** torch.arange(1, 9, device=x.device, dtype=x.dtype)
    bias = -(at[:, None] - at).abs() * slopes[:, None, None]
    return (
        F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(len(x), -1, -1, -1))
        .transpose(1, 2)
        .flatten(2)
    )


whole("alibi_both_ways", lambda s: (net(alibi, qkv=L(256, 768)), [R(s, 250, 256)]), low=True)


def perceiver(self, x):
    z = self.latents.expand(len(x), -1, -1)
    for _ in range(2):
        k, v = self.kv(self.norm(x)).chunk(2, -1)
        z = z + (self.q(z) @ k.mT / 11.3).softmax(-1) @ v
        z = z + self.down(F.gelu(self.up(self.norm2(z))))
    return z.mean(1)


whole(
    "perceiver",
    lambda s: (
        net(
            perceiver,
            latents=weight(1, 48, 128),
            norm=LN(100),
            kv=L(100, 256),
            q=L(128, 128),
            up=L(128, 256),
            down=L(256, 128),
            norm2=LN(128),
        ),
        [R(s, 900, 100)],
    ),
    low=True,
)


def axial(self, x):
    def along(t):
        q, k, v = self.qkv(t).chunk(3, -1)
        return (q @ k.mT * 0.144).softmax(-1) @ v

    t = x.permute(0, 2, 3, 1)
    return (along(t) + along(t.transpose(1, 2)).transpose(1, 2)).permute(0, 3, 1, 2) + x


whole("axial_attention", lambda s: (net(axial, qkv=L(48, 144)), [R(s, 48, 40, 56)]))


def pooled_keys(self, x):
    t = x.flatten(2).mT
    small = self.norm(self.shrink(x).flatten(2).mT)
    k, v = (heads(u, 2) for u in self.kv(small).chunk(2, -1))
    return t + self.out(joined((heads(self.q(t), 2) @ k.mT * 0.177).softmax(-1) @ v))


whole(
    "attention_to_a_smaller_image",
    lambda s: (
        net(
            pooled_keys,
            shrink=C(64, 64, 4, 4),
            norm=LN(64),
            kv=L(64, 128),
            q=L(64, 64),
            out=L(64, 64),
        ),
        [R(s, 64, 40, 44)],
    ),
    low=True,
)


def decode(q, k, v, n):
    at = torch.arange(k.shape[2], device=q.device)
    scores = (q @ k.mT * 0.125).masked_fill(at >= n[:, None, None, None], float("-inf"))
    return scores.softmax(-1) @ v


plain(
    "decode_one_token_with_lengths",
    decode,
    lambda s: [R(s, 4, 1, 64), R(s, 4, 1000, 64), R(s, 4, 1000, 64), torch.randint(1, 1000, (s,))],
    low=True,
    trains=False,
)


def differential(self, x):
    q, k, v = self.qkv(x).split([256, 256, 256], -1)
    q1, q2 = heads(q, 4).chunk(2, -1)
    k1, k2 = heads(k, 4).chunk(2, -1)
    a = (q1 @ k1.mT * 0.177).softmax(-1) - self.mix.sigmoid() * (q2 @ k2.mT * 0.177).softmax(-1)
    return self.out(joined(F.rms_norm(a @ heads(v, 4), (64,)) * 0.2))


whole(
    "differential_attention",
    lambda s: (
        net(differential, qkv=L(256, 768, bias=False), mix=weight(1), out=L(256, 256, bias=False)),
        [R(s, 256, 256)],
    ),
    low=True,
)

# -- blocks --
whole, plain = case("blocks")


def mixer(self, x):
    y = self.down1(F.gelu(self.up1(self.norm1(x).mT))).mT + x
    return y + self.down2(F.gelu(self.up2(self.norm2(y))))


whole(
    "mixer_odd",
    lambda s: (
        net(
            mixer,
            norm1=LN(300),
            norm2=LN(300),
            up1=L(77, 150),
            down1=L(150, 77),
            up2=L(300, 600),
            down2=L(600, 300),
        ),
        [R(2 * s, 77, 300)],
    ),
    low=True,
)


def gmlp(self, x):
    u, v = F.gelu(self.up(self.norm(x))).chunk(2, -1)
    return x + self.down(
        u * (torch.einsum("ij,bjd->bid", self.mix, self.inner(v)) + self.bias[:, None])
    )


whole(
    "gmlp",
    lambda s: (
        net(
            gmlp,
            norm=LN(192),
            up=L(192, 768),
            inner=LN(384),
            mix=weight(100, 100, std=0.01),
            bias=nn.Parameter(torch.ones(100)),
            down=L(384, 192),
        ),
        [R(2 * s, 100, 192)],
    ),
    low=True,
)


def excite(self, x):
    y = self.norm(self.conv(x))
    gate = torch.sigmoid(self.up(F.silu(self.down(y.mean((2, 3))))))[:, :, None, None]
    return F.relu(y * gate + x)


whole(
    "residual_squeeze_excite",
    lambda s: (
        net(excite, conv=C(60, 60, 3, padding=1), norm=BN(60), down=L(60, 15), up=L(15, 60)),
        [R(s, 60, 50, 49)],
    ),
)


def convnext2(self, x):
    y = self.up(self.norm(self.depth(x).permute(0, 2, 3, 1)))
    y = F.gelu(y)
    g = torch.norm(y, p=2, dim=(1, 2), keepdim=True)
    y = self.gamma * (y * (g / (g.mean(-1, keepdim=True) + 1e-6))) + self.beta + y
    return x + self.down(y).permute(0, 3, 1, 2)


whole(
    "convnext_second_version",
    lambda s: (
        net(
            convnext2,
            depth=C(64, 64, 7, padding=3, groups=64),
            norm=LN(64, eps=1e-6),
            up=L(64, 256),
            down=L(256, 64),
            gamma=weight(1, 1, 1, 256),
            beta=weight(1, 1, 1, 256),
        ),
        [R(s, 64, 33, 35)],
    ),
    low=True,
)


def resnext(self, x):
    y = F.relu(self.n1(self.c1(x)))
    y = F.relu(self.n2(self.c2(y)))
    return F.relu(self.n3(self.c3(y)) + self.n4(self.c4(x)))


whole(
    "resnext_strided",
    lambda s: (
        net(
            resnext,
            c1=C(64, 96, 1, bias=False),
            n1=BN(96),
            c2=C(96, 96, 3, 2, 1, groups=16, bias=False),
            n2=BN(96),
            c3=C(96, 128, 1, bias=False),
            n3=BN(128),
            c4=C(64, 128, 1, 2, bias=False),
            n4=BN(128),
        ),
        [R(s, 64, 56, 56)],
    ),
    low=True,
)


def shuffle2(self, x):
    a, b = x.chunk(2, 1)
    b = F.relu(self.n3(self.c3(self.n2(self.c2(F.relu(self.n1(self.c1(b))))))))
    return F.channel_shuffle(torch.cat([a, b], 1), 2)


whole(
    "shufflenet_second_version",
    lambda s: (
        net(
            shuffle2,
            c1=C(58, 58, 1),
            n1=BN(58),
            c2=C(58, 58, 3, padding=1, groups=58),
            n2=BN(58),
            c3=C(58, 58, 1),
            n3=BN(58),
        ),
        [R(s, 116, 42, 41)],
    ),
)


def mobile3(self, x):
    y = F.hardswish(self.n1(self.c1(x)))
    y = F.hardswish(self.n2(self.c2(y)))
    y = y * F.hardsigmoid(self.s2(F.relu(self.s1(F.adaptive_avg_pool2d(y, 1)))))
    return x + self.n3(self.c3(y))


whole(
    "mobilenet_third_version",
    lambda s: (
        net(
            mobile3,
            c1=C(40, 120, 1, bias=False),
            n1=BN(120),
            c2=C(120, 120, 5, padding=2, groups=120, bias=False),
            n2=BN(120),
            s1=C(120, 32, 1),
            s2=C(32, 120, 1),
            c3=C(120, 40, 1, bias=False),
            n3=BN(40),
        ),
        [R(s, 40, 45, 46)],
    ),
    low=True,
)


def dense(self, x):
    for norm, conv in zip(self.norms, self.convs):
        x = torch.cat([x, conv(F.relu(norm(x)))], 1)
    return F.avg_pool2d(self.last(F.relu(self.norm(x))), 2)


whole(
    "dense_layers_and_transition",
    lambda s: (
        net(
            dense,
            norms=nn.ModuleList(BN(36 + 12 * i) for i in range(4)),
            convs=nn.ModuleList(C(36 + 12 * i, 12, 3, padding=1, bias=False) for i in range(4)),
            norm=BN(84),
            last=C(84, 42, 1, bias=False),
        ),
        [R(s, 36, 44, 50)],
    ),
)


def inception(self, x):
    return torch.cat(
        [
            F.relu(self.a(x)),
            F.relu(self.b2(F.relu(self.b1(x)))),
            F.relu(self.c3(self.c2(F.relu(self.c1(x))))),
            F.relu(self.d(F.avg_pool2d(x, 3, 1, 1))),
        ],
        1,
    )


whole(
    "inception_of_asymmetric",
    lambda s: (
        net(
            inception,
            a=C(80, 32, 1),
            b1=C(80, 24, 1),
            b2=C(24, 40, 3, padding=1),
            c1=C(80, 16, 1),
            c2=C(16, 24, (1, 7), padding=(0, 3)),
            c3=C(24, 24, (7, 1), padding=(3, 0)),
            d=C(80, 20, 1),
        ),
        [R(s, 80, 35, 37)],
    ),
)


def ghost(self, x):
    a = F.relu(self.n1(self.c1(x)))
    return torch.cat([a, F.relu(self.n2(self.c2(a)))], 1)[:, :77] + self.short(x)


whole(
    "ghost_module",
    lambda s: (
        net(
            ghost,
            c1=C(40, 39, 1, bias=False),
            n1=BN(39),
            c2=C(39, 39, 3, padding=1, groups=39, bias=False),
            n2=BN(39),
            short=C(40, 77, 1),
        ),
        [R(s, 40, 55, 53)],
    ),
)


def up_block(self, x, skip):
    x = F.interpolate(x, size=skip.shape[2:], mode="bilinear", align_corners=True)
    gate = torch.sigmoid(self.psi(F.relu(self.wx(skip) + self.wg(x))))
    y = F.relu(self.norm(self.conv(torch.cat([skip * gate, x], 1))))
    return self.conv2(y)


whole(
    "unet_up_with_attention_gate",
    lambda s: (
        net(
            up_block,
            psi=C(16, 1, 1),
            wx=C(32, 16, 1),
            wg=C(48, 16, 1),
            conv=C(80, 32, 3, padding=1),
            norm=nn.GroupNorm(8, 32),
            conv2=C(32, 32, 3, padding=1),
        ),
        [R(s, 48, 25, 27), R(s, 32, 50, 54)],
    ),
)


def film(self, x, c):
    g, b = self.c(F.silu(c)).chunk(2, 1)
    return F.relu(self.norm(self.conv(x)) * (1 + g[:, :, None, None]) + b[:, :, None, None]) + x


whole(
    "film_residual",
    lambda s: (
        net(film, conv=C(48, 48, 3, padding=1), norm=BN(48, affine=False), c=L(77, 96)),
        [R(s, 48, 50, 51), R(s, 77)],
    ),
)


def adaln(self, x, c):
    a1, b1, g1, a2, b2, g2 = self.ada(F.silu(c)).unsqueeze(1).chunk(6, -1)
    h = F.layer_norm(x, (288,)) * (1 + a1) + b1
    q, k, v = (heads(t, 6) for t in self.qkv(h).chunk(3, -1))
    x = x + g1 * self.out(joined(F.scaled_dot_product_attention(q, k, v)))
    return x + g2 * self.down(
        F.gelu(self.up(F.layer_norm(x, (288,)) * (1 + a2) + b2), approximate="tanh")
    )


whole(
    "adaln_zero_block",
    lambda s: (
        net(
            adaln,
            ada=L(288, 1728),
            qkv=L(288, 864),
            out=L(288, 288),
            up=L(288, 1152),
            down=L(1152, 288),
        ),
        [R(s, 144, 288), R(s, 288)],
    ),
    low=True,
)


def feed(act):
    def forward(self, x):
        a, b = self.up(self.norm(x)).chunk(2, -1)
        return x + F.dropout(self.down(act(a) * b), 0.0)

    return forward


whole(
    "geglu_residual",
    lambda s: (
        net(feed(F.gelu), norm=LN(333), up=L(333, 1776), down=L(888, 333)),
        [R(100 * s, 333)],
    ),
    low=True,
)
whole(
    "reglu_rms_residual",
    lambda s: (
        net(
            feed(F.relu),
            norm=nn.RMSNorm(400),
            up=L(400, 2000, bias=False),
            down=L(1000, 400, bias=False),
        ),
        [R(100 * s, 400)],
    ),
    low=True,
)
whole(
    "post_norm_feed_forward",
    lambda s: (
        net(
            lambda self, x: self.norm(x + F.dropout(self.down(F.silu(self.up(x))), 0.0)),
            norm=LN(500),
            up=L(500, 1500),
            down=L(1500, 500),
        ),
        [R(100 * s, 500)],
    ),
    low=True,
)


def highway(self, x):
    for layer in self.layers:
        gate, y = layer(x).chunk(2, -1)
        x = torch.sigmoid(gate) * torch.tanh(y) + (1 - torch.sigmoid(gate)) * x
    return x


whole(
    "highway",
    lambda s: (
        net(highway, layers=nn.ModuleList(L(300, 600) for _ in range(3))),
        [R(200 * s, 300)],
    ),
)


def top_two(self, x):
    p, which = self.gate(x).topk(2, -1)
    p = p.softmax(-1)
    w = torch.zeros(len(x), 6, dtype=x.dtype, device=x.device).scatter(1, which, p)
    h = F.silu(torch.einsum("nd,edh->neh", x, self.up))
    return torch.einsum("neh,ehd,ne->nd", h, self.down, w), (w > 0).to(x.dtype).mean(0)


whole(
    "experts_top_two_dense",
    lambda s: (
        net(
            top_two,
            gate=L(128, 6),
            up=weight(6, 128, 256, std=0.1),
            down=weight(6, 256, 128, std=0.1),
        ),
        [R(100 * s, 128)],
    ),
    low=True,
)


def product_keys(self, x):
    q1, q2 = self.q(x).chunk(2, -1)
    s1, i1 = (q1 @ self.k1.T).topk(8, -1)
    s2, i2 = (q2 @ self.k2.T).topk(8, -1)
    s, at = (s1[:, :, None] + s2[:, None]).flatten(1).topk(8, -1)
    index = (i1[:, :, None] * 64 + i2[:, None]).flatten(1).gather(1, at)
    return (self.values[index] * s.softmax(-1)[..., None]).sum(1)


whole(
    "product_key_memory",
    lambda s: (
        net(
            product_keys,
            q=L(200, 128),
            k1=weight(64, 64),
            k2=weight(64, 64),
            values=weight(4096, 100),
        ),
        [R(150 * s, 200)],
    ),
)


def residual_codes(self, x):
    rest, out, found = x, 0, []
    for book in self.books:
        at = torch.cdist(rest, book).argmin(1)
        out, rest = out + book[at], rest - book[at]
        found.append(at)
    return x + (out - x).detach(), torch.stack(found), rest.square().mean()


whole(
    "residual_codebooks",
    lambda s: (
        net(residual_codes, books=nn.ParameterList(weight(200, 60) for _ in range(3))),
        [R(300 * s, 60)],
    ),
)


def finite_codes(self, z):
    half = self.levels // 2
    y = torch.tanh(self.inside(z)) * half
    y = y + (y.round() - y).detach()
    return self.outside(y / half), ((y.detach() + half) * self.basis).sum(-1)


def finite(s):
    made = net(finite_codes, inside=L(120, 5), outside=L(5, 120))
    made.register_buffer("levels", torch.tensor([9.0, 7, 7, 5, 5]))
    made.register_buffer("basis", torch.tensor([1.0, 9, 63, 441, 2205]))
    return made, [R(1000 * s, 120)]


whole("finite_scalar_codes", finite)


def bags(self, ids, w, numbers):
    bag = (self.table[ids] * w[..., None]).sum(1)
    return self.out(F.relu(torch.cat([bag, self.numbers(numbers)], 1))).squeeze(1)


whole(
    "weighted_bag_and_numbers",
    lambda s: (
        net(bags, table=weight(5000, 60), numbers=L(13, 60), out=L(120, 1)),
        [integers(5000, 300 * s, 25), torch.rand(300 * s, 25), R(300 * s, 13)],
    ),
)


def factorisation(self, ids):
    e = self.table[ids + self.offset]
    pairs = 0.5 * (e.sum(1).square() - e.square().sum(1)).sum(1)
    return torch.sigmoid(
        self.linear[ids + self.offset].sum(1) + pairs + self.deep(e.flatten(1)).squeeze(1)
    )


def machine(s):
    made = net(
        factorisation,
        table=weight(20 * 500, 16, std=0.1),
        linear=weight(20 * 500),
        deep=nn.Sequential(L(320, 128), nn.ReLU(), L(128, 1)),
    )
    made.register_buffer("offset", torch.arange(20) * 500)
    return made, [integers(500, 250 * s, 20)]


whole("deep_factorisation_machine", machine)


def tower(self, u, i):
    a, b = F.normalize(self.u(u), dim=-1), F.normalize(self.i(i), dim=-1)
    return (a @ b.T / 0.05).topk(10, -1)


whole(
    "two_towers_top_ten",
    lambda s: (
        net(
            tower,
            u=nn.Sequential(L(100, 200), nn.ReLU(), L(200, 64)),
            i=nn.Sequential(L(77, 200), nn.ReLU(), L(200, 64)),
        ),
        [R(32 * s, 100), R(3000, 77)],
    ),
    trains=False,
)


def patch_embed(self, x):
    t = self.patch(x).flatten(2).mT
    t = torch.cat([self.cls.expand(len(x), -1, -1), t], 1) + self.place
    return self.head(self.norm(t)[:, 0] + self.norm(t)[:, 1:].mean(1))


whole(
    "patches_class_token_head",
    lambda s: (
        net(
            patch_embed,
            patch=C(3, 192, 14, 14),
            cls=weight(1, 1, 192),
            place=weight(1, 145, 192),
            norm=LN(192),
            head=L(192, 100),
        ),
        [R(s, 3, 168, 168)],
    ),
    low=True,
)


def maxvit_grid(self, x):
    b, c, h, w = x.shape
    g = x.view(b, c, 7, h // 7, 7, w // 7).permute(0, 3, 5, 2, 4, 1).reshape(-1, 49, c)
    q, k, v = self.qkv(self.norm(g)).chunk(3, -1)
    g = g + (q @ k.mT / math.sqrt(c)).softmax(-1) @ v
    return g.view(b, h // 7, w // 7, 7, 7, c).permute(0, 5, 3, 1, 4, 2).reshape(b, c, h, w)


whole(
    "grid_attention",
    lambda s: (net(maxvit_grid, norm=LN(64), qkv=L(64, 192)), [R(s, 64, 42, 49)]),
    low=True,
)


def involution(self, x):
    k = self.span(F.relu(self.norm(self.reduce(x)))).view(len(x), 4, 1, 9, *x.shape[2:])
    taken = F.unfold(x, 3, padding=1).view(len(x), 4, 12, 9, *x.shape[2:])
    return (k * taken).sum(3).flatten(1, 2)


whole(
    "involution",
    lambda s: (
        net(involution, reduce=C(48, 12, 1), norm=BN(12), span=C(12, 36, 1)),
        [R(s, 48, 40, 41)],
    ),
)


def atrous(self, x):
    parts = [F.relu(c(x)) for c in self.convs] + [
        self.pool(x.mean((2, 3), keepdim=True)).expand(-1, -1, *x.shape[2:])
    ]
    return self.out(torch.cat(parts, 1))


whole(
    "atrous_pyramid",
    lambda s: (
        net(
            atrous,
            convs=nn.ModuleList(
                [
                    C(64, 24, 1),
                    C(64, 24, 3, padding=3, dilation=3),
                    C(64, 24, 3, padding=6, dilation=6),
                ]
            ),
            pool=C(64, 24, 1),
            out=C(96, 40, 1),
        ),
        [R(s, 64, 40, 44)],
    ),
)


def discriminator(self, x):
    y = F.leaky_relu(self.n2(self.c2(F.leaky_relu(self.c1(x), 0.2))), 0.2)
    spread = y.std(0, unbiased=False).mean().expand(len(y), 1, *y.shape[2:])
    return self.c3(torch.cat([y, spread], 1)).mean((1, 2, 3))


whole(
    "patch_discriminator",
    lambda s: (
        net(
            discriminator,
            c1=C(3, 32, 4, 2, 1),
            c2=C(32, 64, 4, 2, 1),
            n2=nn.InstanceNorm2d(64),
            c3=C(65, 1, 4, padding=1),
        ),
        [R(s, 3, 96, 96)],
    ),
)


def modulated(self, x, style):
    w = self.weight * (1 + self.style(style))[:, None, :, None, None]
    w = w * torch.rsqrt(w.square().sum((2, 3, 4), keepdim=True) + 1e-8)
    b, _, h, wide = x.shape
    y = F.conv2d(x.reshape(1, -1, h, wide), w.flatten(0, 1), padding=1, groups=b).view(
        b, -1, h, wide
    )
    return F.leaky_relu(y + self.bias[:, None, None], 0.2) * math.sqrt(2)


whole(
    "modulated_conv",
    lambda s: (
        net(modulated, weight=weight(1, 48, 40, 3, 3, std=0.1), style=L(64, 40), bias=weight(48)),
        [R(s, 40, 40, 40), R(s, 64)],
    ),
)


def super_resolution(self, x):
    y = self.up(self.body2(F.relu(self.body1(x))) * 0.1 + x)
    return torch.clamp(F.pixel_shuffle(y, 3), 0, 1)


whole(
    "super_resolution_tail",
    lambda s: (
        net(
            super_resolution,
            body1=C(32, 32, 3, padding=1),
            body2=C(32, 32, 3, padding=1),
            up=C(32, 27, 3, padding=1),
        ),
        [R(s, 32, 50, 49)],
    ),
)
