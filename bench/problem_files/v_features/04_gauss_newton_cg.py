import torch
import torch.nn as nn
from torch.func import functional_call, jvp, vjp


class Net(nn.Module):
    def __init__(self, din, hidden, dout):
        super().__init__()
        self.inp = nn.Linear(din, hidden)
        self.mid = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, dout)

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        h = h + torch.erf(self.mid(h))
        return self.out(h)


def dot(a, b):
    return sum((a[k] * b[k]).sum() for k in a)


class Model(nn.Module):
    """Hessian-free training step: Gauss-Newton products as jvp then vjp of a
    functional_call, preconditioned conjugate gradients over dicts of parameters."""

    def __init__(self, din, hidden, dout, cg_steps, damping):
        super().__init__()
        self.net = Net(din, hidden, dout)
        self.cg_steps = cg_steps
        self.damping = damping

    def forward(self, x, label):
        params = dict(self.net.named_parameters())

        def f(p):
            return functional_call(self.net, p, (x,))

        z, pull = vjp(f, params)
        prob = z.softmax(-1)
        onehot = nn.functional.one_hot(label, z.shape[-1]).to(z.dtype)
        n = z.shape[0]
        (g,) = pull((prob - onehot) / n)

        def gvp(v):
            _, jv = jvp(f, (params,), (v,))
            hjv = prob * (jv - (prob * jv).sum(-1, keepdim=True)) / n
            (out,) = pull(hjv)
            return {k: out[k] + self.damping * v[k] for k in v}

        pre = {k: (g[k].square() + self.damping).pow(0.75) for k in g}
        d = {k: torch.zeros_like(v) for k, v in params.items()}
        r = {k: -v for k, v in g.items()}
        s = {k: r[k] / pre[k] for k in r}
        p = dict(s)
        rs = dot(r, s)
        residuals = []
        for _ in range(self.cg_steps):
            ap = gvp(p)
            alpha = rs / dot(p, ap)
            d = {k: torch.addcmul(d[k], alpha, p[k]) for k in d}
            r = {k: torch.addcmul(r[k], alpha, ap[k], value=-1.0) for k in r}
            s = {k: r[k] / pre[k] for k in r}
            new = dot(r, s)
            p = {k: s[k] + (new / rs) * p[k] for k in p}
            rs = new
            residuals.append(rs.sqrt())
        stepped = {k: params[k] + d[k] for k in params}
        before = nn.functional.cross_entropy(z, label)
        after = nn.functional.cross_entropy(f(stepped), label)
        model = dot(g, d) + 0.5 * dot(d, gvp(d))
        return before, after, (after - before) / model, torch.stack(residuals), list(stepped.values())


def get_inputs():
    return [torch.randn(251, 23), torch.randint(0, 9, (251,))]


def get_init_inputs():
    return [23, 51, 9, 5, 1e-2]
