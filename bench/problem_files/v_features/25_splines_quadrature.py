import torch
import torch.nn as nn


class Model(nn.Module):
    """Evaluation of one-dimensional functions in three bases - de Boor's recursion, Clenshaw on
    Chebyshev nodes, Horner polynomials - with derivatives, Gauss-Legendre panels against the
    trapezoid rule, and float32 queries of float64 coefficients (some of zero size)."""

    def __init__(self, degree, controls, cheb, nodes):
        super().__init__()
        self.degree = degree
        inner = torch.linspace(0, 1, controls - degree + 1, dtype=torch.float64) ** 1.2
        knots = torch.cat([torch.zeros(degree, dtype=torch.float64), inner, torch.ones(degree, dtype=torch.float64)])
        self.register_buffer("knots", knots)
        j = torch.arange(1, nodes, dtype=torch.float64)
        off = j / torch.sqrt(4 * j * j - 1)
        x, v = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
        self.register_buffer("gx", x)
        self.register_buffer("gw", 2 * v[0] ** 2)
        k = torch.arange(cheb, dtype=torch.float64)
        theta = (k + 0.5) * (torch.pi / cheb)
        self.register_buffer("cheb_x", torch.cos(theta))
        self.register_buffer("cheb_t", torch.cos(torch.outer(k, theta)) * (2.0 / cheb))
        self.control = nn.Parameter(torch.randn(3, controls, dtype=torch.float64))

    def de_boor(self, control, t):
        """control (C, n), t any shape -> (C, *t.shape)."""
        p, n = self.degree, control.shape[1]
        t = t.to(torch.float64)
        span = torch.bucketize(t.detach(), self.knots[p + 1 : n], right=True) + p
        d = [control[:, span - p + i] for i in range(p + 1)]
        for r in range(1, p + 1):
            for i in range(p, r - 1, -1):
                lo = self.knots[span - p + i]
                hi = self.knots[span + 1 + i - r]
                d[i] = torch.lerp(d[i - 1], d[i], (t - lo) / (hi - lo))
        return d[p]

    def derivative(self, control):
        p, n = self.degree, control.shape[1]
        width = self.knots[p + 1 : p + n] - self.knots[1:n]
        return p * torch.diff(control, dim=1) / width

    def clenshaw(self, coef, x):
        b1 = b2 = torch.zeros_like(x).unsqueeze(0)
        for c in coef.unbind(1)[:0:-1]:
            b1, b2 = c.view(-1, 1) + 2 * x * b1 - b2, b1
        return 0.5 * coef[:, :1] + x * b1 - b2

    def horner(self, coef, x):
        out = torch.zeros(1, dtype=x.dtype)  # one element, broadcast
        for i in range(coef.shape[0] - 1, -1, -1):
            out = torch.addcmul(coef[i], out, x)
        return out

    def forward(self, t, poly):
        curve = self.de_boor(self.control, t)
        slope = self.derivative(self.control)
        speed = torch.linalg.vector_norm(slope, dim=0)
        at_nodes = self.de_boor(self.control, (self.cheb_x + 1) / 2)
        coef = at_nodes @ self.cheb_t.mT
        again = self.clenshaw(coef, 2.0 * t.double().flatten() - 1)
        defect = (again - curve.flatten(1)).abs()
        nothing = self.de_boor(self.control, t[:0])

        edges = self.knots[self.degree : -self.degree]
        half, mid = torch.diff(edges) / 2, (edges[1:] + edges[:-1]) / 2
        pts = mid[:, None] + half[:, None] * self.gx
        values = self.de_boor(self.control, pts)
        panel = torch.einsum("cpq,q,p->cp", values.square(), self.gw, half)
        grid = torch.linspace(0, 1, 401, dtype=torch.float64)
        dense = self.de_boor(self.control, grid)
        rough = torch.trapezoid(dense.square(), grid, dim=1)
        along = torch.cumulative_trapezoid(torch.hypot(dense[0], dense[1]), dx=1 / 400)
        (numeric,) = torch.gradient(dense, spacing=(grid,), dim=1, edge_order=2)
        flat = t.flatten()
        value = self.horner(poly.unsqueeze(1), flat) / (1 + self.horner(poly[::2, None].abs(), flat.square()))
        basis = torch.special.chebyshev_polynomial_t(flat.detach().unsqueeze(1) * 2 - 1, torch.arange(5))
        return curve, speed, coef.float(), defect.amax(1), nothing, panel, rough, along, numeric, value, basis


def get_inputs():
    return [torch.rand(61, 37)[:, ::2], torch.randn(7)]


def get_init_inputs():
    return [3, 19, 25, 7]
