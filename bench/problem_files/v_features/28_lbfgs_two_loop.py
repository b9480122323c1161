import torch
import torch.nn as nn
from torch.func import grad_and_value, vmap


class Model(nn.Module):
    """L-BFGS over a list of parameters (matrix factors, biases, a scalar): two-loop recursion
    with a ring of pairs, a vmapped backtracking search over step sizes made by ldexp, and
    curvature safeguards by where. The objective is a robust masked factorisation."""

    def __init__(self, rows, cols, rank, steps, memory, trials):
        super().__init__()
        self.steps, self.memory = steps, memory
        self.u = nn.Parameter(0.3 * torch.randn(rows, rank))
        self.v = nn.Parameter(0.3 * torch.randn(cols, rank))
        self.row_bias = nn.Parameter(torch.zeros(rows, 1))
        self.log_scale = nn.Parameter(torch.tensor(0.0))
        self.register_buffer("halvings", -torch.arange(trials, dtype=torch.int32))

    @staticmethod
    def objective(params, data, seen):
        u, v, bias, log_scale = params
        r = (torch.einsum("ir,jr->ij", u, v) + bias - data) * torch.exp(-log_scale)
        robust = torch.sqrt(1 + r * r) - 1
        fit = torch.where(seen, robust + log_scale, torch.zeros_like(r)).sum() / seen.sum()
        return fit + 1e-3 * (u.square().sum() + v.square().sum()) / 50 + 1e-2 * log_scale**2

    @staticmethod
    def dot(a, b):
        return torch.stack([(x * y).sum() for x, y in zip(a, b)]).sum()

    def direction(self, g, ss, ys, rhos):
        q = [x.clone() for x in g]
        alphas = []
        for s, y, rho in reversed(list(zip(ss, ys, rhos))):
            a = rho * self.dot(s, q)
            q = [torch.sub(qi, a * yi) for qi, yi in zip(q, y)]
            alphas.insert(0, a)
        if ss:
            q = [self.dot(ss[-1], ys[-1]) / self.dot(ys[-1], ys[-1]) * x for x in q]
        for (s, y, rho), a in zip(zip(ss, ys, rhos), alphas):
            b = rho * self.dot(y, q)
            q = [x + (a - b) * si for x, si in zip(q, s)]
        return [-x for x in q]

    def forward(self, data, seen, weights):
        params = [self.u, self.v, self.row_bias, self.log_scale]
        f = grad_and_value(self.objective)
        data = data + weights.unsqueeze(0)
        g, value = f(params, data, seen)
        ss, ys, rhos = [], [], []
        values, sizes = [value], []
        for it in range(self.steps):
            d = self.direction(g, ss, ys, rhos)
            slope = self.dot(g, d)
            sizes_here = torch.ldexp(torch.full((), 2.0 if it else 8.0, dtype=data.dtype), self.halvings)
            tried = vmap(lambda a: self.objective([p + a * x for p, x in zip(params, d)], data, seen))(sizes_here)
            good = tried.detach() <= value.detach() + 1e-4 * sizes_here * slope.detach()
            first = torch.where(good, torch.arange(len(good)), len(good) - 1).amin()
            step = sizes_here[first]
            new = [p + step * x for p, x in zip(params, d)]
            g_new, value = f(new, data, seen)
            s = [a - b for a, b in zip(new, params)]
            y = [a - b for a, b in zip(g_new, g)]
            sy = self.dot(s, y)
            fine = sy > 1e-10
            rho = torch.where(fine, 1.0 / torch.where(fine, sy, torch.ones_like(sy)), torch.zeros_like(sy))
            ss, ys, rhos = (ss + [s])[-self.memory :], (ys + [y])[-self.memory :], (rhos + [rho])[-self.memory :]
            params, g = new, g_new
            values.append(value)
            sizes.append(step)
        filled = torch.where(seen, data, params[0] @ params[1].mT + params[2])
        return params, torch.stack(values), torch.stack(sizes), torch.stack([x.norm() for x in g]), filled


def get_inputs():
    r, c = 83, 57
    data = torch.randn(r, 4) @ torch.randn(4, c) + 0.3 * torch.randn(r, c)
    return [data, torch.rand(r, c) < 0.6, 0.1 * torch.randn(c)]


def get_init_inputs():
    return [83, 57, 4, 6, 3, 7]
