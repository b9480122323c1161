import torch
import torch.nn as nn
import torch.nn.functional as F


def squash(s, dim=-1, eps=1e-8):
    n2 = s.square().sum(dim, keepdim=True)
    return n2 / (1 + n2) * s * torch.rsqrt(n2 + eps)


class CumulativeBN(nn.Module):
    """BatchNorm with a bias-corrected EMA; training normalises with a blend of batch and running stats."""

    def __init__(self, ch, momentum=0.1):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(ch)), nn.Parameter(torch.zeros(ch))
        self.momentum = momentum
        self.register_buffer("mu", torch.zeros(ch))
        self.register_buffer("var", torch.zeros(ch))
        self.register_buffer("corr", torch.zeros(()))

    def forward(self, x):
        bm, bv = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        if self.training:
            m = self.momentum
            self.mu.mul_(1 - m).add_(bm.detach(), alpha=m)
            self.var.mul_(1 - m).add_(bv.detach(), alpha=m)
            self.corr.mul_(1 - m).add_(m)
        rm, rv = self.mu / self.corr.clamp_min(1e-6), self.var / self.corr.clamp_min(1e-6)
        mean, var = (0.5 * (bm + rm), 0.5 * (bv + rv)) if self.training else (rm, rv)
        scale = self.weight * torch.rsqrt(var + 1e-5)
        return torch.addcmul((self.bias - mean * scale)[:, None, None], x, scale[:, None, None])


class RoutingCaps(nn.Module):
    def __init__(self, n_in, d_in, n_out, d_out, iters=3):
        super().__init__()
        self.W = nn.Parameter(torch.randn(n_in, n_out, d_out, d_in) * 0.1)
        self.iters = iters
        self.register_buffer("prior", torch.zeros(n_in, n_out))

    def forward(self, u, iters=None):
        u_hat = torch.einsum("ijkl,bil->bijk", self.W, u)
        frozen = u_hat.detach()
        b = self.prior.clone().expand(u.shape[0], -1, -1)
        n = self.iters if iters is None else iters
        for it in range(n):
            c = b.softmax(dim=2)
            if it == n - 1:
                v = squash((c.unsqueeze(-1) * u_hat).sum(1))
                break
            v = squash((c.unsqueeze(-1) * frozen).sum(1))
            b = b + torch.einsum("bijk,bjk->bij", frozen, v)
        if self.training:
            with torch.no_grad():
                self.prior.mul_(0.99).add_(b.mean(0) - b.mean((0, 2)).unsqueeze(1), alpha=0.01)
        return v, c


class Model(nn.Module):
    """Capsule network: dynamic routing, masked decoder, pre-hooks and hooks that rewrite activations."""

    def __init__(self, ch, caps_maps, d_prim, classes, d_out):
        super().__init__()
        self.conv = nn.Conv2d(1, ch, 9, stride=2)
        self.bn = CumulativeBN(ch)
        self.frozen_bn = nn.BatchNorm2d(ch, momentum=0.2)
        self.prim = nn.Conv2d(ch, caps_maps * d_prim, 5, stride=2)
        self.d_prim = d_prim
        self.caps = RoutingCaps(caps_maps * 9, d_prim, classes, d_out)
        self.dec = nn.Sequential(nn.Linear(classes * d_out, 96), nn.ReLU(), nn.Linear(96, 784), nn.Sigmoid())
        self.taps = {}
        self.conv.register_forward_pre_hook(self._standardise, with_kwargs=True)
        self.prim.register_forward_hook(lambda mod, args, out: F.leaky_relu(out, 0.05))
        self.caps.register_forward_hook(self._tap)
        self.register_buffer("confusion", torch.zeros(classes, classes, dtype=torch.long))

    @staticmethod
    def _standardise(mod, args, kwargs):
        (x,), gain = args, kwargs.pop("gain", 1.0)
        m = x.mean((1, 2, 3), keepdim=True)
        s = x.std((1, 2, 3), keepdim=True).clamp_min(1e-3)
        return ((x - m) / s * gain,), kwargs

    def _tap(self, mod, args, out):
        self.taps["coupling"] = out[1]
        return out[0]

    def train(self, mode=True):
        super().train(mode)
        self.frozen_bn.eval()
        return self

    def forward(self, x, label):
        self.frozen_bn.eval()
        h = F.relu(self.bn(self.conv(x, gain=1.1)))
        h = self.frozen_bn(h)
        p = self.prim(h)
        b, c, hh, ww = p.shape
        u = p.view(b, c // self.d_prim, self.d_prim, hh * ww).transpose(2, 3).reshape(b, -1, self.d_prim)
        v = self.caps(squash(u))
        coupling = self.taps.pop("coupling")
        length = (v.square().sum(-1) + 1e-9).sqrt()
        onehot = F.one_hot(label, length.shape[1]).to(v.dtype)
        margin = onehot * F.relu(0.9 - length) ** 2 + 0.5 * (1 - onehot) * F.relu(length - 0.1) ** 2
        masked = (v * onehot.unsqueeze(-1)).flatten(1)
        recon = self.dec(masked).view_as(x)
        loss = margin.sum(1).mean() + 5e-4 * (recon - x).square().sum((1, 2, 3)).mean()
        with torch.no_grad():
            self.confusion.index_put_((label, label.new_zeros(b)), torch.ones_like(label), accumulate=True)
            ent = -(coupling * (coupling + 1e-9).log()).sum(-1).mean()
        return loss, length, v, recon, ent, self.confusion


def get_inputs():
    return [torch.rand(12, 1, 28, 28), torch.randint(0, 10, (12,))]


def get_init_inputs():
    return [32, 8, 8, 10, 12]
