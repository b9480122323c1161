import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Expert-choice MoE: every expert picks its top tokens; batched expert SwiGLU plus shared expert."""

    def __init__(self, dim, hidden, n_experts, capacity_factor):
        super().__init__()
        self.n_experts, self.cf = n_experts, capacity_factor
        self.gate = nn.Parameter(torch.randn(dim, n_experts) * dim ** -0.5)
        self.w_in = nn.Parameter(torch.randn(n_experts, dim, 2 * hidden) * dim ** -0.5)
        self.b_in = nn.Parameter(torch.zeros(n_experts, 1, 2 * hidden))
        self.w_out = nn.Parameter(torch.randn(n_experts, hidden, dim) * hidden ** -0.5)
        self.shared = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, pad_mask):
        B, S, D = x.shape
        h = self.norm(x)
        tokens = h.reshape(-1, D)
        N = tokens.shape[0]
        cap = int(self.cf * N / self.n_experts)
        logits = tokens @ self.gate
        probs = logits.float().softmax(dim=-1)
        probs = probs.masked_fill(pad_mask.reshape(-1, 1), 0.0)   # padding is never picked
        g, idx = probs.t().topk(cap, dim=-1)                     # E, cap
        xin = tokens[idx]                                        # E, cap, D
        hidden = torch.baddbmm(self.b_in, xin, self.w_in)
        a, b = hidden.chunk(2, dim=-1)
        y = torch.bmm(F.silu(a) * b, self.w_out)
        y = y * g.unsqueeze(-1)
        out = torch.zeros_like(tokens)
        out.index_add_(0, idx.reshape(-1), y.reshape(-1, D))
        # how many experts took each token
        load = torch.zeros(N, device=x.device, dtype=x.dtype)
        load.scatter_add_(0, idx.flatten(), torch.ones_like(g).flatten())
        dropped = ((load == 0) & ~pad_mask.reshape(-1)).float().mean()
        z_loss = torch.logsumexp(logits, dim=-1).masked_fill(pad_mask.reshape(-1), 0.0).square().mean()
        out = (out + self.shared(tokens)).view(B, S, D)
        out = torch.where(pad_mask.unsqueeze(-1), torch.zeros_like(out), out)
        return x + out, z_loss * 1e-3, load.view(B, S), dropped


def get_inputs():
    lengths = torch.tensor([61, 45, 52])
    pad = torch.arange(61)[None] >= lengths[:, None]
    return [torch.randn(3, 61, 72), pad]


def get_init_inputs():
    return [72, 112, 6, 1.5]
