import math

import torch
import torch.nn as nn
from torch.func import functional_call, grad, jacfwd, jvp, vmap


class VectorField(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.l1 = nn.Linear(dim + 1, hidden)
        self.l2 = nn.Linear(hidden, hidden)
        self.l3 = nn.Linear(hidden, dim)
        self.gate = nn.Linear(1, hidden)
        self.register_buffer("n_evals", torch.zeros((), dtype=torch.long))

    def forward(self, x, t):
        tt = t.reshape(1)
        h = torch.tanh(self.l1(torch.cat((x, tt), -1)))
        h = torch.tanh(self.l2(h) * torch.sigmoid(self.gate(tt)))
        return self.l3(h)


def mixture_logp(x, means, log_std):
    z = (x - means) * torch.exp(-log_std)
    lp = -0.5 * z.square().sum(-1) - log_std.sum(-1) - 0.5 * x.shape[-1] * math.log(2 * math.pi)
    return torch.logsumexp(lp, 0) - math.log(means.shape[0])


class Model(nn.Module):
    """Continuous flow: RK4 steps, divergence by jacfwd and by jvp probes, score by vmap(grad)."""

    def __init__(self, dim, hidden, components, steps):
        super().__init__()
        self.field = VectorField(dim, hidden)
        ang = torch.arange(components) * (2 * math.pi / components)
        means = torch.zeros(components, dim)
        means[:, 0], means[:, 1] = 2 * ang.cos(), 2 * ang.sin()
        self.means = nn.Parameter(means)
        self.log_std = nn.Parameter(torch.full((components, dim), -0.2))
        self.steps, self.dim = steps, dim
        signs = torch.tensor([[1.0 if (i >> j) & 1 else -1.0 for j in range(dim)] for i in range(2 ** dim)])
        self.register_buffer("probes", signs)

    def dynamics(self, params, exact=True):
        def single(x, t):
            f = lambda y: functional_call(self.field, params, (y, t))
            if exact:
                return f(x), torch.diagonal(jacfwd(f)(x)).sum()

            def one(v):
                _, jv = jvp(f, (x,), (v,))
                return (v * jv).sum()

            return f(x), vmap(one)(self.probes).mean()
        return vmap(single, in_dims=(0, None))

    def rk4(self, fn, x, t0, t1, steps):
        dt = (t1 - t0) / steps
        logdet = x.new_zeros(x.shape[0])
        traj = [x]
        for i in range(steps):
            t = torch.as_tensor(t0 + i * dt, dtype=x.dtype, device=x.device)
            k1, d1 = fn(x, t)
            k2, d2 = fn(x + 0.5 * dt * k1, t + 0.5 * dt)
            k3, d3 = fn(x + 0.5 * dt * k2, t + 0.5 * dt)
            k4, d4 = fn(x + dt * k3, t + dt)
            x = x + dt / 6 * (k1 + 2 * (k2 + k3) + k4)
            logdet = logdet + dt / 6 * (d1 + 2 * d2 + 2 * d3 + d4)
            traj.append(x)
        return x, logdet, traj

    def forward(self, x, t_end: float = 1.0):
        params = dict(self.field.named_parameters())
        z, logdet, traj = self.rk4(self.dynamics(params), x, 0.0, t_end, self.steps)
        logp_z = vmap(mixture_logp, in_dims=(0, None, None))(z, self.means, self.log_std)
        logp = logp_z + logdet
        score = vmap(grad(mixture_logp), in_dims=(0, None, None))(z, self.means, self.log_std)
        # the average over all sign probes is the exact trace: the two must agree
        _, ld2, _ = self.rk4(self.dynamics(params, exact=False), x[:16], 0.0, t_end, 1)
        back, ld_back, _ = self.rk4(self.dynamics(params), z, t_end, 0.0, self.steps)
        self.field.n_evals += 8 * self.steps + 4
        kinetic = sum(((b - a) * self.steps).square().sum(1).mean() for a, b in zip(traj, traj[1:]))
        return {"nll": -logp.mean() + 0.01 * kinetic, "z": z, "score": score,
                "probe_logdet": ld2, "cycle": (back - x).abs().mean(), "dets": logdet + ld_back}


def get_inputs():
    return [torch.randn(1024, 3)]


def get_init_inputs():
    return [3, 48, 6, 3]
