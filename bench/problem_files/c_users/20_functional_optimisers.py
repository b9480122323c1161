import torch
import torch.nn as nn


class Model(nn.Module):
    """Optimisers as pure functions: Adam, Lion, Muon's Newton-Schulz, Shampoo-like, trust ratio, clipping, renorm, Sinkhorn, CG, power iteration."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.log_lr = nn.Parameter(torch.tensor([-3.0, -4.0, -2.0]))

    def adam(self, p, g, m, v, step, lr):
        m = m.lerp(g, 0.1)
        v = torch.addcmul(v * 0.99, g, g, value=0.01)
        bc1, bc2 = 1 - 0.9 ** step, 1 - 0.99 ** step
        denom = (v.sqrt() / bc2 ** 0.5).add(1e-2)
        p = p * (1 - 0.01 * lr)
        return p - lr * (m / bc1) / denom, m, v

    def newton_schulz(self, g, iters=4):
        x = g / (g.norm(dim=(-2, -1), keepdim=True) + 1e-3)
        flip = x.shape[-2] > x.shape[-1]
        x = x.mT if flip else x
        for _ in range(iters):
            a = x @ x.mT
            b = torch.baddbmm(a, a, a, beta=-4.775, alpha=2.0315)
            x = 3.4445 * x + b @ x
        return x.mT if flip else x

    def forward(self, p, g, cost, spd, b, step):
        lr = self.log_lr.exp()
        gn = torch.linalg.vector_norm(g, 2, dim=(1, 2), keepdim=True)
        g = g * torch.clamp(2.0 / (gn + 1e-6), max=1.0)
        m, v = torch.zeros_like(p), torch.full_like(p, 0.01)
        w = p
        t = step.to(p.dtype)
        for i in range(self.steps):
            w, m, v = self.adam(w, g + 0.05 * w, m, v, t + i + 1, lr[0])
        lion = p - lr[1] * torch.sign(g.detach()) - lr[1] * 0.1 * p
        muon = p - lr[2] * self.newton_schulz(g) * max(1, p.shape[-2] / p.shape[-1]) ** 0.5
        row, col = g.square().mean(-1) + 1e-3, g.square().mean(-2) + 1e-3
        fact = g * (row.mean(-1, keepdim=True).sqrt() / row.sqrt())[..., None] / col.sqrt()[:, None, :]
        ratio = p.norm(p=2, dim=-1) / fact.norm(p=3, dim=-1).clamp(min=1e-2)
        lamb = p - 0.01 * torch.where(ratio > 0, ratio, 1.0)[..., None] * fact
        capped = torch.renorm(p, p=1, dim=1, maxnorm=4.0)
        nrm = torch.stack([p.norm(p=q, dim=-1) for q in (1, 2, 3, 1.5, float("inf"))], -1)

        lk = -cost / 0.5
        f, h = torch.zeros_like(cost[..., 0]), torch.zeros_like(cost[..., 0, :])
        for _ in range(7):
            f = -torch.logsumexp(lk + h[:, None, :], -1)
            h = -torch.logsumexp(lk + f[..., None], -2)
        plan = (lk + f[..., None] + h[:, None, :]).exp() * cost

        a = spd @ spd.mT / spd.shape[-1] + torch.eye(spd.shape[-1], device=p.device, dtype=p.dtype)
        x, r = torch.zeros_like(b), b
        d, rs = r, (r * r).sum(1, keepdim=True)
        for _ in range(6):
            ad = torch.einsum("bij,bj->bi", a, d)
            alpha = rs / ((d * ad).sum(1, keepdim=True) + 1e-6)
            x, r = torch.addcmul(x, alpha, d), torch.addcmul(r, alpha, ad, value=-1)
            new = (r * r).sum(1, keepdim=True)
            d, rs = r + new / (rs + 1e-6) * d, new
        u = torch.ones_like(b)
        for _ in range(6):
            u = torch.nn.functional.normalize(torch.matmul(a, u.unsqueeze(-1)).squeeze(-1), dim=-1)
        ray = torch.einsum("bi,bij,bj->b", u, a, u)
        return {"adam": [w, m, v], "lion": lion, "muon": muon, "lamb": lamb, "capped": capped, "norms": nrm, "plan": plan, "cg": (x, ray)}


def get_inputs():
    return [torch.randn(5, 37, 23), torch.randn(5, 37, 23) * 0.3, torch.rand(7, 31, 29), torch.randn(11, 17, 17), torch.randn(11, 17), torch.tensor(3)]


def get_init_inputs():
    return [3]
