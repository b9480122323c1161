import torch
import torch.nn as nn
import torch.nn.functional as F


def cox_de_boor(x, knots, degree):
    """All B-spline basis values. x: (..., D), knots: (D, K) -> (..., D, K - degree - 1)."""
    x = x.unsqueeze(-1)
    basis = ((x >= knots[:, :-1]) & (x < knots[:, 1:])).to(x.dtype)
    for p in range(1, degree + 1):
        dl = knots[:, p:-1] - knots[:, : -(p + 1)]
        dr = knots[:, p + 1:] - knots[:, 1:-p]
        left = torch.where(dl > 0, (x - knots[:, : -(p + 1)]) / dl.clamp_min(1e-8), 0.0)
        right = torch.where(dr > 0, (knots[:, p + 1:] - x) / dr.clamp_min(1e-8), 0.0)
        basis = left * basis[..., :-1] + right * basis[..., 1:]
    return basis


class KANLayer(nn.Module):
    def __init__(self, d_in, d_out, grid=6, degree=3, span=2.0, adapt=0.02):
        super().__init__()
        self.degree, self.adapt, self.grid_n = degree, adapt, grid
        h = 2 * span / grid
        knots = torch.arange(-degree, grid + degree + 1) * h - span
        self.register_buffer("knots", knots.expand(d_in, -1).contiguous())
        self.spline = nn.Parameter(torch.randn(d_out, d_in, grid + degree) * 0.1)
        self.scale = nn.Parameter(torch.ones(d_out, d_in))
        self.base = nn.Linear(d_in, d_out)

    @torch.no_grad()
    def refit_grid(self, x):
        # move the knots slightly towards the data range, one range per input feature
        lo, hi = x.amin(0), x.amax(0)
        h = (hi - lo) / self.grid_n
        i = torch.arange(-self.degree, self.grid_n + self.degree + 1, device=x.device)
        target = lo[:, None] + i[None] * h[:, None]
        self.knots = torch.lerp(self.knots, target, self.adapt)

    def forward(self, x):
        b = cox_de_boor(x, self.knots, self.degree)
        w = self.spline * self.scale.unsqueeze(-1)
        y = self.base(F.silu(x)) + b.flatten(-2) @ w.flatten(1).t()
        if self.training and self.adapt:
            self.refit_grid(x.detach())
        return y

    def regulariser(self):
        l1 = self.spline.abs().mean(-1)
        p = l1 / l1.sum()
        return l1.sum(), -(p * (p + 1e-12).log()).sum()


class NURBSSurface(nn.Module):
    def __init__(self, nu, nv, degree=2):
        super().__init__()
        self.degree = degree
        gu, gv = torch.meshgrid(torch.linspace(0, 1, nu), torch.linspace(0, 1, nv), indexing="ij")
        self.ctrl = nn.Parameter(torch.stack((gu, gv, torch.sin(4 * gu) * gv), -1))
        self.w = nn.Parameter(torch.zeros(nu, nv))
        for name, n in (("ku", nu), ("kv", nv)):
            inner = torch.linspace(0, 1, n - degree + 1)
            knots = torch.cat((inner.new_zeros(degree), inner, inner.new_ones(degree)))
            self.register_buffer(name, knots[None])

    def forward(self, uv):
        uv = uv.clamp(0, 1 - 1e-5)
        bu = cox_de_boor(uv[:, :1], self.ku, self.degree).squeeze(1)
        bv = cox_de_boor(uv[:, 1:], self.kv, self.degree).squeeze(1)
        weight = F.softplus(self.w)
        coef = torch.einsum("ni,nj,ij->nij", bu, bv, weight)
        den = coef.sum((1, 2), keepdim=True)
        return torch.tensordot(coef / den, self.ctrl, dims=([1, 2], [0, 1])), coef


class Model(nn.Module):
    """KAN network with adaptive knot buffers that drives a NURBS surface evaluation."""

    def __init__(self, d_in, hidden, nu, nv):
        super().__init__()
        self.net = nn.ModuleDict({"first": KANLayer(d_in, hidden), "second": KANLayer(hidden, 2)})
        self.surface = NURBSSurface(nu, nv)

    def forward(self, x, reg_weight=1e-3):
        h = x
        reg = x.new_zeros(())
        for name, layer in self.net.items():
            h = layer(h)
            if name == "first":
                h = torch.tanh(h) * 1.8
            l1, ent = layer.regulariser()
            reg = reg + l1 + 0.1 * ent
        uv = torch.sigmoid(h)
        xyz, coef = self.surface(uv)
        partition = coef.sum((1, 2))
        return {"xyz": xyz, "uv": uv, "loss": xyz.square().mean() + reg_weight * reg,
                "partition": partition, "knots": self.net["second"].knots[:, 3:-3]}


def get_inputs():
    return [torch.randn(4096, 12)]


def get_init_inputs():
    return [12, 24, 7, 6]
