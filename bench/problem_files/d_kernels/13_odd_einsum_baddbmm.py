import torch
import torch.nn as nn


class Model(nn.Module):
    """Einsums with repeated and dropped indices and permuted outputs, then baddbmm with alpha/beta, once with beta=0 on a NaN tensor."""

    def __init__(self, n, channels, rank):
        super().__init__()
        self.u = nn.Parameter(torch.randn(n, rank) / n**0.5)
        self.v = nn.Parameter(torch.randn(rank, channels))
        self.bias = nn.Parameter(torch.randn(1, channels))
        self.register_buffer("poison", torch.full((1, 1, rank), float("nan")))

    def forward(self, x):
        diag = torch.einsum("biic->bic", x)
        tot = torch.einsum("bijc->jcb", x) / x.shape[1]  # drops i, permutes
        t = torch.einsum("bijc,jr,rc->bic", x, self.u, self.v)
        outer = torch.einsum("bic,jcb->bij", torch.relu(diag), torch.tanh(tot))
        proj = torch.baddbmm(self.poison.expand(x.shape[0], x.shape[1], -1), outer, self.u.expand(x.shape[0], -1, -1), beta=0, alpha=0.25)
        y = torch.baddbmm(self.bias, proj, self.v.expand(x.shape[0], -1, -1), beta=-1.5, alpha=0.5)
        y = y + t - diag
        return y / torch.einsum("bic,bic->b", y, y).sqrt()[:, None, None] + torch.einsum("...c->...", y).unsqueeze(-1) * 0.01


def get_inputs():
    return [torch.randn(9, 61, 61, 29)]


def get_init_inputs():
    return [61, 29, 13]
