import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Graph attention: project nodes, per-edge leaky-ReLU scores, softmax over incoming edges, scatter-sum, ELU."""

    def __init__(self, in_dim, heads, head_dim):
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.proj = nn.Linear(in_dim, heads * head_dim, bias=False)
        self.a_src = nn.Parameter(torch.randn(heads, head_dim) * 0.5)
        self.a_dst = nn.Parameter(torch.randn(heads, head_dim) * 0.5)

    def forward(self, x, src, dst):
        n = x.shape[0]
        h = self.proj(x).view(n, self.heads, self.head_dim)
        s = (h * self.a_src).sum(-1)[src] + (h * self.a_dst).sum(-1)[dst]
        s = F.leaky_relu(s, 0.2)
        idx = dst.unsqueeze(1).expand_as(s)
        peak = torch.full_like(s[:1].expand(n, -1), -1e4).scatter_reduce(0, idx, s.detach(), "amax")
        e = torch.exp(s - peak[dst])
        denom = e.new_zeros(n, self.heads).index_add(0, dst, e)
        alpha = e / (denom[dst] + 1e-6)
        out = torch.zeros_like(h).index_add(0, dst, alpha.unsqueeze(-1) * h[src])
        return F.elu(out.reshape(n, -1))


nodes = 20011
edges = 300007
in_dim = 100
heads = 4
head_dim = 15


def get_inputs():
    return [
        torch.randn(nodes, in_dim),
        torch.randint(0, nodes, (edges,)),
        torch.randint(0, nodes, (edges,)),
    ]


def get_init_inputs():
    return [in_dim, heads, head_dim]
