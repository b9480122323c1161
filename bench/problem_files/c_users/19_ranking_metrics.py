import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Retrieval losses and metrics: NDCG, AUC by pairs, ListNet, LambdaRank, triplet mining, confusion matrices, calibration, NMS."""

    def __init__(self, d, classes, keep):
        super().__init__()
        self.score = nn.Linear(d, 1)
        self.classes, self.keep = classes, keep
        self.temp = nn.Parameter(torch.tensor(0.7))

    def ndcg(self, s, rel, k):
        order = s.argsort(dim=1, descending=True, stable=True)
        gain = (2 ** rel - 1).to(s.dtype)
        disc = torch.log2(torch.arange(2, s.shape[1] + 2, device=s.device, dtype=s.dtype)).reciprocal()
        disc = torch.where(torch.arange(s.shape[1], device=s.device) < k, disc, 0.0)
        dcg = (gain.gather(1, order) * disc).sum(1)
        ideal = (gain.sort(1, descending=True).values * disc).sum(1)
        return torch.where(ideal > 0, dcg / ideal.clamp(min=1e-6), torch.zeros_like(dcg))

    def nms(self, boxes, conf):
        x1, y1, x2, y2 = boxes.unbind(-1)
        area = (x2 - x1) * (y2 - y1)
        iw = (torch.minimum(x2[:, None], x2) - torch.maximum(x1[:, None], x1)).clamp(min=0)
        ih = (torch.minimum(y2[:, None], y2) - torch.maximum(y1[:, None], y1)).clamp(min=0)
        inter = iw * ih
        hit = inter * 2 > (area[:, None] + area - inter)
        alive = torch.ones_like(conf, dtype=torch.bool)
        picks = []
        for _ in range(self.keep):
            j = torch.where(alive, conf, torch.full_like(conf, -1)).argmax()
            picks.append(torch.where(alive.any(), j, -1))
            alive = alive & ~hit.index_select(0, j.view(1))[0] & (torch.arange(conf.numel(), device=conf.device) != j)
        return torch.stack(picks), inter / (area[:, None] + area - inter), alive

    def forward(self, x, base, rel, emb, labels, pred, boxes, conf):
        s = self.score(x).squeeze(-1) / self.temp
        listnet = -(F.softmax(rel.to(s.dtype), 1) * F.log_softmax(s, 1)).sum(1)
        diff = s[:, :, None] - s[:, None, :]
        better = rel[:, :, None] > rel[:, None, :]
        lam = (F.softplus(-diff) * better * (2 ** rel)[:, :, None]).sum((1, 2)) / better.sum((1, 2)).clamp(min=1) + 0.01 * s.square().mean(1)
        ndcg = self.ndcg(base, rel, 7)
        pos = (rel >= 2)
        wins = ((base[:, :, None] > base[:, None, :]) & pos[:, :, None] & ~pos[:, None, :]).sum((1, 2))
        auc = wins / (pos.sum(1) * (~pos).sum(1)).clamp(min=1)
        hits = pos.gather(1, base.argsort(1, descending=True)).to(s.dtype)
        ap = (hits.cumsum(1) / torch.arange(1, hits.shape[1] + 1, device=s.device) * hits).sum(1) / hits.sum(1).clamp(min=1)
        mrr = 1 / (hits.argmax(1) + 1) * hits.amax(1)

        e = F.normalize(emb, dim=1)
        dist = 2 - 2 * e @ e.t()
        same = labels[:, None] == labels
        eye = torch.eye(len(labels), dtype=torch.bool, device=x.device)
        hardest_p = dist.masked_fill(~same | eye, -1).amax(1)
        hardest_n = dist.masked_fill(same, 5).amin(1)
        trip = F.relu(hardest_p - hardest_n + 0.2) * (same & ~eye).any(1)
        supcon = -torch.where(same & ~eye, F.log_softmax((e @ e.t() / 0.3).masked_fill(eye, -1e9), 1), 0).sum(1) / (same.sum(1) - 1).clamp(min=1)
        cm = torch.zeros(self.classes, self.classes, dtype=torch.long, device=x.device)
        cm.index_put_((labels, pred), torch.ones_like(labels), accumulate=True)
        tp = cm.diag()
        f1 = 2 * tp / (cm.sum(0) + cm.sum(1)).clamp(min=1)
        po, pe = tp.sum() / cm.sum(), (cm.sum(0) * cm.sum(1)).sum() / cm.sum() ** 2
        return listnet, lam, ndcg, auc, ap, mrr, trip, supcon, cm, f1, (po - pe) / (1 - pe), self.nms(boxes, conf)


def get_inputs():
    xy = torch.rand(61, 2)
    boxes = torch.cat([xy, xy + torch.rand(61, 2) * 0.4 + 0.05], 1)
    return [torch.randn(19, 37, 11), torch.randn(19, 37), torch.randint(0, 5, (19, 37)), torch.randn(67, 23), torch.randint(0, 7, (67,)),
            torch.randint(0, 7, (67,)), boxes, torch.rand(61)]


def get_init_inputs():
    return [11, 7, 9]
