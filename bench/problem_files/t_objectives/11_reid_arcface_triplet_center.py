import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def euclidean_dist(x, y):
    xx = x.pow(2).sum(1, keepdim=True)
    yy = y.pow(2).sum(1, keepdim=True).t()
    return (xx + yy - 2 * x @ y.t()).clamp(min=1e-6).sqrt()


class ArcMargin(nn.Module):
    def __init__(self, dim, num_ids, s=30.0, m=0.4, sub=2):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_ids * sub, dim))
        nn.init.xavier_uniform_(self.weight)
        self.s, self.sub = s, sub
        self.cos_m, self.sin_m = math.cos(m), math.sin(m)
        self.th, self.mm = math.cos(math.pi - m), math.sin(math.pi - m) * m

    def forward(self, x, label):
        cosine = F.linear(F.normalize(x), F.normalize(self.weight))
        cosine = cosine.view(x.size(0), -1, self.sub).max(dim=2).values
        sine = torch.sqrt((1.0 - cosine.pow(2)).clamp(1e-6, 1))
        phi = cosine * self.cos_m - sine * self.sin_m
        phi = torch.where(cosine > self.th, phi, cosine - self.mm)
        one_hot = torch.zeros_like(cosine).scatter_(1, label.view(-1, 1), 1.0)
        return (one_hot * phi + (1.0 - one_hot) * cosine) * self.s


class Model(nn.Module):
    """Re-identification bag of tricks: BNNeck + ArcFace, batch-hard triplet, center loss."""

    def __init__(self, dim, num_ids, margin):
        super().__init__()
        self.bottleneck = nn.BatchNorm1d(dim)
        self.bottleneck.bias.requires_grad_(False)
        self.arc = ArcMargin(dim, num_ids)
        self.centers = nn.Parameter(torch.randn(num_ids, dim))
        self.margin = margin

    def batch_hard(self, feat, ids):
        dist = euclidean_dist(feat, feat)
        same = ids[:, None] == ids[None, :]
        eye = torch.eye(len(ids), dtype=torch.bool, device=feat.device)
        neg_inf = torch.full_like(dist, -1e9)
        pos_inf = torch.full_like(dist, 1e9)
        hardest_pos = torch.where(same & ~eye, dist, neg_inf).amax(1)
        hardest_neg = torch.where(same, pos_inf, dist).amin(1)
        hard = F.softplus(hardest_pos - hardest_neg + self.margin)
        semi_mask = (~same) & (dist > hardest_pos[:, None]) & (dist < hardest_pos[:, None] + self.margin)
        semi = (F.relu(hardest_pos[:, None] - dist + self.margin) * semi_mask).sum() / semi_mask.sum().clamp(min=1)
        return hard.mean() + 0.5 * semi

    def forward(self, feat, ids):
        mean = feat.mean(0)
        var = feat.var(0, unbiased=False)
        bn = self.bottleneck
        neck = (feat - mean) * torch.rsqrt(var + bn.eps) * bn.weight + bn.bias
        ce = F.cross_entropy(self.arc(neck, ids), ids)
        tri = self.batch_hard(feat, ids)
        c = self.centers.index_select(0, ids)
        counts = torch.bincount(ids, minlength=self.centers.size(0)).float()[ids]
        center = ((feat - c).pow(2).sum(1).clamp(1e-12, 1e12) / (1 + counts)).mean()
        return ce + tri + 5e-4 * center


def get_inputs():
    ids = torch.randperm(701)[:22].repeat_interleave(4)
    return [torch.randn(88, 180), ids]


def get_init_inputs():
    return [180, 701, 0.3]
