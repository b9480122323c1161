import torch
import torch.nn as nn
import torch.nn.functional as F

B, T, D, E, S, H = 32, 197, 768, 12, 16, 1536


class Model(nn.Module):
    """Soft MoE: dispatch and combine weights from the same logits with a learned scale,
    normalised inputs and slot vectors."""

    def __init__(self, dim, experts, slots, hidden):
        super().__init__()
        self.phi = nn.Parameter(torch.randn(dim, experts, slots) / dim ** 0.5)
        self.scale = nn.Parameter(torch.tensor(4.0))
        self.w1 = nn.Parameter(torch.randn(experts, dim, hidden) * (2 / dim) ** 0.5)
        self.b1 = nn.Parameter(torch.randn(experts, 1, hidden) * 0.1)
        self.w2 = nn.Parameter(torch.randn(experts, hidden, dim) / hidden ** 0.5)
        self.b2 = nn.Parameter(torch.randn(experts, 1, dim) * 0.1)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        h = self.norm(x)
        phi = F.normalize(self.phi, dim=0) * self.scale
        logits = torch.einsum("btd,des->btes", F.normalize(h, dim=-1), phi)
        dispatch = logits.softmax(dim=1)
        combine = logits.flatten(2).softmax(dim=-1).view_as(logits)
        slots = torch.einsum("btd,btes->ebsd", h, dispatch)
        e, b, s, d = slots.shape
        z = torch.baddbmm(self.b1, slots.reshape(e, b * s, d), self.w1)
        z = torch.baddbmm(self.b2, F.gelu(z), self.w2).view(e, b, s, d)
        return x + torch.einsum("ebsd,btes->btd", z, combine)


def get_inputs():
    return [torch.randn(B, T, D)]


def get_init_inputs():
    return [D, E, S, H]
