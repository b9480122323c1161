import torch
import torch.nn as nn
import torch.nn.functional as F


def off_diagonal(x):
    n, m = x.shape
    assert n == m
    return x.flatten()[:-1].view(n - 1, n + 1)[:, 1:].flatten()


class Model(nn.Module):
    def __init__(self, layer_sizes, sim_coeff, std_coeff, cov_coeff, lambd):
        super().__init__()
        layers = []
        for i in range(len(layer_sizes) - 2):
            layers += [nn.Linear(layer_sizes[i], layer_sizes[i + 1]),
                       nn.BatchNorm1d(layer_sizes[i + 1], track_running_stats=False),
                       nn.ReLU(True)]
        layers.append(nn.Linear(layer_sizes[-2], layer_sizes[-1], bias=False))
        self.projector = nn.Sequential(*layers)
        self.sim_coeff, self.std_coeff, self.cov_coeff = sim_coeff, std_coeff, cov_coeff
        self.lambd = lambd

    def vicreg(self, x, y):
        repr_loss = F.mse_loss(x, y)
        x = x - x.mean(dim=0)
        y = y - y.mean(dim=0)
        std_x = torch.sqrt(x.var(dim=0) + 0.0001)
        std_y = torch.sqrt(y.var(dim=0) + 0.0001)
        std_loss = torch.mean(F.relu(1 - std_x)) / 2 + torch.mean(F.relu(1 - std_y)) / 2
        b, d = x.shape
        cov_x = (x.T @ x) / (b - 1)
        cov_y = (y.T @ y) / (b - 1)
        cov_loss = off_diagonal(cov_x).pow_(2).sum().div(d) + off_diagonal(cov_y).pow_(2).sum().div(d)
        return self.sim_coeff * repr_loss + self.std_coeff * std_loss + self.cov_coeff * cov_loss

    def barlow(self, x, y):
        xn = (x - x.mean(0)) / (x.std(0) + 1e-5)
        yn = (y - y.mean(0)) / (y.std(0) + 1e-5)
        c = xn.T @ yn / x.shape[0]
        on_diag = torch.diagonal(c).add(-1).pow(2).sum()
        return on_diag + self.lambd * off_diagonal(c).pow(2).sum()

    def forward(self, v1, v2):
        x, y = self.projector(v1), self.projector(v2)
        return self.vicreg(x, y) + 0.02 * self.barlow(x, y)


def get_inputs():
    a = torch.randn(112, 160)
    return [a + 0.3 * torch.randn(112, 160), a + 0.3 * torch.randn(112, 160)]


def get_init_inputs():
    return [[160, 300, 270], 25.0, 25.0, 1.0, 5e-3]
