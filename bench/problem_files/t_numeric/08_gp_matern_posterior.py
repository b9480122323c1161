import math
import torch
import torch.nn as nn


class Model(nn.Module):
    """Gaussian-process regression with an ARD Matern-5/2 kernel: posterior mean,
    variance and the log marginal likelihood."""

    def __init__(self, dim, outputscale, noise):
        super().__init__()
        self.log_ls = nn.Parameter(torch.linspace(-0.3, 0.4, dim))
        self.log_os = nn.Parameter(torch.tensor(math.log(outputscale)))
        self.log_noise = nn.Parameter(torch.tensor(math.log(noise)))

    def k(self, a, b):
        ls = self.log_ls.exp()
        a, b = a / ls, b / ls
        mean = a.mean(0, keepdim=True)
        a, b = a - mean, b - mean
        d2 = (a * a).sum(-1, keepdim=True) + (b * b).sum(-1).unsqueeze(0) - 2.0 * a @ b.t()
        d = torch.sqrt(d2.clamp(min=1e-5))
        s = math.sqrt(5.0) * d
        return self.log_os.exp() * (1.0 + s + s * s / 3.0) * torch.exp(-s)

    def forward(self, xtr, ytr, xte):
        n = xtr.shape[0]
        K = self.k(xtr, xtr)
        K.diagonal().add_(self.log_noise.exp())
        L = torch.linalg.cholesky(K)
        y = (ytr - ytr.mean()).unsqueeze(-1)
        alpha = torch.cholesky_solve(y, L)
        Ks = self.k(xtr, xte)
        mu = ytr.mean() + (Ks * alpha).sum(0)
        v = torch.linalg.solve_triangular(L, Ks, upper=False)
        var = self.log_os.exp() - (v * v).sum(0)
        lml = -0.5 * (y * alpha).sum() - L.diagonal().log().sum() - 0.5 * n * math.log(2 * math.pi)
        return mu, var.clamp(min=0.0), lml


def get_inputs():
    xtr = 2.0 * torch.randn(231, 4)
    ytr = torch.sin(xtr).sum(1) + 0.3 * torch.randn(231)
    return [xtr, ytr, 2.0 * torch.randn(310, 4)]


def get_init_inputs():
    return [4, 1.5, 0.2]
