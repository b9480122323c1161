import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim, hidden, experts, top_k, capacity_factor):
        super().__init__()
        self.experts, self.top_k, self.capacity_factor = experts, top_k, capacity_factor
        bf = torch.bfloat16
        self.router = nn.Parameter(torch.randn(dim, experts) * dim ** -0.5)
        self.route_bias = nn.Parameter(0.1 * torch.randn(experts))
        self.w_in = nn.Parameter((torch.randn(experts, dim, 2 * hidden) * dim ** -0.5).to(bf))
        self.w_out = nn.Parameter((torch.randn(experts, hidden, dim) * hidden ** -0.5).to(bf))
        self.s_in = nn.Parameter((torch.randn(dim, 2 * hidden) * dim ** -0.5).to(bf))
        self.s_out = nn.Parameter((torch.randn(hidden, dim) * hidden ** -0.5).to(bf))

    def forward(self, x, pad):
        n, d = x.shape
        e, k = self.experts, self.top_k
        cap = int(self.capacity_factor * n * k / e) + 1
        logits = x.float() @ self.router
        score = torch.sigmoid(logits)
        _, idx = torch.topk(score + self.route_bias, k, dim=-1)
        w = score.gather(1, idx)
        w = w / (w.sum(-1, keepdim=True) + 1e-9)
        flat = idx.T.reshape(-1)
        live = (~pad).repeat(k)
        hot = F.one_hot(flat, e) * live.unsqueeze(1)
        slot = (hot.cumsum(0) - 1).gather(1, flat.unsqueeze(1)).squeeze(1)
        keep = live & (slot < cap)
        dest = torch.where(keep, flat * cap + slot, torch.full_like(slot, e * cap))
        buf = x.new_zeros(e * cap + 1, d).index_copy(0, dest, x.repeat(k, 1))
        buf = buf[:-1].view(e, cap, d)
        gate, up = torch.bmm(buf, self.w_in).chunk(2, dim=-1)
        y = torch.bmm(F.silu(gate.float()).to(x.dtype) * up, self.w_out).reshape(e * cap, d)
        y = F.pad(y, (0, 0, 0, 1))[dest].view(k, n, d)
        y = (y.float() * (w.T * keep.view(k, n)).unsqueeze(-1)).sum(0)
        g, u = (x @ self.s_in).chunk(2, -1)
        shared = (F.gelu(g, approximate="tanh") * u) @ self.s_out
        out = x + shared + y.to(x.dtype)
        p = torch.softmax(logits, -1).masked_fill(pad.unsqueeze(1), 0.0)
        real = (~pad).sum().float()
        frac = hot.float().sum(0) / (real * k)
        balance = e * (frac * p.sum(0) / real).sum()
        z = (logits.logsumexp(-1).square() * ~pad).sum() / real
        dropped = (live & ~keep).sum()
        return out, balance, z, dropped


def get_inputs():
    return [torch.randn(397, 72).to(torch.bfloat16), torch.rand(397) < 0.1]


def get_init_inputs():
    return [72, 88, 8, 2, 1.1]
