import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class ResampleNorm(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.resample = nn.Linear(d_in, d_out) if d_in != d_out else None
        self.mask = nn.Parameter(torch.zeros(d_out))
        self.norm = nn.LayerNorm(d_out)

    def forward(self, x):
        x = x if self.resample is None else self.resample(x)
        return self.norm(x * torch.sigmoid(self.mask) * 2.0)


class GateAddNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.fc = nn.Linear(d, 2 * d)
        self.norm = nn.LayerNorm(d)

    def forward(self, x, skip):
        return self.norm(F.glu(self.fc(x), dim=-1) + skip)


class GRN(nn.Module):
    def __init__(self, d_in, d, d_out, d_ctx=None):
        super().__init__()
        self.res = ResampleNorm(d_in, d_out) if d_in != d_out else None
        self.fc1, self.fc2 = nn.Linear(d_in, d), nn.Linear(d, d_out)
        self.ctx = nn.Linear(d_ctx, d, bias=False) if d_ctx else None
        self.gan = GateAddNorm(d_out)

    def forward(self, x, c=None):
        skip = x if self.res is None else self.res(x)
        h = self.fc1(x)
        if c is not None:
            c = self.ctx(c)
            h = h + (c.unsqueeze(1) if h.dim() == 3 else c)
        return self.gan(self.fc2(F.elu(h)), skip)


class VSN(nn.Module):
    def __init__(self, n, d, d_ctx=None):
        super().__init__()
        self.flat = GRN(n * d, min(d, n * d), n, d_ctx)
        self.single = nn.ModuleList([GRN(d, d // 2, d) for _ in range(n)])

    def forward(self, xs, c=None):
        w = torch.softmax(self.flat(torch.cat(xs, dim=-1), c), dim=-1).unsqueeze(-2)
        v = torch.stack([g(x) for g, x in zip(self.single, xs)], dim=-1)
        return (v * w).sum(-1), w


class InterpretableAttention(nn.Module):
    def __init__(self, d, n_head):
        super().__init__()
        self.dh = d // n_head
        self.q, self.k = [nn.ModuleList([nn.Linear(d, self.dh) for _ in range(n_head)]) for _ in range(2)]
        self.v, self.out = nn.Linear(d, self.dh), nn.Linear(self.dh, d, bias=False)

    def forward(self, q, kv, mask):
        vs, heads, attns = self.v(kv), [], []
        for fq, fk in zip(self.q, self.k):
            a = torch.bmm(fq(q), fk(kv).permute(0, 2, 1)) / math.sqrt(self.dh)
            a = torch.softmax(a.masked_fill(mask, -1e9), dim=2)
            heads.append(torch.bmm(a, vs))
            attns.append(a)
        return self.out(torch.stack(heads, dim=2).mean(2)), torch.stack(attns, dim=2)


class Model(nn.Module):
    """Temporal Fusion Transformer with variable selection, static enrichment and quantile loss."""

    def __init__(self, cards, n_past, n_fut, d, n_head):
        super().__init__()
        self.emb = nn.ModuleList([nn.Embedding(c, d) for c in cards])
        lift = lambda n: nn.ModuleList([nn.Linear(1, d) for _ in range(n)])
        self.past_in, self.fut_in = lift(n_past), lift(n_fut)
        self.vs_static = VSN(len(cards), d)
        self.vs_past, self.vs_fut = VSN(n_past + n_fut, d, d), VSN(n_fut, d, d)
        self.ctx = nn.ModuleList([GRN(d, d, d) for _ in range(4)])
        self.enc, self.dec = nn.LSTM(d, d, batch_first=True), nn.LSTM(d, d, batch_first=True)
        self.gate_lstm, self.gate_attn, self.gate_out = GateAddNorm(d), GateAddNorm(d), GateAddNorm(d)
        self.enrich, self.ff = GRN(d, d, d, d), GRN(d, d, d)
        self.attn = InterpretableAttention(d, n_head)
        self.head = nn.Linear(d, 3)
        self.register_buffer("q", torch.tensor([0.1, 0.5, 0.9]))

    def forward(self, cat, past, future, y):
        T = past.shape[1]
        static, w_s = self.vs_static([e(cat[:, i]) for i, e in enumerate(self.emb)])
        c_sel, c_h, c_c, c_enr = [g(static) for g in self.ctx]
        known = [f(future[..., i:i + 1]) for i, f in enumerate(self.fut_in)]
        hist = [f(past[..., i:i + 1]) for i, f in enumerate(self.past_in)] + [k[:, :T] for k in known]
        x_past, _ = self.vs_past(hist, c_sel)
        x_fut, w_f = self.vs_fut([k[:, T:] for k in known], c_sel)
        h_past, state = self.enc(x_past, (c_h.unsqueeze(0), c_c.unsqueeze(0)))
        h_fut, _ = self.dec(x_fut, state)
        h = self.gate_lstm(torch.cat([h_past, h_fut], 1), torch.cat([x_past, x_fut], 1))
        e = self.enrich(h, c_enr)
        pos = torch.arange(h.shape[1], device=h.device)
        a, attn = self.attn(e[:, T:], e, pos[None, :] > pos[T:, None])
        z = self.gate_out(self.ff(self.gate_attn(a, e[:, T:])), h[:, T:])
        pred = self.head(z)
        err = y.unsqueeze(-1) - pred
        loss = torch.maximum((self.q - 1) * err, self.q * err).mul(2).mean()
        return loss, pred, attn.mean(2), w_s.squeeze(-2), w_f.squeeze(-2)


def get_inputs():
    return [torch.randint(0, 9, (11, 3)), torch.randn(11, 53, 5), torch.randn(11, 72, 3), torch.randn(11, 19)]


def get_init_inputs():
    return [[9, 31, 12], 5, 3, 160, 4]
