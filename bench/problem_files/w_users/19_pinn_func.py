import torch
import torch.nn as nn
from torch.func import functional_call, grad, jacrev, jvp, vmap


class Net(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.l1 = nn.Linear(2, h)
        self.l2 = nn.Linear(h, h)
        self.l3 = nn.Linear(h, 1)
        self.freq = nn.Parameter(torch.ones(h))

    def forward(self, x):
        z = torch.sin(self.freq * self.l1(x))
        z = z + torch.tanh(self.l2(z))
        return self.l3(z).squeeze(-1)


class Model(nn.Module):
    """Physics informed net for Burgers' equation, per-sample gradients, one inner MAML step."""

    def __init__(self, hidden=24, nu=0.05):
        super().__init__()
        self.net = Net(hidden)
        self.log_nu = nn.Parameter(torch.tensor(nu).log())
        self.inner_lr = nn.Parameter(torch.tensor(0.05))

    def u(self, params, pt):
        return functional_call(self.net, params, (pt,))

    def forward(self, pts, boundary, values):
        params = dict(self.net.named_parameters())

        def f(pt):
            return self.u(params, pt)

        val = vmap(f)(pts)
        du = vmap(grad(f))(pts)
        hess = vmap(jacrev(grad(f)))(pts)
        u_t, u_x = du[:, 0], du[:, 1]
        resid = u_t + val * u_x - self.log_nu.exp() * hess[:, 1, 1]
        # directional derivative along the flow, forward mode
        direction = torch.stack([torch.ones_like(val), val], 1).detach()
        _, flow = jvp(lambda p: self.net(p), (pts.detach(),), (direction,))

        # inner step on the boundary data
        def inner(p, x, y):
            return (functional_call(self.net, p, (x,)) - y).pow(2).mean()

        g = grad(inner)(params, boundary, values)
        fast = {k: v - self.inner_lr * g[k] for k, v in params.items()}
        outer = inner(fast, boundary, values)

        # per sample gradients for clipping as in DP-SGD
        def sample_loss(p, x, y):
            return (functional_call(self.net, p, (x.unsqueeze(0),)).squeeze(0) - y) ** 2

        ps = vmap(grad(sample_loss), in_dims=(None, 0, 0))({k: v.detach() for k, v in params.items()}, boundary, values)
        norms = torch.stack([v.flatten(1).norm(dim=1) for v in ps.values()], 1).norm(dim=1)
        scale = torch.clamp(1.0 / (norms + 1e-6), max=1.0)
        clipped = {k: torch.tensordot(scale, v, dims=1) / len(scale) for k, v in ps.items()}
        gnorm = sum(v.square().sum() for v in clipped.values()).sqrt()
        lap = hess.diagonal(dim1=-2, dim2=-1).sum(-1)
        sens = torch.linalg.vector_norm(du, dim=-1)
        return resid.square().mean(), outer, norms, gnorm, lap, sens, flow


def get_inputs():
    return [torch.rand(96, 2), torch.rand(48, 2), torch.randn(48)]


def get_init_inputs():
    return [24, 0.05]
