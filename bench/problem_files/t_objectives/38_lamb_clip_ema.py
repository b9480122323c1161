import torch
import torch.nn as nn


def clip_by_global_norm(grads, max_norm):
    norms = [torch.linalg.vector_norm(g) for g in grads]
    total = torch.linalg.vector_norm(torch.stack(norms))
    coef = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    return [g * coef for g in grads], total


class Model(nn.Module):
    """One functional training step for a list of tensors: global clip, LAMB, cosine schedule, EMA weights."""

    def __init__(self, lr, betas, eps, weight_decay, max_norm, ema_decay, warmup, total):
        super().__init__()
        self.lr, self.betas, self.eps = lr, betas, eps
        self.wd, self.max_norm, self.ema_decay = weight_decay, max_norm, ema_decay
        self.warmup, self.total = warmup, total

    def schedule(self, step):
        warm = step / self.warmup
        prog = ((step - self.warmup) / (self.total - self.warmup)).clamp(0.0, 1.0)
        cos = 0.5 * (1 + torch.cos(torch.pi * prog))
        return self.lr * torch.where(step < self.warmup, warm, 0.05 + 0.95 * cos)

    def lamb(self, p, g, m, v, lr, step):
        b1, b2 = self.betas
        m = torch.lerp(g, m, b1)
        v = b2 * v + (1 - b2) * g * g
        m_hat = m / (1 - torch.pow(torch.as_tensor(b1), step))
        v_hat = v / (1 - torch.pow(torch.as_tensor(b2), step))
        update = m_hat / (v_hat.sqrt() + self.eps)
        if p.ndim > 1:
            update = update + self.wd * p
            w_norm = p.norm().clamp(0, 10)
            u_norm = update.norm()
            trust = torch.where((w_norm > 0) & (u_norm > 0), w_norm / u_norm, torch.ones_like(w_norm))
        else:
            trust = 1.0
        return p - lr * trust * update, m, v

    def forward(self, p0, p1, p2, g0, g1, g2, m0, m1, m2, v0, v1, v2, e0, e1, e2, step):
        params, grads = [p0, p1, p2], [g0, g1, g2]
        ms, vs, emas = [m0, m1, m2], [v0, v1, v2], [e0, e1, e2]
        grads, total_norm = clip_by_global_norm(grads, self.max_norm)
        lr = self.schedule(step)
        decay = torch.minimum(torch.tensor(self.ema_decay), (1 + step) / (10 + step))
        new_p, new_m, new_v, new_e = [], [], [], []
        for p, g, m, v, e in zip(params, grads, ms, vs, emas):
            p, m, v = self.lamb(p, g, m, v, lr, step)
            new_p.append(p)
            new_m.append(m)
            new_v.append(v)
            new_e.append(e + (1 - decay) * (p - e))
        return (*new_p, *new_m, *new_v, *new_e, total_norm)


def get_inputs():
    shapes = [(301, 210), (210,), (64, 32, 3, 3)]
    p = [torch.randn(s) * 0.1 for s in shapes]
    g = [torch.randn(s) for s in shapes]
    m = [torch.randn(s) * 0.1 for s in shapes]
    v = [torch.rand(s) * 0.1 + 0.01 for s in shapes]
    e = [x + 0.01 * torch.randn_like(x) for x in p]
    return p + g + m + v + e + [torch.tensor(37.0)]


def get_init_inputs():
    return [2e-3, (0.9, 0.999), 1e-6, 0.01, 1.0, 0.999, 100.0, 1000.0]
