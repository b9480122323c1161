import torch
import torch.nn as nn
import torch.nn.functional as F

N, D, H, E = 4096, 768, 1000, 8


class Model(nn.Module):
    """Mixture of experts: top-2 routing by a mask, every expert with fused gate/up and
    biases, renormalised gates, load balance and router z losses."""

    def __init__(self, dim, hidden, experts, k):
        super().__init__()
        self.k, self.experts = k, experts
        self.router = nn.Linear(dim, experts, bias=True)
        self.w_in = nn.Parameter(torch.randn(experts, dim, 2 * hidden) / dim ** 0.5)
        self.b_in = nn.Parameter(torch.randn(experts, 2 * hidden) * 0.1)
        self.w_out = nn.Parameter(torch.randn(experts, hidden, dim) / hidden ** 0.5)
        self.b_out = nn.Parameter(torch.randn(experts, dim) * 0.1)

    def forward(self, x):
        logits = self.router(x)
        probs = logits.softmax(-1)
        idx = probs.topk(self.k, dim=-1).indices
        mask = torch.zeros_like(probs).scatter(-1, idx, 1.0)
        gates = probs * mask
        gates = gates / gates.sum(-1, keepdim=True)
        h = torch.einsum("nd,edh->enh", x, self.w_in) + self.b_in[:, None, :]
        gate, up = h.split(h.shape[-1] // 2, dim=-1)
        h = F.silu(gate) * up
        y = torch.einsum("enh,ehd->end", h, self.w_out) + self.b_out.unsqueeze(1)
        out = torch.einsum("end,ne->nd", y, gates)
        balance = self.experts * (mask.mean(0) * probs.mean(0)).sum() / self.k
        z = torch.logsumexp(logits, -1).square().mean()
        return out, 0.01 * balance + 0.001 * z


def get_inputs():
    return [torch.randn(N, D)]


def get_init_inputs():
    return [D, H, E, 2]
