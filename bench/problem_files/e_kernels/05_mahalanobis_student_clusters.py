import torch
import torch.nn as nn


class Model(nn.Module):
    """Squared Mahalanobis distances from points to centres per head, by broadcast products, turned into Student-t memberships, sharpened targets and the nearest centre."""

    def __init__(self, heads, centres, width, nu):
        super().__init__()
        self.nu = nu
        self.centres = nn.Parameter(torch.randn(heads, centres, width))
        self.factor = nn.Parameter(torch.randn(heads, width, width) / width)

    def forward(self, x):
        low = torch.tril(self.factor)
        metric = low @ low.mT + torch.eye(low.shape[-1], device=x.device)  # (H, K, K), symmetric
        xm = torch.matmul(x.unsqueeze(1), metric)  # (B, 1, M, K) x (H, K, K)
        cm = torch.matmul(self.centres, metric)
        xx = (xm * x.unsqueeze(1)).sum(dim=-1, keepdim=True)
        cc = (cm * self.centres).sum(dim=-1).unsqueeze(-2)
        d = (xx - 2.0 * torch.matmul(xm, self.centres.mT) + cc).clamp_min(0.0)
        q = (1.0 + d / self.nu).pow(-0.5 * (self.nu + 1.0))
        q = q / q.sum(dim=-1, keepdim=True)
        sharp = q.square() / q.sum(dim=-2, keepdim=True)
        sharp = sharp / sharp.sum(dim=-1, keepdim=True)
        return q, (sharp * (sharp.clamp_min(1e-12) / q).log()).sum(dim=(1, 3)), d.argmin(dim=-1)


def get_inputs():
    return [torch.randn(5, 811, 48)]


def get_init_inputs():
    return [7, 67, 48, 3.0]
