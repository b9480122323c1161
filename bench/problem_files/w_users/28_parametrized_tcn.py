import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.nn.utils.parametrize as parametrize
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm


class Symmetric(nn.Module):
    def forward(self, X):
        return X.triu() + X.triu(1).transpose(-1, -2)

    def right_inverse(self, A):
        return A.triu()


class MaskDiag(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.register_buffer("m", 1 - torch.eye(n))

    def forward(self, X):
        return X * self.m


class CausalBlock(nn.Module):
    def __init__(self, c, d):
        super().__init__()
        self.d = d
        self.filt = weight_norm(nn.Conv1d(c, 2 * c, 3, dilation=d))
        self.res = weight_norm(nn.Conv1d(c, c, 1), dim=None)
        self.skip = nn.Conv1d(c, c, 1, bias=False)

    def forward(self, x):
        y = F.glu(self.filt(F.pad(x, (2 * self.d, 0))), dim=1)
        return (x + self.res(y)) * 0.7071, self.skip(y)


class Model(nn.Module):
    """WaveNet style net with every kind of parametrization; hooks collect activations."""

    def __init__(self, c=24, n_blocks=4):
        super().__init__()
        self.inp = nn.Conv1d(1, c, 1)
        self.blocks = nn.ModuleList([CausalBlock(c, 2 ** i) for i in range(n_blocks)])
        self.rot = orthogonal(nn.Linear(c, c, bias=False), orthogonal_map="cayley")
        self.lip = spectral_norm(nn.Linear(c, c), n_power_iterations=2)
        self.sym = nn.Linear(c, c, bias=False)
        parametrize.register_parametrization(self.sym, "weight", Symmetric())
        parametrize.register_parametrization(self.sym, "weight", MaskDiag(c))
        self.mu = nn.Conv1d(c, 3 * 5, 1)
        self.stats = {}
        for i, b in enumerate(self.blocks):
            b.register_forward_hook(self._make_hook(i))
        self.sym.register_forward_pre_hook(lambda mod, args: (args[0].clamp(-3, 3),))
        self.register_buffer("act_norm", torch.zeros(n_blocks))

    def _make_hook(self, i):
        def hook(mod, args, out):
            self.stats[i] = out[1].pow(2).mean(dim=(1, 2))
            if i == 1:
                return out[0], out[1] * 0.5
        return hook

    def forward(self, x):
        # x: B, T in [-1, 1]
        B, T = x.shape
        h = self.inp(torch.sign(x).mul(torch.log1p(255 * x.abs()) / 5.545).unsqueeze(1))
        skip = torch.zeros_like(h)
        for b in self.blocks:
            h, s = b(h)
            skip += s
        z = F.relu(skip).transpose(1, 2)
        z = self.rot(z)
        z = z + torch.tanh(self.lip(z)) + 0.1 * self.sym(z)
        with parametrize.cached():
            again = self.sym(z[:, ::16]) - F.linear(z[:, ::16].clamp(-3, 3), self.sym.weight)
        p = self.mu(z.transpose(1, 2))
        logit, mean, logs = p.view(B, 3, 5, T).unbind(1)
        logs = logs.clamp(min=-7.0)
        # discretised logistic mixture
        y = F.pad(x[:, 1:], (0, 1)).unsqueeze(1)
        inv = torch.exp(-logs)
        cen = y - torch.tanh(mean)
        plus, minus = inv * (cen + 1 / 255), inv * (cen - 1 / 255)
        delta = torch.sigmoid(plus) - torch.sigmoid(minus)
        mid = inv * cen
        lp = torch.where(
            y < -0.999, plus - F.softplus(plus),
            torch.where(y > 0.999, -F.softplus(minus),
                        torch.where(delta > 1e-5, torch.log(delta.clamp(min=1e-12)),
                                    mid - logs - 2 * F.softplus(mid) - 4.85)))
        nll = -torch.logsumexp(lp + logit.log_softmax(1), 1)
        norms = torch.stack([self.stats[i] for i in sorted(self.stats)], 1)
        if self.training:
            self.act_norm.lerp_(norms.detach().mean(0), 0.1)
        self.stats.clear()
        W = self.rot.weight
        ortho = (W @ W.t() - torch.eye(W.shape[0], device=W.device)).abs().max().detach() < 1e-3
        best = torch.gather(mean, 1, logit.argmax(1, keepdim=True)).squeeze(1).clamp(-1, 1)
        return nll, norms, best, again.abs().sum(), ortho, self.act_norm.clone()


def get_inputs():
    return [torch.rand(4, 192) * 2 - 1]


def get_init_inputs():
    return [24, 4]
