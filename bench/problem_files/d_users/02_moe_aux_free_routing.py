import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SwiGLU(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w13 = nn.Linear(dim, 2 * hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        a, b = self.w13(x).chunk(2, dim=-1)
        return self.w2(F.silu(a) * b)


class Router(nn.Module):
    def __init__(self, dim, n_experts, top_k, bias_lr=1e-3):
        super().__init__()
        self.proj = nn.Linear(dim, n_experts, bias=False)
        self.top_k, self.n_experts, self.bias_lr = top_k, n_experts, bias_lr
        self.register_buffer("balance_bias", torch.zeros(n_experts))
        self.register_buffer("tokens_seen", torch.zeros(n_experts, dtype=torch.int64))

    def forward(self, x):
        scores = torch.sigmoid(self.proj(x.float()))
        # bias decides who is selected; weights are taken from the unbiased scores
        _, idx = torch.topk(scores.detach() + self.balance_bias, self.top_k, dim=-1)
        w = scores.gather(-1, idx)
        w = w / w.sum(-1, keepdim=True).clamp_min(1e-6)
        with torch.no_grad():
            load = torch.bincount(idx.flatten(), minlength=self.n_experts)
            self.tokens_seen += load
            err = load.float().mean() - load.float()
            self.balance_bias.add_(err.sign(), alpha=self.bias_lr)
        return w, idx, scores, load


class Model(nn.Module):
    """Sparse MoE block: top-k routing, capacity drop, index_add combine, bf16 shared expert."""

    def __init__(self, dim, hidden, n_experts, top_k, capacity_factor=1.25):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.router = Router(dim, n_experts, top_k)
        self.experts = nn.ModuleDict({f"e{i}": SwiGLU(dim, hidden) for i in range(n_experts - 1)})
        # last expert ties its output matrix to the first one
        tied = SwiGLU(dim, hidden)
        tied.w2.weight = self.experts["e0"].w2.weight
        self.experts[f"e{n_experts - 1}"] = tied
        self.shared = SwiGLU(dim, hidden // 2)
        self.capacity_factor = capacity_factor

    def forward(self, x, *, capacity=None, residual=True):
        b, t, d = x.shape
        h = self.norm(x).view(b * t, d)
        w, idx, scores, load = self.router(h)
        if capacity is None:
            capacity = math.ceil(self.capacity_factor * b * t * idx.shape[1] / len(self.experts))
        out = torch.zeros_like(h)
        kept = h.new_zeros(b * t, dtype=torch.int32)
        for e, (name, expert) in enumerate(self.experts.items()):
            tok, slot = torch.where(idx == e)
            if tok.numel() == 0:
                continue
            if tok.shape[0] > capacity:
                tok, slot = tok[:capacity], slot[:capacity]
            y = expert(h[tok]) * w[tok, slot].unsqueeze(-1)
            out.index_add_(0, tok, y.to(out.dtype))
            kept.index_add_(0, tok, torch.ones_like(tok, dtype=torch.int32))
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            shared = self.shared(h)
        out = out + shared.float()
        frac = load.to(scores.dtype) / load.sum()
        aux = (frac * scores.mean(0)).sum() * len(self.experts)
        out = out.view(b, t, d)
        if residual:
            out += x
        return out, aux, load, (kept < idx.shape[1]).view(b, t)


def get_inputs():
    return [torch.randn(4, 192, 96)]


def get_init_inputs():
    return [96, 128, 8, 2]
