import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def l2norm(x):
    return x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()


class NeuralMemory(nn.Module):
    """Two-layer per-head memory MLP, trained inside forward by hand-written momentum gradient steps."""

    def __init__(self, d, heads, hidden):
        super().__init__()
        self.h, self.dh = heads, d // heads
        self.to_q, self.to_k, self.to_v = [nn.Linear(d, d, bias=False) for _ in range(3)]
        self.conv = nn.ModuleList([nn.Conv1d(d, d, 4, padding=3, groups=d) for _ in range(3)])
        self.to_gates = nn.Linear(d, heads)
        self.to_seg = nn.Linear(d, 2 * heads)
        self.w1 = nn.Parameter(torch.randn(heads, self.dh, hidden) / math.sqrt(self.dh))
        self.w2 = nn.Parameter(torch.randn(heads, hidden, self.dh) / math.sqrt(hidden))
        self.gamma = nn.Parameter(torch.ones(heads, 1, self.dh))
        self.out = nn.Linear(d, d, bias=False)
        nn.init.constant_(self.to_gates.bias, -3.0)
        with torch.no_grad():
            self.to_seg.bias.copy_(torch.cat([torch.full((heads,), 1.0), torch.full((heads,), -4.0)]))

    def init_state(self, b):
        w = [self.w1.unsqueeze(0).expand(b, -1, -1, -1), self.w2.unsqueeze(0).expand(b, -1, -1, -1)]
        return w, [torch.zeros_like(i) for i in w]

    def split(self, x, lin, conv):
        x = conv(lin(x).transpose(1, 2))[..., :x.shape[1]].transpose(1, 2)
        return F.silu(x).unflatten(-1, (self.h, self.dh)).transpose(1, 2)

    def retrieve(self, x, w):
        q = l2norm(self.split(x, self.to_q, self.conv[0]))
        y = F.gelu(q @ w[0], approximate="tanh") @ w[1]
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5) * self.gamma + q
        return self.out(y.transpose(1, 2).flatten(2))

    def update(self, x, w, m):
        k, v = l2norm(self.split(x, self.to_k, self.conv[1])), self.split(x, self.to_v, self.conv[2])
        lr = torch.sigmoid(self.to_gates(x)).transpose(1, 2).unsqueeze(-1)
        eta, alpha = torch.sigmoid(self.to_seg(x.mean(1))).view(-1, 2, self.h, 1, 1).unbind(1)
        z = k @ w[0]
        u = 0.7978845608 * (z + 0.044715 * z ** 3)
        th = torch.tanh(u)
        a = 0.5 * z * (1 + th)
        err = (a @ w[1] - v) * lr
        dz = (err @ w[1].transpose(-1, -2)) * (
            0.5 * (1 + th) + 0.5 * z * (1 - th * th) * 0.7978845608 * (1 + 3 * 0.044715 * z * z))
        grads = [k.transpose(-1, -2) @ dz, a.transpose(-1, -2) @ err]
        new_w, new_m, surprise = [], [], 0.0
        for wi, mi, g in zip(w, m, grads):
            n = g.pow(2).sum((-1, -2), keepdim=True).add(1e-8).sqrt()
            g = g / n.clamp(min=1.0)
            mi = eta * mi - g
            new_w.append((1 - alpha) * wi + mi)
            new_m.append(mi)
            surprise = surprise + n.mean()
        return new_w, new_m, surprise


class Model(nn.Module):
    """Titans (memory as context): segments attend to persistent tokens and a test-time-trained memory."""

    def __init__(self, vocab, d, heads, hidden, seg, n_persist, depth):
        super().__init__()
        self.seg, self.np, self.h = seg, n_persist, heads
        self.emb = nn.Embedding(vocab, d)
        self.persist = nn.Parameter(torch.randn(depth, n_persist, d) * 0.02)
        self.mems = nn.ModuleList([NeuralMemory(d, heads, hidden) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.LayerNorm(d, bias=False) for _ in range(3 * depth)])
        self.qkv = nn.ModuleList([nn.Linear(d, 3 * d, bias=False) for _ in range(depth)])
        self.gate = nn.ModuleList([nn.Linear(d, d) for _ in range(depth)])
        self.ff = nn.ModuleList([nn.Sequential(nn.Linear(d, 4 * d), nn.SiLU(), nn.Linear(4 * d, d))
                                 for _ in range(depth)])
        self.rel = nn.Parameter(torch.zeros(heads, 2 * seg))
        self.head = nn.Linear(d, vocab, bias=False)

    def attend(self, i, x, ctx):
        b, n, d = x.shape
        full = torch.cat([self.persist[i].expand(b, -1, -1), ctx, x], dim=1)
        q, k, v = self.qkv[i](full).view(b, -1, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        q = q[:, :, -n:]
        r = torch.arange(n, device=x.device)
        dist = r[:, None] - r[None]
        causal = F.pad(dist >= 0, (self.np + n, 0), value=True)
        bias = F.pad(self.rel[:, dist + self.seg], (self.np + n, 0))
        a = (q @ k.transpose(-1, -2)) / math.sqrt(d // self.h) + bias
        return (a.masked_fill(~causal, float("-inf")).softmax(-1) @ v).transpose(1, 2).reshape(b, n, d)

    def forward(self, ids):
        x = self.emb(ids[:, :-1])
        b, surprise = x.shape[0], 0.0
        for i, mem in enumerate(self.mems):
            n1, n2, n3 = self.norms[3 * i:3 * i + 3]
            w, m = mem.init_state(b)
            outs = []
            for s in n1(x).split(self.seg, dim=1):
                y = self.attend(i, s, mem.retrieve(s, w))
                w, m, g = mem.update(n2(y), w, m)
                outs.append(y * torch.sigmoid(self.gate[i](mem.retrieve(y, w))))
                surprise = surprise + g
            x = x + torch.cat(outs, dim=1)
            x = x + self.ff[i](n3(x))
        logits = self.head(x)
        return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:]), logits, surprise.reshape(1)


def get_inputs():
    return [torch.randint(0, 512, (3, 161))]


def get_init_inputs():
    return [512, 192, 4, 96, 33, 5, 2]
