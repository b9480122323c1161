from typing import Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class TopKRouter(nn.Module):
    def __init__(self, dim: int, n_experts: int, top_k: int):
        super().__init__()
        self.top_k, self.n_experts = top_k, n_experts
        self.gate = nn.Linear(dim, n_experts, bias=False)
        self.e_bias = nn.Parameter(torch.zeros(n_experts), requires_grad=False)  # loss-free balancing bias

    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = F.linear(x.float(), self.gate.weight.float())
        scores = torch.sigmoid(logits)
        _, idx = torch.topk(scores + self.e_bias.float(), self.top_k, dim=-1, sorted=False)
        w = scores.gather(-1, idx)
        w = w / (w.sum(-1, keepdim=True) + 1e-20)
        # sequence-level balance loss
        probs = scores / scores.sum(-1, keepdim=True)
        frac = F.one_hot(idx, self.n_experts).sum(1).float().mean(0) * self.n_experts / self.top_k
        aux = (frac * probs.mean(0)).sum()
        return w, idx, aux


class Experts(nn.Module):
    """Grouped SwiGLU weights: one batched matmul over a (experts, capacity, dim) buffer."""

    def __init__(self, n_experts: int, dim: int, hidden: int):
        super().__init__()
        self.w13 = nn.Parameter(torch.empty(n_experts, dim, 2 * hidden))
        self.w2 = nn.Parameter(torch.empty(n_experts, hidden, dim))
        nn.init.normal_(self.w13, std=dim ** -0.5)
        nn.init.normal_(self.w2, std=hidden ** -0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        g, u = torch.bmm(x, self.w13).chunk(2, dim=-1)
        return torch.bmm(F.silu(g) * u, self.w2)


class Model(nn.Module):
    def __init__(self, dim, hidden, shared_hidden, n_experts, top_k, capacity_factor):
        super().__init__()
        self.n_experts, self.top_k, self.cf = n_experts, top_k, capacity_factor
        self.norm = nn.RMSNorm(dim)
        self.router = TopKRouter(dim, n_experts, top_k)
        self.experts = Experts(n_experts, dim, hidden)
        self.shared_gate_up = nn.Linear(dim, 2 * shared_hidden, bias=False)
        self.shared_down = nn.Linear(shared_hidden, dim, bias=False)

    def dispatch(self, idx):
        # idx: (tokens, k). Sort the flat assignments by expert and number them inside each expert.
        n = idx.numel()
        flat = idx.reshape(-1)
        order = torch.argsort(flat, stable=True)
        sorted_e = flat[order]
        counts = torch.zeros(self.n_experts, dtype=torch.long, device=idx.device)
        counts = counts.scatter_add(0, flat, torch.ones_like(flat))
        starts = counts.cumsum(0) - counts
        rank = torch.arange(n, device=idx.device) - starts[sorted_e]
        capacity = -(-int(n * self.cf) // self.n_experts)
        keep = rank < capacity
        # overflowing assignments go to a trash row at the end
        slot = torch.where(keep, sorted_e * capacity + rank, self.n_experts * capacity)
        return order, slot, keep, capacity

    def forward(self, x):
        b, s, d = x.shape
        residual = x
        h = self.norm(x).reshape(-1, d)
        weights, idx, aux = self.router(h)
        order, slot, keep, cap = self.dispatch(idx)
        token = torch.div(order, self.top_k, rounding_mode="floor")

        buf = h.new_zeros(self.n_experts * cap + 1, d)
        buf = buf.index_copy(0, slot, h.index_select(0, token))
        y = self.experts(buf[:-1].view(self.n_experts, cap, d)).reshape(-1, d)
        y = torch.cat([y, y.new_zeros(1, d)])
        w_sorted = weights.reshape(-1)[order] * keep
        contrib = y.index_select(0, slot) * w_sorted[:, None].to(y.dtype)

        out = torch.zeros_like(h).index_add(0, token, contrib)
        gate, up = self.shared_gate_up(h).chunk(2, dim=-1)
        out = out + self.shared_down(F.silu(gate) * up)
        return residual + out.view(b, s, d), aux


def get_inputs():
    return [torch.randn(2, 2048, 2048)]


def get_init_inputs():
    return [2048, 1024, 2048, 32, 4, 1.25]
