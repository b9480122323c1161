import torch
import torch.nn as nn
import torch.nn.functional as F

B, T, D, H = 8, 1029, 1024, 2736


class Model(nn.Module):
    """ViT feed-forward sub-block: LayerNorm, packed SwiGLU with biases, layer scale, residual."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.w12 = nn.Linear(dim, 2 * hidden, bias=True)
        self.w3 = nn.Linear(hidden, dim, bias=True)
        self.gamma = nn.Parameter(0.3 + 0.1 * torch.randn(dim))
        nn.init.normal_(self.w12.bias, std=0.2)
        nn.init.normal_(self.w3.bias, std=0.2)

    def forward(self, x):
        x12 = self.w12(self.norm(x))
        x1, x2 = x12.chunk(2, dim=-1)
        hidden = F.silu(x1) * x2
        return x + self.gamma * self.w3(hidden)


def get_inputs():
    return [torch.randn(B, T, D)]


def get_init_inputs():
    return [D, H]
