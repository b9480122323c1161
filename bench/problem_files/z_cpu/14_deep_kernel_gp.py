import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class FeatureExtractor(nn.Sequential):
    def __init__(self, in_dim, dims, out_dim):
        layers, d = [], in_dim
        for h in dims:
            layers += [nn.Linear(d, h), nn.ReLU()]
            d = h
        layers.append(nn.Linear(d, out_dim))
        super().__init__(*layers)


def scale_to_bounds(x, lower=-1.0, upper=1.0):
    min_val = x.min(dim=0, keepdim=True)[0]
    max_val = x.max(dim=0, keepdim=True)[0]
    diff = (max_val - min_val).clamp(min=1e-6)
    return (x - min_val) * (0.95 * (upper - lower) / diff) + 0.95 * lower


def sq_dist(x1, x2):
    adjustment = x1.mean(-2, keepdim=True)
    x1 = x1 - adjustment
    x2 = x2 - adjustment
    x1_norm = x1.pow(2).sum(dim=-1, keepdim=True)
    x2_norm = x2.pow(2).sum(dim=-1, keepdim=True)
    x1_ = torch.cat([-2.0 * x1, x1_norm, torch.ones_like(x1_norm)], dim=-1)
    x2_ = torch.cat([x2, torch.ones_like(x2_norm), x2_norm], dim=-1)
    return x1_.matmul(x2_.transpose(-2, -1)).clamp_min(0)


class Model(nn.Module):
    """Deep kernel learning: MLP features, ARD Matern-5/2 + linear kernel, exact marginal likelihood, prediction."""

    def __init__(self, in_dim, dims, feat_dim, jitter):
        super().__init__()
        self.feature_extractor = FeatureExtractor(in_dim, dims, feat_dim)
        self.raw_lengthscale = nn.Parameter(torch.zeros(1, feat_dim))
        self.raw_outputscale = nn.Parameter(torch.zeros(()))
        self.raw_linear_variance = nn.Parameter(torch.tensor(-2.0))
        self.raw_noise = nn.Parameter(torch.tensor(-1.0))
        self.mean_constant = nn.Parameter(torch.zeros(()))
        self.jitter = jitter

    def kernel(self, a, b):
        ls = F.softplus(self.raw_lengthscale) + 1e-4
        d = torch.sqrt(sq_dist(a / ls, b / ls) + 1e-10)
        s5d = math.sqrt(5.0) * d
        matern = (1.0 + s5d + 5.0 / 3.0 * d ** 2) * torch.exp(-s5d)
        linear = a @ b.t()
        return F.softplus(self.raw_outputscale) * matern + F.softplus(self.raw_linear_variance) * linear

    def forward(self, x_train, y_train, x_test):
        n = x_train.shape[0]
        z = scale_to_bounds(self.feature_extractor(torch.cat([x_train, x_test], 0)))
        zt, zs = z[:n], z[n:]
        noise = F.softplus(self.raw_noise) + 1e-3
        K = self.kernel(zt, zt) + (noise + self.jitter) * torch.eye(n, device=z.device, dtype=z.dtype)
        L = torch.linalg.cholesky(K)
        resid = (y_train - self.mean_constant).unsqueeze(-1)
        alpha = torch.cholesky_solve(resid, L)
        mll = -0.5 * (resid * alpha).sum() - torch.log(torch.diagonal(L)).sum() - 0.5 * n * math.log(2 * math.pi)
        Ks = self.kernel(zs, zt)
        mean = self.mean_constant + (Ks @ alpha).squeeze(-1)
        v = torch.linalg.solve_triangular(L, Ks.t(), upper=False)
        prior = torch.diagonal(self.kernel(zs, zs))
        var = (prior - (v ** 2).sum(0)).clamp(min=1e-6) + noise
        return -mll / n, mean, var


def get_inputs():
    return [torch.randn(400, 16), torch.randn(400), torch.randn(100, 16)]


def get_init_inputs():
    return [16, [256, 128, 64], 4, 1e-4]
