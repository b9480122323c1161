import math
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.nn.utils.parametrize as parametrize


class ActNorm(nn.Module):
    """Data-dependent initialisation on the first call, guarded by a bool buffer."""

    def __init__(self, dim):
        super().__init__()
        self.loc, self.log_s = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x, reverse=False):
        if not reverse and not self.ready:
            with torch.no_grad():
                self.loc.data.copy_(-x.mean(0))
                self.log_s.data.copy_(-(x.std(0) + 1e-6).log())
                self.ready.fill_(True)
        if reverse:
            return x * (-self.log_s).exp() - self.loc, -self.log_s.sum()
        return (x + self.loc) * self.log_s.exp(), self.log_s.sum()


class UnitLower(nn.Module):
    def forward(self, w):
        return w.tril(-1) + torch.eye(w.shape[0], dtype=w.dtype, device=w.device)


class LULinear(nn.Module):
    def __init__(self, dim, seed):
        super().__init__()
        perm = torch.tensor([(i * 5 + seed) % dim for i in range(dim)])
        for name, value in (("perm", perm), ("inv_perm", perm.argsort())):
            self.register_buffer(name, value)
        self.lower, self.upper = (nn.Parameter(torch.randn(dim, dim) * 0.05) for _ in range(2))
        self.log_d = nn.Parameter(torch.zeros(dim))
        parametrize.register_parametrization(self, "lower", UnitLower())

    def forward(self, x, reverse=False):
        U = self.upper.triu(1) + torch.diag(self.log_d.exp())
        if not reverse:
            return F.linear(F.linear(x[:, self.perm], U), self.lower), self.log_d.sum()
        y = torch.linalg.solve_triangular(self.lower, x.t(), upper=False, unitriangular=True)
        y = torch.linalg.solve_triangular(U, y, upper=True).t()
        return y[:, self.inv_perm], -self.log_d.sum()


class Coupling(nn.Module):
    def __init__(self, dim, hidden, ctx_dim, flip):
        super().__init__()
        self.flip, self.half = flip, dim // 2
        self.net = nn.Sequential(nn.Linear(self.half + ctx_dim, hidden), nn.SiLU(),
                                 nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, dim))
        nn.init.normal_(self.net[-1].weight, std=0.02)
        self.cap = nn.Parameter(torch.tensor(1.5))

    def forward(self, x, ctx=None, reverse=False):
        a, b = x.split(self.half, dim=1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a if ctx is None else torch.cat((a, ctx), 1)).chunk(2, 1)
        s = self.cap * torch.tanh(s / self.cap)
        b = (b - t) * (-s).exp() if reverse else b * s.exp() + t
        out = torch.empty_like(x)
        parts = [out.narrow(1, 0, self.half), out.narrow(1, self.half, self.half)]
        for part, val in zip(reversed(parts) if self.flip else parts, (a, b)):
            part.copy_(val)
        return out, s.sum(1) * (-1 if reverse else 1)


class Model(nn.Module):
    """Conditional Glow-like flow with a Gaussian-mixture base, its inverse and responsibilities."""

    def __init__(self, dim, hidden, ctx_dim, depth, components):
        super().__init__()
        self.steps = nn.ModuleList()
        for i in range(depth):
            self.steps.append(nn.ModuleDict({
                "norm": ActNorm(dim), "lu": LULinear(dim, i), "cpl": Coupling(dim, hidden, ctx_dim, i % 2 == 1)}))
        self.means = nn.Parameter(torch.randn(components, dim))
        self.tril = nn.Parameter(torch.eye(dim).repeat(components, 1, 1))
        self.mix = nn.Linear(ctx_dim, components)

    def base_logp(self, z, ctx):
        L = self.tril.tril()
        diff = (z[:, None] - self.means).permute(1, 2, 0)
        m = torch.linalg.solve_triangular(L, diff, upper=False).square().sum(1).t()
        logdet = L.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
        lp = -0.5 * (m + z.shape[1] * math.log(2 * math.pi)) - logdet
        joint = lp + self.mix(ctx).log_softmax(-1)
        return joint.logsumexp(-1), joint.softmax(-1)

    def run(self, x, ctx, reverse=False):
        total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for step in (reversed(self.steps) if reverse else self.steps):
            for key in (("cpl", "lu", "norm") if reverse else ("norm", "lu", "cpl")):
                kw = {"ctx": ctx} if key == "cpl" else {}
                x, ld = step[key](x, reverse=reverse, **kw)
                total = total + ld
        return x, total

    def forward(self, x, ctx):
        with parametrize.cached():
            z, logdet = self.run(x, ctx)
            back, inv_logdet = self.run(z, ctx, reverse=True)
        lp, resp = self.base_logp(z, ctx)
        logp = lp.double() + logdet
        bpd = -logp.mean().float() / (x.shape[1] * math.log(2))
        return bpd, z, back, (logdet + inv_logdet).float(), resp, resp.detach().argmax(1)


def get_inputs():
    return [torch.randn(3072, 12) * 2 + 0.5, torch.randn(3072, 6)]


def get_init_inputs():
    return [12, 64, 6, 4, 5]
