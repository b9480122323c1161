import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm


class ResNetLayer(nn.Module):
    """The cell of the deep-equilibrium tutorial."""

    def __init__(self, n_channels, n_inner, kernel_size=3, num_groups=4):
        super().__init__()
        self.conv1 = weight_norm(nn.Conv2d(n_channels, n_inner, kernel_size, padding=kernel_size // 2, bias=False), dim=0)
        self.conv2 = weight_norm(nn.Conv2d(n_inner, n_channels, kernel_size, padding=kernel_size // 2, bias=False), dim=0)
        self.norm1 = nn.GroupNorm(num_groups, n_inner)
        self.norm2 = nn.GroupNorm(num_groups, n_channels)
        self.norm3 = nn.GroupNorm(num_groups, n_channels)

    def forward(self, z, x):
        y = self.norm1(F.relu(self.conv1(z)))
        return self.norm3(F.relu(z + self.norm2(x + self.conv2(y))))


def anderson(f, x0, m=4, lam=1e-2, max_iter=8, beta=1.0):
    bsz, d, H, W = x0.shape
    X = torch.zeros(bsz, m, d * H * W, dtype=x0.dtype, device=x0.device)
    G = torch.zeros(bsz, m, d * H * W, dtype=x0.dtype, device=x0.device)
    X[:, 0], G[:, 0] = x0.reshape(bsz, -1), f(x0).reshape(bsz, -1)
    X[:, 1], G[:, 1] = G[:, 0], f(G[:, 0].view_as(x0)).reshape(bsz, -1)
    A = torch.zeros(bsz, m + 1, m + 1, dtype=x0.dtype, device=x0.device)
    A[:, 0, 1:] = A[:, 1:, 0] = 1
    y = torch.zeros(bsz, m + 1, 1, dtype=x0.dtype, device=x0.device)
    y[:, 0] = 1
    for k in range(2, max_iter):
        n = min(k, m)
        R = G[:, :n] - X[:, :n]
        gram = torch.bmm(R, R.transpose(1, 2))
        gram = gram / gram.diagonal(dim1=1, dim2=2).mean(-1)[:, None, None]
        A[:, 1:n + 1, 1:n + 1] = gram + lam * torch.eye(n, dtype=x0.dtype, device=x0.device)[None]
        alpha = torch.linalg.solve(A[:, :n + 1, :n + 1], y[:, :n + 1])[:, 1:n + 1, 0]
        X[:, k % m] = beta * (alpha[:, None] @ G[:, :n])[:, 0] + (1 - beta) * (alpha[:, None] @ X[:, :n])[:, 0]
        G[:, k % m] = f(X[:, k % m].view_as(x0)).reshape(bsz, -1)
    return X[:, (max_iter - 1) % m].view_as(x0)


class Model(nn.Module):
    """Deep equilibrium classifier: Anderson iterations without gradients, then unrolled phantom steps."""

    def __init__(self, cin, ch, inner, classes, iters, phantom, tau):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(cin, ch, 3, bias=True, padding=1), nn.BatchNorm2d(ch))
        self.f = ResNetLayer(ch, inner)
        self.tail = nn.Sequential(nn.BatchNorm2d(ch), nn.AvgPool2d(5, 4), nn.Flatten(), nn.Linear(ch * 4 * 4, classes))
        self.iters, self.phantom, self.tau = iters, phantom, tau

    def forward(self, img):
        x = self.stem(img)
        with torch.no_grad():
            z = anderson(lambda z: self.f(z, x), torch.zeros_like(x), max_iter=self.iters)
        for _ in range(self.phantom):
            z = (1 - self.tau) * z + self.tau * self.f(z, x)
        residual = (self.f(z, x) - z).flatten(1).norm(dim=1) / (1e-5 + z.flatten(1).norm(dim=1))
        return self.tail(z), residual


def get_inputs():
    return [torch.randn(3, 3, 19, 19)]


def get_init_inputs():
    return [3, 24, 32, 10, 6, 3, 0.8]
