import torch
import torch.nn as nn
import torch.nn.functional as F


def attention_map(fm):
    return F.normalize(fm.pow(2).mean(1).flatten(1), dim=1)


def pdist(e, eps=1e-6):
    sq = e.pow(2).sum(dim=1)
    res = (sq.unsqueeze(1) + sq.unsqueeze(0) - 2 * (e @ e.t())).clamp(min=eps).sqrt()
    return res * (1 - torch.eye(len(e), device=e.device))


class Model(nn.Module):
    """KD logits (vanilla + decoupled), hint regression, attention transfer, RKD distance and angle."""

    def __init__(self, s_channels, t_channels, T):
        super().__init__()
        self.T = T
        self.regressors = nn.ModuleList(
            nn.Sequential(nn.Conv2d(s, t, 1, bias=False), nn.GroupNorm(4, t))
            for s, t in zip(s_channels, t_channels)
        )

    def decoupled(self, s, t, y, alpha=1.0, beta=4.0):
        gt = F.one_hot(y, s.shape[1]).bool()
        ps, pt = F.softmax(s / self.T, 1), F.softmax(t / self.T, 1)
        bs = torch.stack(((ps * gt).sum(1), (ps * ~gt).sum(1)), 1)
        bt = torch.stack(((pt * gt).sum(1), (pt * ~gt).sum(1)), 1)
        tckd = F.kl_div(torch.log(bs), bt, reduction="batchmean") * self.T ** 2
        ls = F.log_softmax(s / self.T - 1000.0 * gt, 1)
        pt2 = F.softmax(t / self.T - 1000.0 * gt, 1)
        nckd = F.kl_div(ls, pt2, reduction="batchmean") * self.T ** 2
        return alpha * tckd + beta * nckd

    def rkd(self, s, t):
        with torch.no_grad():
            td = pdist(t)
            td = td / td[td > 0].mean()
            tv = F.normalize(t.unsqueeze(0) - t.unsqueeze(1), p=2, dim=2)
            ta = torch.bmm(tv, tv.transpose(1, 2)).view(-1)
        sd = pdist(s)
        sd = sd / (sd.sum() / (len(s) * (len(s) - 1)))
        sv = F.normalize(s.unsqueeze(0) - s.unsqueeze(1), p=2, dim=2)
        sa = torch.bmm(sv, sv.transpose(1, 2)).view(-1)
        return 25.0 * F.smooth_l1_loss(sd, td) + 50.0 * F.smooth_l1_loss(sa, ta)

    def forward(self, s_logits, t_logits, sf1, sf2, tf1, tf2, y):
        t_logits = t_logits.detach()
        kd = F.kl_div(
            F.log_softmax(s_logits / self.T, dim=1), F.softmax(t_logits / self.T, dim=1), reduction="batchmean"
        ) * self.T ** 2
        dkd = self.decoupled(s_logits, t_logits, y)
        hint = at = 0.0
        for reg, s, t in zip(self.regressors, (sf1, sf2), (tf1, tf2)):
            if s.shape[-1] != t.shape[-1]:
                s = F.adaptive_avg_pool2d(s, t.shape[-2:])
            hint = hint + F.mse_loss(reg(s), t)
            at = at + (attention_map(s) - attention_map(t)).pow(2).mean()
        rkd = self.rkd(sf2.mean((2, 3)), tf2.mean((2, 3)))
        return F.cross_entropy(s_logits, y) + 0.5 * kd + 0.1 * dkd + hint + 1000 * at + 0.1 * rkd


def get_inputs():
    B = 26
    return [
        torch.randn(B, 83), torch.randn(B, 83) * 2,
        torch.randn(B, 16, 14, 14), torch.randn(B, 28, 8, 8),
        torch.randn(B, 24, 14, 14), torch.randn(B, 48, 7, 7),
        torch.randint(0, 83, (B,)),
    ]


def get_init_inputs():
    return [(16, 28), (24, 48), 4.0]
