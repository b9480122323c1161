import torch
import torch.nn as nn


class Model(nn.Module):
    """Talking-heads attention with distance bias: heads are mixed before and after a normalised squared ReLU."""

    def __init__(self, heads, head_dim):
        super().__init__()
        self.scale = head_dim ** -0.5
        self.pre = nn.Parameter(torch.eye(heads) + 0.2 * torch.randn(heads, heads))
        self.post = nn.Parameter(torch.eye(heads) + 0.2 * torch.randn(heads, heads))
        self.slope = nn.Parameter(torch.rand(heads, 1, 1) * 0.02)

    def forward(self, q, k, v):
        n = q.shape[2]
        pos = torch.arange(n, device=q.device)
        dist = (pos[:, None] - pos[None, :]).abs()
        s = torch.matmul(q, k.transpose(-2, -1)) * self.scale - self.slope * dist
        s = torch.einsum("bhij,hg->bgij", s, self.pre)
        p = torch.relu(s + 1.0).square()
        p = p / (p.sum(dim=-1, keepdim=True) + 1e-2)
        p = torch.einsum("bhij,hg->bgij", p, self.post)
        return torch.matmul(p, v)


batch_size = 4
heads = 10
seq = 601
head_dim = 40


def get_inputs():
    shape = (batch_size, heads, seq, head_dim)
    return [torch.randn(shape), torch.randn(shape), torch.randn(shape)]


def get_init_inputs():
    return [heads, head_dim]
