import torch
import torch.nn as nn
import torch.nn.functional as F

B, T, D, HEADS, HD, H = 4, 1024, 1536, 24, 64, 2736


class Model(nn.Module):
    """PaLM style parallel block: one biased projection for queries, a single key and value
    head and the gated MLP; learned distance slopes, prefix mask, one output projection."""

    def __init__(self, dim, heads, head_dim, hidden):
        super().__init__()
        self.heads, self.hd = heads, head_dim
        self.sizes = [hidden, head_dim, heads * head_dim, hidden, head_dim]
        self.norm = nn.LayerNorm(dim, bias=False)
        self.fused_w = nn.Parameter(torch.randn(dim, sum(self.sizes)) / dim ** 0.5)
        self.fused_b = nn.Parameter(torch.randn(sum(self.sizes)) * 0.2)
        self.q_norm = nn.Parameter(torch.ones(heads, head_dim))
        self.k_norm = nn.Parameter(torch.ones(head_dim))
        self.slope = nn.Parameter(torch.linspace(-3, 0, heads).view(1, heads, 1, 1))
        self.head_bias = nn.Parameter(torch.zeros(1, heads, 1, 1))
        self.out = nn.Linear(heads * head_dim + hidden, dim)

    def forward(self, x, prefix):
        b, t, _ = x.shape
        up, v, q, gate, k = torch.split(self.norm(x) @ self.fused_w + self.fused_b, self.sizes, dim=-1)
        q = F.rms_norm(q.view(b, t, self.heads, self.hd), (self.hd,), None, 1e-5) * self.q_norm
        k = F.rms_norm(k, (self.hd,), self.k_norm, 1e-5)
        s = torch.einsum("bihd,bjd->bhij", q, k) / self.hd ** 0.5
        i = torch.arange(t, device=x.device)
        rel = (i[:, None] - i[None, :]).abs()
        s = s - F.softplus(self.slope) * rel.to(x.dtype) / 16
        future = i[None, :] > i[:, None]
        s = s + self.head_bias * (rel < 8)
        blocked = future[None] & (i[None, None, :] >= prefix[:, None, None])
        a = s.masked_fill(blocked.unsqueeze(1), float("-inf")).softmax(dim=-1)
        o = torch.einsum("bhij,bjd->bihd", a, v).flatten(2)
        m = F.silu(gate) * up
        return x + self.out(torch.cat([m, o], dim=-1))


def get_inputs():
    return [torch.randn(B, T, D), torch.randint(1, T // 2, (B,))]


def get_init_inputs():
    return [D, HEADS, HD, H]
