import torch
import torch.nn as nn
from torch.func import functional_call, grad, jvp, vmap


class Model(nn.Module):
    """Per-sample gradients, a Hessian-vector product and one MAML inner step through torch.func."""

    def __init__(self, d, h):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, h), nn.Tanh(), nn.Linear(h, 1))
        self.log_lr = nn.Parameter(torch.tensor(-2.3))

    def _loss(self, params, x, y):
        p = functional_call(self.net, params, (x,)).squeeze(-1)
        return ((p - y) ** 2).mean()

    def forward(self, xs, ys, xq, v):
        params = dict(self.net.named_parameters())

        def single(p, x, y):
            return self._loss(p, x[None], y[None])

        per_sample = vmap(grad(single), in_dims=(None, 0, 0))(params, xs, ys)
        sq = sum(g.flatten(1).pow(2).sum(1) for g in per_sample.values())
        clip = torch.clamp(1.0 / (sq + 1e-3).sqrt(), max=1.0)
        clipped = {k: torch.einsum("n,n...->...", clip, g) / xs.shape[0] for k, g in per_sample.items()}

        lr = self.log_lr.exp()
        fast = {k: params[k] - lr * clipped[k] for k in params}
        adapted = functional_call(self.net, fast, (xq,)).squeeze(-1)

        def f(x):
            return functional_call(self.net, params, (x,)).sum()

        hvp = jvp(grad(f), (xq,), (v,))[1]
        diff = vmap(lambda a, b: (a * b).sum() / (1 + a.norm() * b.norm()), in_dims=(0, 0))(hvp, v)
        return adapted, clip, hvp, diff


def get_inputs():
    return [torch.randn(37, 13), torch.randn(37), torch.randn(53, 13), torch.randn(53, 13)]


def get_init_inputs():
    return [13, 29]
