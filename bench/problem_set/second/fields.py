"""Other fields: recurrences, graphs, images, signals, physics, integers, optimisers, returns,
probability, geometry, complex numbers as pairs."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from problem_set.second.kit import R, case, integers, net, weight

L, C, LN = nn.Linear, nn.Conv2d, nn.LayerNorm

# -- recurrences --
whole, plain = case("recurrences")


def lstm_by_hand(self, x):
    h = c = x.new_zeros(x.shape[0], 120)
    for t in range(x.shape[1]):
        i, f, g, o = (self.inside(x[:, t]) + self.back(h)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    return h, c


whole(
    "lstm_cell_of_six_steps",
    lambda s: (
        net(lstm_by_hand, inside=L(77, 480), back=L(120, 480, bias=False)),
        [R(64 * s, 6, 77)],
    ),
)


def gru_by_hand(self, x):
    h, seen = x.new_zeros(x.shape[0], 100), []
    for t in range(x.shape[1]):
        a, b = self.inside(x[:, t]).chunk(3, 1), self.back(h).chunk(3, 1)
        r, z = torch.sigmoid(a[0] + b[0]), torch.sigmoid(a[1] + b[1])
        h = (1 - z) * torch.tanh(a[2] + r * b[2]) + z * h
        seen.append(h)
    return self.out(torch.stack(seen, 1))


whole(
    "gru_cell_of_eight_steps",
    lambda s: (
        net(gru_by_hand, inside=L(60, 300), back=L(100, 300), out=L(100, 33)),
        [R(64 * s, 8, 60)],
    ),
)


def layer_norm_rnn(self, x):
    h = x.new_zeros(x.shape[1], 128)
    for step in x:
        h = torch.tanh(self.norm(self.inside(step) + self.back(h)))
    return h


whole(
    "rnn_with_layer_norm",
    lambda s: (
        net(layer_norm_rnn, norm=LN(128), inside=L(50, 128), back=L(128, 128)),
        [R(7, 100 * s, 50)],
    ),
)


def conv_lstm(self, x):
    h = c = x.new_zeros(x.shape[0], 24, *x.shape[3:])
    for t in range(x.shape[1]):
        i, f, o, g = self.conv(torch.cat([x[:, t], h], 1)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    return h


whole(
    "conv_lstm_of_four_steps",
    lambda s: (net(conv_lstm, conv=C(36, 96, 3, padding=1)), [R(s, 4, 12, 33, 35)]),
)


def diagonal_states(self, x):
    a = torch.exp(-F.softplus(self.rate))
    h, seen = x.new_zeros(x.shape[0], 333), []
    for t in range(x.shape[1]):
        h = a * h + (1 - a) * x[:, t]
        seen.append(h * self.read)
    return torch.stack(seen, 1)


whole(
    "exponential_moving_averages",
    lambda s: (net(diagonal_states, rate=weight(333), read=weight(333)), [R(16 * s, 24, 333)]),
)


def scan_by_logs(x, gate):
    """h_t = f_t h_(t-1) + (1 - f_t) x_t of positive numbers, by logarithms."""
    log_f, log_i = F.logsigmoid(gate), F.logsigmoid(-gate)
    at = log_f.cumsum(1)
    return torch.exp(at + torch.logcumsumexp(log_i + F.softplus(x).log() - at, 1))


plain("minimal_gru_by_logarithms", scan_by_logs, lambda s: [R(4 * s, 128, 250), R(4 * s, 128, 250)])


def long_kernel(self, x):
    n = x.shape[-1]
    at = torch.arange(n, device=x.device, dtype=x.dtype)
    kernel = (self.c[..., None] * torch.exp(-F.softplus(self.a)[..., None] * at)).sum(1)
    y = torch.fft.irfft(torch.fft.rfft(x, n=2 * n) * torch.fft.rfft(kernel, n=2 * n), n=2 * n)[
        ..., :n
    ]
    return F.gelu(y + self.d[:, None] * x)


whole(
    "long_convolution_of_states",
    lambda s: (
        net(long_kernel, a=weight(33, 16), c=weight(33, 16, std=0.2), d=weight(33)),
        [R(s, 33, 1000)],
    ),
)


def delta_rule(q, k, v, beta):
    k = F.normalize(k, dim=-1)
    state, seen = v.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1]), []
    for t in range(v.shape[2]):
        kt = k[:, :, t, :, None]
        old = (state * kt).sum(2)
        state = state + kt * (beta[:, :, t, None] * (v[:, :, t] - old))[:, :, None]
        seen.append((state * q[:, :, t, :, None]).sum(2))
    return torch.stack(seen, 2)


plain(
    "delta_rule_of_eight_steps",
    delta_rule,
    lambda s: [R(4 * s, 4, 8, 32), R(4 * s, 4, 8, 32), R(4 * s, 4, 8, 48), torch.rand(4 * s, 4, 8)],
)


def kalman(z):
    x, p, seen = torch.zeros_like(z[0]), torch.ones_like(z[0]), []
    for m in z:
        p = p + 0.01
        k = p / (p + 0.1)
        x = x + k * (m - x)
        p = (1 - k) * p
        seen.append(x)
    return torch.stack(seen)


plain("kalman_of_scalars", kalman, lambda s: [R(16, 20000 * s)])


def biquad(x):
    y1 = y2 = x1 = x2 = torch.zeros_like(x[:, 0])
    seen = []
    for t in range(x.shape[1]):
        y = 0.2 * x[:, t] + 0.4 * x1 + 0.2 * x2 + 0.3 * y1 - 0.1 * y2
        x1, x2, y1, y2 = x[:, t], x1, y, y1
        seen.append(y)
    return torch.stack(seen, 1)


plain("biquad_filter", biquad, lambda s: [R(10000 * s, 20)])

# -- graphs, points --
whole, plain = case("graphs")


def sage(self, x, edges):
    n = x.shape[0]
    total = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
    count = x.new_zeros(n).index_add(0, edges[1], torch.ones_like(edges[1], dtype=x.dtype))
    return F.normalize(self.own(x) + self.near(total / count.clamp(min=1)[:, None]), dim=-1)


whole(
    "graph_sage_mean",
    lambda s: (
        net(sage, own=L(64, 100), near=L(64, 100, bias=False)),
        [R(1000 * s, 64), integers(1000 * s, 2, 5000 * s)],
    ),
)


def maxima(self, x, edges):
    message = F.relu(self.message(torch.cat([x[edges[0]], x[edges[1]]], 1)))
    start = x.new_zeros(x.shape[0], 33)
    return start.scatter_reduce(0, edges[1][:, None].expand_as(message), message, "amax")


whole(
    "messages_of_pairs_maximum",
    lambda s: (net(maxima, message=L(66, 33)), [R(700 * s, 33), integers(700 * s, 2, 2500 * s)]),
)


def attention_on_edges(self, x, edges):
    h = self.linear(x).unflatten(1, (3, 20))
    e = F.leaky_relu((h * self.a).sum(-1)[edges[0]] + (h * self.b).sum(-1)[edges[1]], 0.2)
    e = (e - e.max()).exp()
    under = x.new_zeros(x.shape[0], 3).index_add(0, edges[1], e)
    return F.elu(
        x.new_zeros(x.shape[0], 3, 20)
        .index_add(0, edges[1], h[edges[0]] * (e / (under[edges[1]] + 1e-9))[..., None])
        .flatten(1)
    )


whole(
    "attention_on_edges",
    lambda s: (
        net(attention_on_edges, linear=L(50, 60), a=weight(3, 20), b=weight(3, 20)),
        [R(800 * s, 50), integers(800 * s, 2, 3000 * s)],
    ),
)


def isomorphism(self, x, edges, graph):
    y = self.mlp((1 + self.eps) * x + torch.zeros_like(x).index_add(0, edges[1], x[edges[0]]))
    return self.out(x.new_zeros(50, 64).index_add(0, graph, y))


whole(
    "graph_isomorphism_and_readout",
    lambda s: (
        net(
            isomorphism,
            mlp=nn.Sequential(L(48, 96), nn.ReLU(), L(96, 64)),
            eps=weight(1),
            out=L(64, 10),
        ),
        [R(900 * s, 48), integers(900 * s, 2, 3000 * s), integers(50, 900 * s)],
    ),
)


def equivariant(self, h, x):
    d = x[:, :, None] - x[:, None]
    r = d.square().sum(-1, keepdim=True)
    n = h.shape[1]
    pair = torch.cat([h[:, :, None].expand(-1, -1, n, -1), h[:, None].expand(-1, n, -1, -1), r], -1)
    m = F.silu(self.edge(pair))
    return self.node(torch.cat([h, m.sum(2)], -1)), x + (d * self.move(m)).mean(2)


whole(
    "equivariant_of_all_pairs",
    lambda s: (
        net(equivariant, edge=L(49, 32), move=L(32, 1), node=L(56, 24)),
        [R(2 * s, 40, 24), R(2 * s, 40, 3)],
    ),
)
plain(
    "chamfer_distance",
    lambda a, b: torch.cdist(a, b).amin(2).mean(1) + torch.cdist(a, b).amin(1).mean(1),
    lambda s: [R(s, 500, 3), R(s, 555, 3)],
)
plain(
    "nearest_neighbour_of_rows",
    lambda a, b: (a.square().sum(1, keepdim=True) - 2 * a @ b.T + b.square().sum(1)).min(1),
    lambda s: [R(125 * s, 77), R(3001, 77)],
    trains=False,
)
plain(
    "radial_basis",
    lambda x, c, w: torch.exp(-(x[:, None] - c).square().sum(-1) * 0.1) @ w,
    lambda s: [R(200 * s, 20), R(333, 20), R(333, 30)],
)

# -- images and signals --
whole, plain = case("images")


def sobel(x):
    k = torch.tensor([[1.0, 0, -1], [2, 0, -2], [1, 0, -1]], dtype=x.dtype, device=x.device)
    k = torch.stack([k, k.T])[:, None]
    g = F.conv2d(F.pad(x.mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate"), k)
    return g.square().sum(1).sqrt(), torch.atan2(g[:, 1], g[:, 0])


plain("sobel_edges", sobel, lambda s: [torch.rand(2 * s, 3, 250, 251)], trains=False)


def blur(x):
    at = torch.arange(-5, 6, dtype=x.dtype, device=x.device)
    k = torch.exp(-at.square() / 8)
    k = (k / k.sum()).expand(x.shape[1], 1, 11)
    y = F.conv2d(F.pad(x, (5, 5, 5, 5), mode="reflect"), k[:, :, None], groups=x.shape[1])
    return x + 0.7 * (x - F.conv2d(y, k[..., None], groups=x.shape[1]))


plain("gaussian_unsharp", blur, lambda s: [torch.rand(2 * s, 3, 200, 222)])


def warp(x, theta):
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False, padding_mode="border")


plain(
    "affine_warp", warp, lambda s: [torch.rand(s, 8, 111, 120), torch.eye(2, 3) + 0.1 * R(s, 2, 3)]
)


def by_hand(x, flow):
    b, c, h, w = x.shape
    ys = torch.arange(h, device=x.device, dtype=x.dtype)[:, None] + flow[:, 0]
    xs = torch.arange(w, device=x.device, dtype=x.dtype) + flow[:, 1]
    y0, x0 = ys.floor().clamp(0, h - 2), xs.floor().clamp(0, w - 2)
    fy, fx = (ys - y0).clamp(0, 1)[:, None], (xs - x0).clamp(0, 1)[:, None]
    at, flat = (y0.long() * w + x0.long()).view(b, 1, -1).expand(-1, c, -1), x.flatten(2)
    a, bb, cc, d = (flat.gather(2, at + o).view_as(x) for o in (0, 1, w, w + 1))
    return (a * (1 - fx) + bb * fx) * (1 - fy) + (cc * (1 - fx) + d * fx) * fy


plain("flow_warp_by_gather", by_hand, lambda s: [torch.rand(s, 6, 90, 101), 3 * R(s, 2, 90, 101)])


def to_hsv(x):
    r, g, b = x.unbind(1)
    top, low = x.amax(1), x.amin(1)
    d = top - low + 1e-8
    h = (
        torch.where(
            top == r, (g - b) / d % 6, torch.where(top == g, (b - r) / d + 2, (r - g) / d + 4)
        )
        / 6
    )
    return torch.stack([h, d / (top + 1e-8), top], 1)


plain("colour_to_hsv", to_hsv, lambda s: [torch.rand(2 * s, 3, 250, 333)], trains=False)
plain(
    "colour_to_linear_and_xyz",
    lambda x, m: torch.einsum(
        "oc,bchw->bohw",
        m,
        torch.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055).clamp(min=1e-6) ** 2.4),
    ),
    lambda s: [torch.rand(2 * s, 3, 222, 333), torch.rand(3, 3)],
)
plain(
    "normalise_and_flip_channels_last",
    lambda x, m, d: (
        (x.flip(2).permute(0, 3, 1, 2) / 255 - m[:, None, None]) / d[:, None, None]
    ).contiguous(),
    lambda s: [255 * torch.rand(2 * s, 222, 224, 3), torch.rand(3), torch.rand(3) + 0.5],
)


def bilateral(x):
    p = F.pad(x, (2, 2, 2, 2), mode="reflect")
    h, w = x.shape[2:]
    top = under = 0.0
    for i in range(5):
        for j in range(5):
            y = p[:, :, i : i + h, j : j + w]
            k = torch.exp(-((y - x) ** 2) / 0.08 - ((i - 2) ** 2 + (j - 2) ** 2) / 4.5)
            top, under = top + k * y, under + k
    return top / under


plain("bilateral_filter", bilateral, lambda s: [torch.rand(4 * s, 1, 250, 250)], scale=4)
plain(
    "opening_and_closing",
    lambda x: F.max_pool2d(-F.max_pool2d(-x, 5, 1, 2), 5, 1, 2) - x,
    lambda s: [torch.rand(2 * s, 3, 200, 211)],
)
plain(
    "local_contrast",
    lambda x: (
        (x - F.avg_pool2d(x, 9, 1, 4))
        / (F.avg_pool2d(x * x, 9, 1, 4) - F.avg_pool2d(x, 9, 1, 4) ** 2).clamp(min=1e-4).sqrt()
    ),
    lambda s: [torch.rand(2 * s, 3, 199, 200)],
)


def mel(x, w, bank):
    frames = x.unfold(1, 400, 160) * w
    power = torch.fft.rfft(frames, n=512).abs().square()
    y = (power @ bank).clamp(min=1e-6).log10()
    return (y - y.mean(1, keepdim=True)) / (y.std(1, keepdim=True) + 1e-5)


plain("mel_spectrogram", mel, lambda s: [R(s, 16000), torch.hann_window(400), torch.rand(257, 80)])
plain(
    "cosine_transform_blocks",
    lambda x, d: (d @ x.unfold(1, 8, 8).unfold(2, 8, 8) @ d.T).mul(4).round().div(4),
    lambda s: [R(4 * s, 200, 208), R(8, 8)],
    trains=False,
)
plain(
    "haar_wavelet",
    lambda x: (
        torch.cat(
            [
                x[..., ::2, ::2] + x[..., 1::2, ::2] + x[..., ::2, 1::2] + x[..., 1::2, 1::2],
                x[..., ::2, ::2] + x[..., 1::2, ::2] - x[..., ::2, 1::2] - x[..., 1::2, 1::2],
                x[..., ::2, ::2] - x[..., 1::2, ::2] + x[..., ::2, 1::2] - x[..., 1::2, 1::2],
                x[..., ::2, ::2] - x[..., 1::2, ::2] - x[..., ::2, 1::2] + x[..., 1::2, 1::2],
            ],
            1,
        )
        / 2
    ),
    lambda s: [R(2 * s, 5, 150, 154)],
)
plain(
    "preemphasis_and_mu_law",
    lambda x: (
        (x - 0.97 * F.pad(x, (1, 0))[:, :-1]).clamp(-1, 1),
        torch.sign(x) * torch.log1p(255 * x.abs().clamp(max=1)) / math.log(256),
    ),
    lambda s: [R(s, 33333)],
)

# -- physics, integers, optimisers, returns --
whole, plain = case("formulas")


def heat(u):
    for _ in range(4):
        p = F.pad(u, (1, 1, 1, 1), mode="circular")
        u = u + 0.1 * (
            p[:, :, 2:, 1:-1] + p[:, :, :-2, 1:-1] + p[:, :, 1:-1, 2:] + p[:, :, 1:-1, :-2] - 4 * u
        )
    return u


plain("heat_of_four_steps", heat, lambda s: [R(4 * s, 1, 200, 222)])


def reaction(u, v):
    lap = lambda t: t.roll(1, 1) + t.roll(-1, 1) + t.roll(1, 2) + t.roll(-1, 2) - 4 * t  # noqa: E731
    for _ in range(2):
        uvv = u * v * v
        u, v = u + 0.16 * lap(u) - uvv + 0.035 * (1 - u), v + 0.08 * lap(v) + uvv - 0.1 * v
    return u, v


plain("gray_scott", reaction, lambda s: [torch.rand(4 * s, 222, 200), torch.rand(4 * s, 222, 200)])


def wave3d(u, old):
    c = u[:, 1:-1, 1:-1, 1:-1]
    lap = (
        u[:, 2:, 1:-1, 1:-1]
        + u[:, :-2, 1:-1, 1:-1]
        + u[:, 1:-1, 2:, 1:-1]
        + u[:, 1:-1, :-2, 1:-1]
        + u[:, 1:-1, 1:-1, 2:]
        + u[:, 1:-1, 1:-1, :-2]
        - 6 * c
    )
    return F.pad(2 * c - old[:, 1:-1, 1:-1, 1:-1] + 0.1 * lap, (1, 1, 1, 1, 1, 1))


plain("wave_of_volumes", wave3d, lambda s: [R(s, 40, 60, 70), R(s, 40, 60, 70)])


def gravity(x, m):
    d = x[:, None] - x[:, :, None]
    r = (d.square().sum(-1) + 0.01).rsqrt()
    return (d * (m[:, None] * r.pow(3))[..., None]).sum(2)


plain("gravity_of_bodies", gravity, lambda s: [R(s, 300, 3), torch.rand(s, 300)])
plain(
    "lennard_jones",
    lambda d, m: torch.where((d < 2.5) & m, 4 * (d.pow(-12) - d.pow(-6)), 0.0).sum(-1) * 0.5,
    lambda s: [torch.rand(4 * s, 222, 222) * 3 + 0.8, torch.rand(4 * s, 222, 222) > 0.1],
)
plain(
    "adam_by_hand",
    lambda p, g, m, v: (
        lambda m, v: (p * (1 - 1e-4) - 1e-3 * (m / 0.1) / ((v / 0.001).sqrt() + 1e-8), m, v)
    )(0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g),
    lambda s: [R(150000 * s), R(150000 * s), R(150000 * s), torch.rand(150000 * s)],
    trains=False,
)
plain(
    "lion_by_hand",
    lambda p, g, m: (p - 1e-3 * (torch.sign(0.9 * m + 0.1 * g) + 0.01 * p), 0.99 * m + 0.01 * g),
    lambda s: [R(333 * s, 700), R(333 * s, 700), R(333 * s, 700)],
    trains=False,
)


def lamb(p, g, m):
    m = 0.9 * m + 0.1 * g * (1.0 / torch.clamp(g.norm(), min=1.0))
    u = m / (m.abs() + 1e-6) + 0.01 * p
    return p - 0.01 * (p.norm() / (u.norm() + 1e-6)) * u, m


plain(
    "clipped_update_with_trust_ratio",
    lamb,
    lambda s: [R(333 * s, 700), R(333 * s, 700), R(333 * s, 700)],
    trains=False,
)


def muon(g):
    x = g / (g.norm() + 1e-7)
    for _ in range(3):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x


plain("newton_schulz_of_three", muon, lambda s: [R(40 * s, 77 * s)], trains=False)
plain(
    "adafactor_rows_and_columns",
    lambda g, r, c: (lambda r, c: (g * (r / r.mean()).rsqrt()[:, None] * c.rsqrt(), r, c))(
        0.9 * r + 0.1 * g.square().mean(1), 0.9 * c + 0.1 * g.square().mean(0)
    ),
    lambda s: [R(200 * s, 1500), torch.rand(200 * s) + 0.1, torch.rand(1500) + 0.1],
    trains=False,
)
plain(
    "int8_rows_product",
    lambda x, w, ws: (
        ((x / (x.abs().amax(1, keepdim=True) / 127)).round().clamp(-127, 127) @ w.to(x.dtype).T)
        * (x.abs().amax(1, keepdim=True) / 127)
        * ws
    ),
    lambda s: [
        R(64 * s, 1000),
        torch.randint(-127, 128, (1111, 1000), dtype=torch.int8),
        0.01 * torch.rand(1111),
    ],
    trains=False,
)


def nibbles(x, packed, scales, zeros):
    w = torch.stack([packed & 15, packed >> 4], -1).flatten(1).to(x.dtype).unflatten(1, (-1, 64))
    return x @ ((w - zeros[..., None]) * scales[..., None]).flatten(1).T


plain(
    "int4_groups_product",
    nibbles,
    lambda s: [
        R(8 * s, 1024),
        torch.randint(0, 256, (1500, 512), dtype=torch.uint8),
        0.02 * torch.rand(1500, 16),
        8 * torch.ones(1500, 16),
    ],
    trains=False,
    low=True,
)
plain(
    "fake_quantised_channels",
    lambda x: (
        (x / (x.abs().amax((0, 2, 3), keepdim=True) / 7)).round().clamp(-8, 7)
        * (x.abs().amax((0, 2, 3), keepdim=True) / 7)
    ),
    lambda s: [R(s, 77, 55, 57)],
    trains=False,
)


def gae(r, v, done):
    a, seen = torch.zeros_like(r[0]), []
    for t in reversed(range(len(r))):
        keep = 1 - done[t]
        a = r[t] + 0.99 * v[t + 1] * keep - v[t] + 0.99 * 0.95 * keep * a
        seen.append(a)
    a = torch.stack(seen[::-1])
    return (a - a.mean()) / (a.std() + 1e-8), a + v[:-1]


plain(
    "advantages_of_sixteen_steps",
    gae,
    lambda s: [R(16, 5000 * s), R(17, 5000 * s), (torch.rand(16, 5000 * s) > 0.9).float()],
)
plain(
    "discounted_returns_by_triangle",
    lambda r: torch.einsum(
        "ts,bs->bt",
        (
            0.97
            ** (torch.arange(333, device=r.device) - torch.arange(333, device=r.device)[:, None])
            .clamp(min=0)
            .to(r.dtype)
        ).triu(),
        r,
    ),
    lambda s: [R(300 * s, 333)],
)
plain(
    "soft_q_target",
    lambda r, q1, q2, logp, d: (
        r + 0.99 * (1 - d) * (logp.exp() * (torch.minimum(q1, q2) - 0.2 * logp)).sum(1)
    ),
    lambda s: [
        R(4000 * s),
        R(4000 * s, 18),
        R(4000 * s, 18),
        R(4000 * s, 18).log_softmax(1),
        integers(2, 4000 * s).float(),
    ],
)

# -- probability, geometry, complex pairs --
whole, plain = case("geometry")


def gaussians(x, m, log_s, w):
    d = (x[:, None] - m) * torch.exp(-log_s)
    logp = -0.5 * d.square().sum(-1) - log_s.sum(-1) - 0.5 * x.shape[1] * math.log(2 * math.pi)
    return torch.logsumexp(logp + w.log_softmax(0), 1).mean(), (logp + w.log_softmax(0)).softmax(1)


plain(
    "mixture_of_gaussians", gaussians, lambda s: [R(600 * s, 30), R(40, 30), 0.1 * R(40, 30), R(40)]
)


def elbo(self, x, noise):
    mu, logv = self.encode(x).chunk(2, 1)
    y = self.decode(mu + noise * torch.exp(0.5 * logv))
    kl = -0.5 * (1 + logv - mu.square() - logv.exp()).sum(1)
    return (F.binary_cross_entropy_with_logits(y, x, reduction="none").sum(1) + kl).mean()


whole(
    "evidence_of_autoencoder",
    lambda s: (
        net(
            elbo,
            encode=nn.Sequential(L(784, 256), nn.ReLU(), L(256, 40)),
            decode=nn.Sequential(L(20, 256), nn.ReLU(), L(256, 784)),
        ),
        [torch.rand(64 * s, 784), R(64 * s, 20)],
    ),
)
plain(
    "student_and_laplace",
    lambda x, m, l: (
        (
            math.lgamma(2.5)
            - math.lgamma(2.0)
            - l
            - 2.5 * torch.log1p(((x - m) * torch.exp(-l)).square() / 4)
        ).sum(1)
        - ((x - m).abs() * torch.exp(-l)).sum(1)
    ),
    lambda s: [R(200 * s, 700), R(200 * s, 700), 0.1 * R(200 * s, 700)],
)
plain(
    "black_scholes",
    lambda p, k, t, v: (
        lambda d: (
            0.5 * p * (1 + torch.erf(d / 1.41421356))
            - 0.5 * k * torch.exp(-0.03 * t) * (1 + torch.erf((d - v * t.sqrt()) / 1.41421356))
        )
    )((torch.log(p / k) + (0.03 + 0.5 * v * v) * t) / (v * t.sqrt())),
    lambda s: [
        torch.rand(100000 * s) + 0.5,
        torch.rand(100000 * s) + 0.5,
        torch.rand(100000 * s) + 0.1,
        torch.rand(100000 * s) * 0.3 + 0.1,
    ],
)


def quaternions(a, b, x):
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    u, v = a[:, 1:], b[:, 1:]
    w = a[:, :1] * b[:, :1] - (u * v).sum(1, keepdim=True)
    c = a[:, :1] * v + b[:, :1] * u + torch.linalg.cross(u, v)
    t = 2 * torch.linalg.cross(c, x)
    return x + w * t + torch.linalg.cross(c, t)


plain(
    "quaternions_turn_points",
    quaternions,
    lambda s: [R(25000 * s, 4), R(25000 * s, 4), R(25000 * s, 3)],
)


def rodrigues(r, x):
    angle = r.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    k = r / angle
    zero = torch.zeros_like(k[:, 0])
    m = torch.stack(
        [zero, -k[:, 2], k[:, 1], k[:, 2], zero, -k[:, 0], -k[:, 1], k[:, 0], zero], 1
    ).view(-1, 3, 3)
    a = angle[..., None]
    eye = torch.eye(3, dtype=r.dtype, device=r.device)
    return torch.bmm(x, (eye + a.sin() * m + (1 - a.cos()) * (m @ m)).mT)


plain("rotation_matrices_of_vectors", rodrigues, lambda s: [R(1000 * s, 3), R(1000 * s, 60, 3)])


def spheres(o, d, c, r):
    d = F.normalize(d, dim=-1)
    oc = o[:, None] - c
    b = (oc * d[:, None]).sum(-1)
    h = b.square() - oc.square().sum(-1) + r.square()
    t = torch.where(h > 0, -b - h.clamp(min=1e-9).sqrt(), float("inf"))
    near, which = t.masked_fill(t < 0, float("inf")).min(1)
    return near.clamp(max=1e3), which


plain(
    "rays_meet_spheres",
    spheres,
    lambda s: [R(2000 * s, 3), R(2000 * s, 3), 4 * R(50, 3), torch.rand(50)],
    trains=False,
)


def render(sigma, rgb, t):
    gaps = F.pad(t.diff(dim=1), (0, 1), value=0.1)
    alpha = 1 - torch.exp(-F.softplus(sigma) * gaps)
    keep = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[
        :, :-1
    ]
    w = alpha * keep
    return (w[..., None] * rgb.sigmoid()).sum(1), (w * t).sum(1), w.sum(1)


plain(
    "volume_rendering",
    render,
    lambda s: [R(1500 * s, 96), R(1500 * s, 96, 3), torch.rand(1500 * s, 96).cumsum(1) * 0.1],
)


def camera(p, pose, k):
    c = p @ pose[:, :3, :3].mT + pose[:, None, :3, 3]
    uv = (c / c[..., 2:].abs().clamp(min=0.1)) @ k.T
    return uv[..., :2], ((uv[..., :2].abs() < 300).all(-1) & (c[..., 2] > 0)).float().mean(1)


plain(
    "points_to_camera",
    camera,
    lambda s: [
        R(s, 20000, 3),
        R(s, 4, 4),
        torch.tensor([[200.0, 0, 100], [0, 200, 100], [0, 0, 1]]),
    ],
)
plain(
    "complex_product_of_pairs",
    lambda a, b, c, d: (a @ c - b @ d, a @ d + b @ c),
    lambda s: [R(50 * s, 700), R(50 * s, 700), R(700, 800), R(700, 800)],
)


def modulate(re, im, phase):
    c, s = phase.cos(), phase.sin()
    a, b = re * c - im * s, re * s + im * c
    size = torch.sqrt(a * a + b * b + 1e-9)
    keep = F.relu(size - 0.2) / size
    return torch.stack([a * keep, b * keep], -1)


plain("complex_pairs_shrunk", modulate, lambda s: [R(200 * s, 555), R(200 * s, 555), R(555)])


def filter_of_spectrum(self, x):
    f = torch.view_as_real(torch.fft.rfft2(x, norm="ortho"))
    a, b = f.unbind(-1)
    y = torch.stack([a * self.re - b * self.im, a * self.im + b * self.re], -1)
    return x + torch.fft.irfft2(torch.view_as_complex(y), s=x.shape[-2:], norm="ortho")


whole(
    "global_filter_of_spectrum",
    lambda s: (
        net(filter_of_spectrum, re=weight(24, 48, 25), im=weight(24, 48, 25)),
        [R(s, 24, 48, 48)],
    ),
)
plain(
    "haversine_of_pairs",
    lambda a, b: (
        2
        * torch.asin(
            (
                torch.sin((a[:, None, 0] - b[:, 0]) / 2).square()
                + a[:, None, 0].cos()
                * b[:, 0].cos()
                * torch.sin((a[:, None, 1] - b[:, 1]) / 2).square()
            )
            .clamp(1e-7, 1)
            .sqrt()
        )
    ),
    lambda s: [R(150 * s, 2), R(1000, 2)],
)
plain(
    "poincare_distance",
    lambda a, b: torch.acosh(
        1
        + 1e-5
        + 2 * (a - b).square().sum(-1) / ((1 - a.square().sum(-1)) * (1 - b.square().sum(-1)))
    ),
    lambda s: [0.3 * F.normalize(R(2000 * s, 100)), 0.5 * F.normalize(R(2000 * s, 100))],
)
plain(
    "cosine_top_k",
    lambda q, d: (F.normalize(q) @ F.normalize(d).T).topk(7, 1),
    lambda s: [R(20 * s, 200), R(5000, 200)],
    trains=False,
)
plain(
    "intersection_of_box_pairs",
    lambda a, b: (lambda i: i / (a[:, None, 2:].prod(-1) + b[:, 2:].prod(-1) - i))(
        (
            torch.minimum(a[:, None, :2] + a[:, None, 2:], b[:, :2] + b[:, 2:])
            - torch.maximum(a[:, None, :2], b[:, :2])
        )
        .clamp(min=0)
        .prod(-1)
    ),
    lambda s: [torch.rand(100 * s, 4), torch.rand(1000, 4)],
)
