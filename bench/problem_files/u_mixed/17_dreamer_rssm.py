import torch
import torch.nn as nn
import torch.nn.functional as F


def symlog(x):
    return torch.sign(x) * torch.log1p(torch.abs(x))


def symexp(x):
    return torch.sign(x) * torch.expm1(torch.abs(x))


def two_hot(x, bins):
    """x (...,) -> (..., K) soft labels on the two neighbouring bins."""
    K = bins.shape[0]
    below = (bins <= x[..., None]).to(torch.int32).sum(-1) - 1
    above = K - (bins > x[..., None]).to(torch.int32).sum(-1)
    below = torch.clip(below, 0, K - 1).long()
    above = torch.clip(above, 0, K - 1).long()
    equal = below == above
    d_below = torch.where(equal, 1, torch.abs(bins[below] - x))
    d_above = torch.where(equal, 1, torch.abs(bins[above] - x))
    total = d_below + d_above
    w_below, w_above = d_above / total, d_below / total
    return F.one_hot(below, K) * w_below[..., None] + F.one_hot(above, K) * w_above[..., None]


class NormGRUCell(nn.Module):
    def __init__(self, inp, size):
        super().__init__()
        self.size = size
        self.layer = nn.Linear(inp + size, 3 * size, bias=False)
        self.norm = nn.LayerNorm(3 * size, eps=1e-3)

    def forward(self, x, state):
        parts = self.norm(self.layer(torch.cat([x, state], -1)))
        reset, cand, update = torch.split(parts, [self.size] * 3, -1)
        cand = torch.tanh(torch.sigmoid(reset) * cand)
        update = torch.sigmoid(update - 1)
        return update * cand + (1 - update) * state


class Model(nn.Module):
    """DreamerV3-like RSSM: discrete latents (gumbel noise given), KL balance with free bits, two-hot reward."""

    def __init__(self, obs, act, deter, stoch, classes, bins=41):
        super().__init__()
        self.stoch, self.classes, self.deter = stoch, classes, deter
        self.enc = nn.Sequential(nn.Linear(obs, 48), nn.LayerNorm(48), nn.SiLU())
        self.inp = nn.Sequential(nn.Linear(stoch * classes + act, 48), nn.LayerNorm(48), nn.SiLU())
        self.cell = NormGRUCell(48, deter)
        self.prior = nn.Linear(deter, stoch * classes)
        self.post = nn.Linear(deter + 48, stoch * classes)
        self.reward = nn.Linear(deter + stoch * classes, bins)
        self.dec = nn.Linear(deter + stoch * classes, obs)
        self.init_h = nn.Parameter(torch.zeros(deter))
        self.register_buffer("bins", torch.linspace(-5.0, 5.0, bins))

    def unimix(self, logits):
        logits = logits.view(*logits.shape[:-1], self.stoch, self.classes)
        p = 0.99 * logits.softmax(-1) + 0.01 / self.classes
        return torch.log(p)

    def forward(self, obs, act, is_first, reward, gumbel):
        B, T = obs.shape[:2]
        emb = self.enc(symlog(obs))
        h0 = torch.tanh(self.init_h).expand(B, -1)
        h, z = h0, torch.zeros(B, self.stoch * self.classes, device=obs.device)
        feats, pri, pos = [], [], []
        for t in range(T):
            m = is_first[:, t, None]
            h = torch.where(m, h0, h)
            z = z * (~m).float()
            a = act[:, t].masked_fill(m, 0.0)
            h = self.cell(self.inp(torch.cat([z, a], -1)), h)
            pr = self.unimix(self.prior(h))
            po = self.unimix(self.post(torch.cat([h, emb[:, t]], -1)))
            sample = F.one_hot((po + gumbel[:, t]).argmax(-1), self.classes).float()
            probs = po.exp()
            z = (sample + probs - probs.detach()).flatten(1)
            feats.append(torch.cat([h, z], -1))
            pri.append(pr)
            pos.append(po)
        feat, pri, pos = (torch.stack(s, 1) for s in (feats, pri, pos))
        kl = lambda a, b: (a.exp() * (a - b)).sum((-1, -2))
        dyn = torch.clamp(kl(pos.detach(), pri), min=1.0)
        rep = torch.clamp(kl(pos, pri.detach()), min=1.0)
        logits = self.reward(feat)
        target = two_hot(symlog(reward), self.bins)
        r_loss = -(target * logits.log_softmax(-1)).sum(-1)
        r_pred = symexp((logits.softmax(-1) * self.bins).sum(-1))
        o_loss = 0.5 * (self.dec(feat) - symlog(obs)).square().sum(-1)
        loss = (o_loss + r_loss + 0.5 * dyn + 0.1 * rep).mean()
        return loss, r_pred, feat


def get_inputs():
    u = torch.rand(5, 8, 6, 7).clamp(1e-6, 1 - 1e-6)
    first = torch.rand(5, 8) < 0.15
    first[:, 0] = True
    return [torch.randn(5, 8, 13), torch.randn(5, 8, 3), first, torch.randn(5, 8) * 3, -torch.log(-torch.log(u))]


def get_init_inputs():
    return [13, 3, 32, 6, 7]
