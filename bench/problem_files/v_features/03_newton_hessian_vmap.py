import torch
import torch.nn as nn
from torch.func import grad, hessian, vmap


def objective(w, x, y, m, lam):
    """Penalised logistic likelihood of one task, padded rows masked by m."""
    logit = x @ w[:-1] + w[-1]
    nll = nn.functional.softplus(logit) - y * logit
    return (nll * m).sum() / m.sum() + 0.5 * lam * (w[:-1] ** 2).sum() + 1e-3 * w[-1] ** 2


class Model(nn.Module):
    """Damped Newton for many logistic regressions at once: vmap of grad and hessian,
    a Cholesky solve per task, and a last implicit-differentiation step with gradients."""

    def __init__(self, tasks, dim, steps):
        super().__init__()
        self.steps = steps
        self.log_lam = nn.Parameter(torch.linspace(-4.0, -1.0, tasks))
        self.w0 = nn.Parameter(torch.zeros(tasks, dim + 1))

    def forward(self, x, y, lengths):
        m = (torch.arange(x.shape[1])[None] < lengths[:, None]).to(x.dtype)
        y = y.to(x.dtype)
        lam = self.log_lam.exp()
        g_of = vmap(grad(objective))
        h_of = vmap(hessian(objective))
        w = self.w0
        norms = []
        for i in range(self.steps):
            g = g_of(w, x, y, m, lam)
            h = h_of(w, x, y, m, lam)
            damp = 1.0 if i > 0 else 0.7
            factor = torch.linalg.cholesky(h)
            step = torch.cholesky_solve(g.unsqueeze(-1), factor).squeeze(-1)
            decrement = (g * step).sum(-1)
            w = w - damp * step
            norms.append(decrement)
            if i == 2:  # from here on only a refinement, without history
                w = w.detach()
        p = torch.special.expit(torch.einsum("tnd,td->tn", x, w[:, :-1]) + w[:, -1:])
        logdet = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        hits = ((p > 0.5) == (y > 0.5)) & m.bool()
        return w, torch.stack(norms, 1), logdet, (p * m).mT, hits.sum(1)


def get_inputs():
    t, n, d = 7, 211, 9
    x = torch.randn(t, n, d)
    w = torch.randn(t, d)
    y = (torch.einsum("tnd,td->tn", x, w) + torch.randn(t, n)) > 0
    return [x, y, torch.tensor([211, 190, 144, 101, 211, 77, 63])]


def get_init_inputs():
    return [7, 9, 4]
