import torch
import torch.nn as nn


class Model(nn.Module):
    """One optimiser step: Newton-Schulz orthogonalised momentum for stacked matrices, AdamW for a vector."""

    def __init__(self, lr, wd, mom, steps):
        super().__init__()
        self.lr, self.wd, self.mom, self.steps = lr, wd, mom, steps

    def forward(self, w, g, buf, p, pg, m, v, step):
        buf = self.mom * buf + (1 - self.mom) * g
        u = g * (1 - self.mom) + self.mom * buf
        x = u / (u.norm(dim=(1, 2), keepdim=True) + 1e-7)
        for _ in range(self.steps):
            a = x @ x.transpose(1, 2)
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
        sc = max(1.0, w.shape[1] / w.shape[2]) ** 0.5
        w = w * (1 - self.lr * self.wd) - self.lr * sc * x
        gn = torch.sqrt(pg.square().sum() + g.square().sum())
        pg = pg * torch.clamp(1.0 / (gn + 1e-6), max=1.0)
        m = torch.lerp(m, pg, 0.1)
        v = 0.999 * v + 0.001 * pg * pg
        t = step.to(p.dtype)
        mh, vh = m / (1 - 0.9 ** t), v / (1 - 0.999 ** t)
        upd = mh / (vh.sqrt() + 1e-8)
        p = p * (1 - self.lr * self.wd) - self.lr * torch.where(m * pg > 0, upd, 0.5 * upd)
        return w, buf, p, m, v


def get_inputs():
    n = 1000003
    return [torch.randn(10, 384, 635), torch.randn(10, 384, 635), torch.randn(10, 384, 635),
            torch.randn(n), torch.randn(n), torch.randn(n) * 0.1, torch.rand(n) * 0.01 + 1e-4,
            torch.randint(2, 1000, (1,))]


def get_init_inputs():
    return [0.02, 0.1, 0.95, 5]
