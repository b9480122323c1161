import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.zeros(d)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1 + self.scale)


class BlockDiagonalLinear(nn.Module):
    def __init__(self, d, n_blocks):
        super().__init__()
        self.n, w = n_blocks, d // n_blocks
        self.w = nn.Parameter(torch.randn(n_blocks, w, w) / w ** 0.5)
        self.b = nn.Parameter(torch.zeros(n_blocks, w))

    def forward(self, x):
        return (torch.einsum("...hi,hij->...hj", x.unflatten(-1, (self.n, -1)), self.w) + self.b).flatten(-2)


def scan_doubling(a, x):
    s = 1
    while s < x.shape[1]:
        x = torch.cat([x[:, :s], x[:, s:] + a[:, s:] * x[:, :-s]], dim=1)
        a = torch.cat([a[:, :s], a[:, s:] * a[:, :-s]], dim=1)
        s *= 2
    return x


class RGLRU(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.gate_x, self.gate_a = BlockDiagonalLinear(d, heads), BlockDiagonalLinear(d, heads)
        self.a_param = nn.Parameter(torch.empty(d).uniform_(0.81, 0.998).pow(-0.5).sub(1.0).log())

    def forward(self, x, reset):
        log_a = -8.0 * torch.sigmoid(self.gate_a(x)) * F.softplus(self.a_param)
        mult = torch.where(reset, 1.0, torch.sqrt((1 - torch.exp(2 * log_a)).clamp(min=1e-6)))
        return scan_doubling(torch.exp(log_a) * ~reset, x * torch.sigmoid(self.gate_x(x)) * mult)


class RecurrentBlock(nn.Module):
    def __init__(self, d, d_rnn, heads, k=4):
        super().__init__()
        self.lin_x, self.lin_y, self.out = [nn.Linear(a, b) for a, b in ((d, d_rnn), (d, d_rnn), (d_rnn, d))]
        self.w, self.b = nn.Parameter(torch.randn(k, d_rnn) * 0.1), nn.Parameter(torch.zeros(d_rnn))
        self.k, self.lru = k, RGLRU(d_rnn, heads)

    def forward(self, x, pos):
        y, x = F.gelu(self.lin_y(x), approximate="tanh"), self.lin_x(x)
        acc = self.b + x * self.w[-1]
        for s in range(1, self.k):
            acc = acc + F.pad(x[:, :-s], (0, 0, s, 0)) * (pos >= s).unsqueeze(-1) * self.w[self.k - 1 - s]
        return self.out(self.lru(acc, (pos == 0).unsqueeze(-1)) * y)


class LocalMQA(nn.Module):
    def __init__(self, d, heads, window):
        super().__init__()
        self.h, self.dh, self.window = heads, d // heads, window
        self.q, self.kv = nn.Linear(d, d, bias=False), nn.Linear(d, 2 * d // heads, bias=False)
        self.out = nn.Linear(d, d)

    def rope(self, x, pos):
        x, keep = x.chunk(2, dim=-1)
        half = self.dh // 2
        ang = pos[..., None, None] * 10000 ** (-torch.arange(half // 2, device=x.device).float() * 2 / half)
        sin, cos = ang.sin().to(x.dtype), ang.cos().to(x.dtype)
        a, b = x[..., :half // 2], x[..., half // 2:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, keep], dim=-1)

    def forward(self, x, pos):
        b, t, _ = x.shape
        k, v = self.kv(x).chunk(2, dim=-1)
        q, k = self.rope(self.q(x).view(b, t, -1, self.dh), pos), self.rope(k.unsqueeze(2), pos)[:, :, 0]
        i, seg = torch.arange(t, device=x.device), torch.cumsum(pos == 0, dim=1)
        gap = i[:, None] - i[None]
        ok = (gap >= 0) & (gap < self.window) & (seg[:, :, None] == seg[:, None, :])
        a = torch.einsum("bthd,bsd->bhts", q, k) * self.dh ** -0.5
        a = torch.softmax(torch.where(ok.unsqueeze(1), a, torch.finfo(a.dtype).min), dim=-1)
        return self.out(torch.einsum("bhts,bsd->bthd", a, v).reshape(b, t, -1))


class Model(nn.Module):
    """Griffin / RecurrentGemma LM: RG-LRU and local MQA blocks, packed segments, soft-capped tied head."""

    def __init__(self, vocab, d, heads, window, pattern):
        super().__init__()
        self.d, self.emb = d, nn.Parameter(torch.randn(vocab, d) * d ** -0.5)
        make = lambda p: RecurrentBlock(d, d, heads) if p == "r" else LocalMQA(d, heads, window)
        self.mix = nn.ModuleList([make(p) for p in pattern])
        self.n1, self.n2 = [nn.ModuleList([RMSNorm(d) for _ in pattern]) for _ in range(2)]
        self.up = nn.ParameterList([torch.randn(2, d, 3 * d) * d ** -0.5 for _ in pattern])
        self.down = nn.ModuleList([nn.Linear(3 * d, d) for _ in pattern])
        self.norm = RMSNorm(d)

    def forward(self, tokens, pos):
        x = F.embedding(tokens[:, :-1], self.emb) * self.d ** 0.5
        for n1, mix, n2, up, down in zip(self.n1, self.mix, self.n2, self.up, self.down):
            x = x + mix(n1(x), pos)
            g, u = torch.einsum("btd,cdf->cbtf", n2(x), up)
            x = x + down(F.gelu(g, approximate="tanh") * u)
        logits = torch.tanh(self.norm(x) @ self.emb.t() / 30.0) * 30.0
        loss = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
        w = (pos > 0).to(loss.dtype)
        return (loss * w).sum() / w.sum(), logits


def get_inputs():
    i, cut = torch.arange(197).unsqueeze(0), torch.randint(20, 180, (3, 1))
    return [torch.randint(0, 3001, (3, 198)), torch.where(i < cut, i, i - cut)]


def get_init_inputs():
    return [3001, 320, 8, 48, "rrarra"]
