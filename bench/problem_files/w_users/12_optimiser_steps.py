import torch
import torch.nn as nn


@torch.no_grad()
def newton_schulz(G, steps=4):
    a, b, c = 3.4445, -4.7750, 2.0315
    X = G.to(torch.float32)
    transposed = X.shape[-2] > X.shape[-1]
    if transposed:
        X = X.mT
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        A = X @ X.mT
        B = torch.addmm(A, A, A, beta=b, alpha=c)
        X = torch.addmm(X, B, X, beta=a)
    return X.mT if transposed else X


class Model(nn.Module):
    """A tiny learned-loss step, then a series of classic optimiser updates on the given grads.
    State lives in buffers and is updated in place."""

    def __init__(self, rows, cols):
        super().__init__()
        self.lr = nn.Parameter(torch.tensor(-4.0))
        self.wd = nn.Parameter(torch.full((1,), 0.01))
        for name in ("m", "v", "mom", "acc", "trust"):
            self.register_buffer(name, torch.zeros(rows, cols))
        self.register_buffer("vr", torch.zeros(rows))
        self.register_buffer("vc", torch.zeros(cols))
        self.register_buffer("t", torch.zeros((), dtype=torch.int32))

    def clip(self, g, max_norm=1.0):
        n = torch.linalg.vector_norm(g)
        return g * torch.clamp(max_norm / (n + 1e-6), max=1.0), n

    def adamw(self, w, g, lr):
        b1, b2 = 0.9, 0.99
        with torch.no_grad():
            self.m.mul_(b1).add_(g, alpha=1 - b1)
            self.v.mul_(b2).addcmul_(g, g, value=1 - b2)
        t = self.t.to(torch.float32)
        mh = self.m / (1 - b1 ** t)
        vh = self.v / (1 - torch.pow(b2, t))
        w = w * (1 - lr * self.wd)
        return w - lr * mh / (vh.sqrt() + 1e-8)

    def adafactor(self, w, g, lr):
        g2 = g.detach() ** 2 + 1e-30
        beta = 1 - (self.t.float() + 1) ** -0.8
        self.vr.copy_(beta * self.vr + (1 - beta) * g2.mean(-1))
        self.vc.copy_(torch.lerp(g2.mean(-2), self.vc, beta))
        r = (self.vr / self.vr.mean()).rsqrt().unsqueeze(-1)
        u = g * r * self.vc.rsqrt()[None]
        u = u / torch.maximum(torch.ones_like(u[0, 0]), u.pow(2).mean().sqrt())
        return torch.sub(w, lr * u)

    def lamb(self, w, g, lr):
        upd = g / (g.abs().mean() + 1e-6) + self.wd * w
        wn, un = w.norm(2, 1, keepdim=True), upd.norm(2, 1, keepdim=True)
        ratio = torch.where(wn > 0, torch.where(un > 0, wn / un, torch.ones_like(wn)), torch.ones_like(wn))
        self.trust.copy_(ratio.detach().expand_as(self.trust))
        return w - lr * ratio.clamp(0, 10) * upd

    def forward(self, w, g):
        lr = torch.nn.functional.softplus(self.lr)
        self.t += 1
        g, gnorm = self.clip(g)
        gd = g.detach()
        outs = {}
        outs["adamw"] = self.adamw(w, gd, lr)
        outs["adafactor"] = self.adafactor(w, g, lr)
        outs["lamb"] = self.lamb(w, g, lr)
        # nesterov sgd
        self.mom.mul_(0.9).add_(gd)
        outs["sgd"] = torch.add(w, (gd + 0.9 * self.mom) * lr, alpha=-1)
        # adagrad
        self.acc.addcmul_(gd, gd)
        outs["adagrad"] = torch.addcdiv(w, gd * lr, self.acc.sqrt().add(1e-10), value=-1)
        # muon
        outs["muon"] = w - lr * newton_schulz(self.mom) * max(1, w.shape[0] / w.shape[1]) ** 0.5
        # lion
        outs["lion"] = w - lr * (torch.sign(0.9 * self.m + 0.1 * gd) + self.wd * w)
        # lookahead average and bf16 stochastic-like rounding by bit masks
        avg = torch.stack(list(outs.values())).mean(0)
        bits = avg.detach().view(torch.int32)
        rounded = torch.bitwise_and(bits + 0x7FFF + ((bits >> 16) & 1), ~0xFFFF).view(torch.float32)
        outs["bf16"] = avg + (rounded - avg).detach()
        kept = torch.topk(gd.abs().flatten(), gd.numel() // 10).values[-1]
        sparse = torch.where(gd.abs() >= kept, gd, 0.0)
        resid = gd - sparse
        outs["ef_norm"] = resid.norm() / gnorm
        return outs


def get_inputs():
    return [torch.randn(224, 128), torch.randn(224, 128)]


def get_init_inputs():
    return [224, 128]
