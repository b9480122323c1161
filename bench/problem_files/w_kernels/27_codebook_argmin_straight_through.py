import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Vector quantiser on NCHW: nearest code by argmin, straight-through output, two losses, code usage entropy."""

    def __init__(self, codes, dim, beta):
        super().__init__()
        self.codebook = nn.Parameter(torch.randn(codes, dim))
        self.beta = beta

    def forward(self, x):
        n, c, h, w = x.shape
        flat = x.permute(0, 2, 3, 1).reshape(-1, c)
        score = self.codebook.square().sum(dim=1) - 2.0 * flat @ self.codebook.t()
        idx = score.argmin(dim=1)
        q = F.embedding(idx, self.codebook)
        loss = F.mse_loss(q, flat.detach()) + self.beta * F.mse_loss(flat, q.detach())
        usage = q.new_zeros(self.codebook.shape[0]).scatter_add(0, idx, torch.ones_like(q[:, 0]))
        usage = usage / idx.shape[0]
        entropy = -(usage * torch.log(usage + 1e-10)).sum()
        out = flat + (q - flat).detach()
        return out.view(n, h, w, c).permute(0, 3, 1, 2), loss, entropy


batch = 32
dim = 64
codes = 777


def get_inputs():
    return [torch.randn(batch, dim, 60, 60)]


def get_init_inputs():
    return [codes, dim, 0.25]
