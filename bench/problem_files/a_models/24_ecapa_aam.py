import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class TDNN(nn.Module):
    def __init__(self, a, b, k, dilation=1):
        super().__init__()
        self.conv, self.bn = nn.Conv1d(a, b, k, dilation=dilation), nn.BatchNorm1d(b)
        self.pad = dilation * (k - 1) // 2

    def forward(self, x):
        if self.pad:
            x = F.pad(x, (self.pad, self.pad), mode="reflect")
        return self.bn(F.relu(self.conv(x)))


class Res2Net(nn.Module):
    def __init__(self, c, scale, k, dilation):
        super().__init__()
        self.scale = scale
        self.blocks = nn.ModuleList([TDNN(c // scale, c // scale, k, dilation) for _ in range(scale - 1)])

    def forward(self, x):
        y, prev = [], None
        for i, part in enumerate(torch.chunk(x, self.scale, dim=1)):
            prev = part if i == 0 else self.blocks[i - 1](part if i == 1 else part + prev)
            y.append(prev)
        return torch.cat(y, dim=1)


class SERes2Block(nn.Module):
    def __init__(self, a, c, scale, k, dilation):
        super().__init__()
        self.t1, self.res, self.t2 = TDNN(a, c, 1), Res2Net(c, scale, k, dilation), TDNN(c, c, 1)
        self.c1, self.c2 = nn.Conv1d(c, 64, 1), nn.Conv1d(64, c, 1)
        self.short = nn.Conv1d(a, c, 1) if a != c else None

    def forward(self, x, mask):
        r = x if self.short is None else self.short(x)
        x = self.t2(self.res(self.t1(x)))
        s = (x * mask).sum(dim=2, keepdim=True) / mask.sum(dim=2, keepdim=True)
        return torch.sigmoid(self.c2(F.relu(self.c1(s), inplace=True))) * x + r


class AttentiveStats(nn.Module):
    def __init__(self, c, att):
        super().__init__()
        self.tdnn, self.conv = TDNN(3 * c, att, 1), nn.Conv1d(att, c, 1)

    @staticmethod
    def stats(x, m):
        mean = (m * x).sum(2)
        return mean, torch.sqrt((m * (x - mean.unsqueeze(2)).pow(2)).sum(2).clamp(1e-4))

    def forward(self, x, mask):
        t = x.shape[-1]
        ms = self.stats(x, mask / mask.sum(dim=2, keepdim=True))
        a = torch.cat([x] + [s.unsqueeze(2).repeat(1, 1, t) for s in ms], dim=1)
        a = self.conv(torch.tanh(self.tdnn(a))).masked_fill(mask == 0, float("-inf"))
        return torch.cat(self.stats(x, F.softmax(a, dim=2)), dim=1).unsqueeze(2)


class SubCenterAAM(nn.Module):
    def __init__(self, d, n_cls, K, scale, margin, topk):
        super().__init__()
        self.w = nn.Parameter(nn.init.xavier_uniform_(torch.empty(n_cls * K, d)))
        self.K, self.s, self.topk, self.n_cls = K, scale, topk, n_cls
        self.cos_m, self.sin_m, self.cos_e, self.sin_e = math.cos(margin), math.sin(margin), 0.9982, 0.05996
        self.th, self.mm = math.cos(math.pi - margin), math.sin(math.pi - margin) * margin

    def forward(self, x, y):
        cos = F.linear(F.normalize(x), F.normalize(self.w)).view(-1, self.n_cls, self.K).amax(-1)
        sin = torch.sqrt((1.0 - cos * cos).clamp(1e-4, 1))
        phi = torch.where(cos > self.th, cos * self.cos_m - sin * self.sin_m, cos - self.mm)
        hard = cos * self.cos_e + sin * self.sin_e
        one = torch.zeros_like(cos).scatter_(1, y.view(-1, 1), 1.0)
        rival = cos.masked_fill(one.bool(), -2.0)
        kth = rival.topk(self.topk, dim=1)[0][:, -1:].detach()
        logits = one * phi + (1.0 - one) * torch.where(rival >= kth, hard, cos)
        return F.cross_entropy(logits * self.s, y), cos


class Model(nn.Module):
    """ECAPA-TDNN speaker embedding with masked SE-Res2 blocks, attentive statistics, sub-centre AAM."""

    def __init__(self, n_mel, c, c_cat, scale, d, n_spk, K):
        super().__init__()
        self.freq_pos = nn.Parameter(torch.zeros(1, n_mel, 1))
        self.first = TDNN(n_mel, c, 5)
        self.blocks = nn.ModuleList([SERes2Block(c, c, scale, 3, dil) for dil in (2, 3, 4)])
        self.mfa, self.asp = TDNN(3 * c, c_cat, 1), AttentiveStats(c_cat, 128)
        self.bn, self.fc = nn.BatchNorm1d(2 * c_cat), nn.Conv1d(2 * c_cat, d, 1)
        self.aam = SubCenterAAM(d, n_spk, K, 30.0, 0.2, 5)

    def forward(self, feats, rel_len, speaker):
        t = feats.shape[1]
        n = (rel_len * t).round().clamp(min=2)
        mask = (torch.arange(t, device=feats.device) < n.view(-1, 1, 1)).to(feats.dtype)
        x = feats.transpose(1, 2)
        mean = (x * mask).sum(2, keepdim=True) / mask.sum(2, keepdim=True)
        x = self.first((x - mean) * mask + self.freq_pos)
        xs = []
        for blk in self.blocks:
            xs.append(blk(x, mask))
            x = x + xs[-1]
        x = self.asp(self.mfa(torch.cat(xs, dim=1)), mask)
        emb = self.fc(self.bn(x.squeeze(2)).unsqueeze(2)).squeeze(2)
        loss, cos = self.aam(emb, speaker)
        return loss, emb, cos


def get_inputs():
    return [torch.randn(5, 203, 80), torch.rand(5) * 0.5 + 0.5, torch.randint(0, 1211, (5,))]


def get_init_inputs():
    return [80, 256, 768, 8, 192, 1211, 3]
