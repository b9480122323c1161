import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class VelocityNet(nn.Module):
    def __init__(self, dim, hidden, t_dim):
        super().__init__()
        self.t_dim = t_dim
        self.inp = nn.Linear(dim, hidden)
        self.film = nn.ModuleList(nn.Linear(t_dim, 2 * hidden) for _ in range(3))
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(3))
        self.out = nn.Linear(hidden, dim)

    def forward(self, x, t):
        half = self.t_dim // 2
        f = torch.exp(torch.arange(half, device=x.device, dtype=x.dtype) * -(math.log(1e4) / (half - 1)))
        e = t[:, None] * 1000.0 * f[None, :]
        e = torch.cat((e.sin(), e.cos()), dim=-1)
        h = self.inp(x)
        for film, lin in zip(self.film, self.layers):
            gamma, beta = film(e).chunk(2, -1)
            r = F.layer_norm(h, h.shape[-1:])
            h = h + lin(F.silu(r * (1 + gamma) + beta))
        return self.out(h)


class Model(nn.Module):
    """Rectified flow matching with logit-normal times plus a consistency term against an Euler teacher step."""

    def __init__(self, dim, hidden, t_dim, segments):
        super().__init__()
        self.net = VelocityNet(dim, hidden, t_dim)
        self.ema = VelocityNet(dim, hidden, t_dim)
        self.ema.load_state_dict(self.net.state_dict())
        for p in self.ema.parameters():
            p.requires_grad_(False)
        self.segments = segments

    @staticmethod
    def pseudo_huber(a, b, c=0.03):
        d2 = (a - b).pow(2).flatten(1).sum(-1)
        return torch.sqrt(d2 + c * c) - c

    def forward(self, x1, x0, u):
        t = torch.sigmoid(u)
        tt = t.view(-1, *([1] * (x1.dim() - 1)))
        xt = torch.lerp(x0, x1, tt)
        v = self.net(xt, t)
        flow = F.mse_loss(v, x1 - x0, reduction="none").mean(-1)

        # consistency in segments: end point predicted from t and from t + dt
        edges = torch.linspace(0.0, 1.0, self.segments + 1, device=x1.device)
        seg = torch.bucketize(t, edges[1:-1], right=True)
        t_end = edges[seg + 1]
        dt = torch.minimum(torch.full_like(t, 0.02), t_end - t)
        f_t = xt + (t_end - t)[:, None] * v
        with torch.no_grad():
            x_next = xt + dt[:, None] * self.ema(xt, t)
            v_next = self.ema(x_next, t + dt)
            target = x_next + (t_end - t - dt)[:, None] * v_next
        cons = self.pseudo_huber(f_t, target)

        # loss histogram per segment
        per_seg = torch.zeros(self.segments, device=x1.device).index_add(0, seg, flow.detach())
        cnt = torch.zeros(self.segments, device=x1.device).index_add(0, seg, torch.ones_like(flow))
        weight = 1.0 / (t * (1 - t)).clamp_min(0.05)
        loss = (weight * flow).mean() + 0.1 * cons.mean()
        return loss, v, per_seg / cnt.clamp(min=1)


def get_inputs():
    return [torch.randn(37, 20), torch.randn(37, 20), torch.randn(37)]


def get_init_inputs():
    return [20, 72, 32, 4]
