import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    # classifier + every metric somebody wanted on the dashboard

    def __init__(self, n_feat, n_cls, n_bins):
        super().__init__()
        self.n_cls = n_cls
        self.n_bins = n_bins
        self.net = nn.Sequential(nn.Linear(n_feat, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, n_cls))
        self.register_buffer("total_cm", torch.zeros(n_cls, n_cls, dtype=torch.int64))
        self.register_buffer("n_seen", torch.tensor(0))
        self.register_buffer("edges", torch.linspace(0, 1, n_bins + 1))

    def confusion(self, pred, y):
        cm = torch.zeros_like(self.total_cm)
        cm.index_put_((y, pred), torch.ones_like(y), accumulate=True)
        return cm

    def auc(self, score, pos):
        # rank statistic, one class against the rest, vectorised over classes
        order = score.argsort(0)
        n = score.shape[0]
        ranks = torch.empty_like(order)
        ar = torch.arange(1, n + 1, device=score.device).unsqueeze(1).expand_as(order)
        ranks.scatter_(0, order, ar.contiguous())
        npos = pos.sum(0)
        nneg = n - npos
        s = (ranks * pos).sum(0) - npos * (npos + 1) // 2
        return torch.where((npos > 0) & (nneg > 0), s / (npos * nneg).clamp(min=1), torch.full_like(s, 0.5, dtype=torch.float))

    def average_precision(self, score, pos):
        idx = torch.argsort(score, dim=0, descending=True, stable=True)
        hit = torch.take_along_dim(pos, idx, 0).float()
        prec = hit.cumsum(0) / torch.arange(1, len(hit) + 1, device=hit.device, dtype=hit.dtype)[:, None]
        best_to_right = prec.flip(0).cummax(0).values.flip(0)
        return (best_to_right * hit).sum(0) / hit.sum(0).clamp(min=1)

    def ece(self, conf, ok):
        b = torch.bucketize(conf, self.edges[1:-1], right=True)
        cnt = torch.zeros(self.n_bins, device=conf.device).index_add_(0, b, torch.ones_like(conf))
        csum = torch.zeros_like(cnt).index_add(0, b, conf)
        asum = torch.zeros_like(cnt).index_add(0, b, ok)
        gap = (csum - asum).abs() / cnt.clamp_min(1)
        return (gap * cnt / cnt.sum()).sum(), gap

    def forward(self, x, y):
        logits = self.net(x)
        p = logits.softmax(1)
        conf, pred = p.max(1)
        cm = self.confusion(pred, y)
        if self.training:
            self.total_cm += cm
            self.n_seen.add_(y.numel())
        tp = cm.diagonal()
        prec = torch.nan_to_num(tp / cm.sum(0))
        rec = torch.nan_to_num(tp.true_divide(cm.sum(1)))
        f1 = 2 * prec * rec / (prec + rec).clamp(min=1e-9)
        pos = F.one_hot(y, self.n_cls).bool()
        auc = self.auc(p.detach(), pos)
        ap = self.average_precision(p.detach(), pos)
        ece, gap = self.ece(conf, (pred == y).float())
        # kappa, mcc
        n = cm.sum().double()
        pe = (cm.sum(0).double() @ cm.sum(1).double()) / n ** 2
        po = tp.sum() / n
        kappa = (po - pe) / (1 - pe)
        c = tp.sum() * cm.sum() - (cm.sum(0) * cm.sum(1)).sum()
        den = torch.sqrt(((n ** 2 - cm.sum(0).pow(2).sum()) * (n ** 2 - cm.sum(1).pow(2).sum())))
        mcc = c / den
        top = [(logits.topk(k, 1).indices == y[:, None]).any(1).float().mean() for k in (1, 3, 5)]
        brier = (p - pos.to(p.dtype)).square().sum(1).mean()
        nll = F.cross_entropy(logits, y)
        rank = (logits > logits.gather(1, y[:, None])).sum(1) + 1
        mrr = rank.reciprocal().mean()
        order = ((torch.arange(self.n_cls, device=y.device) - y[:, None]) % self.n_cls).argsort(1)
        sl = logits.gather(1, order)
        listmle = (sl.flip(1).logcumsumexp(1).flip(1) - sl).mean()
        ndcg = (1 / torch.log2(rank.float() + 1)).mean()
        soft_cm = torch.zeros(self.n_cls, self.n_cls, device=x.device).index_add(0, y, p)
        soft_f1 = 2 * soft_cm.diag() / (soft_cm.sum(0) + soft_cm.sum(1) + 1e-6)
        return {"nll": nll, "brier": brier, "ece": ece, "gap": gap, "auc": auc, "ap": ap, "f1": f1,
                "kappa": kappa, "mcc": mcc, "topk": torch.stack(top), "mrr": mrr, "listmle": listmle, "ndcg": ndcg,
                "soft_f1": soft_f1, "cm": cm, "seen": self.n_seen.clone()}


def get_inputs():
    return [torch.randn(1500, 20), torch.randint(0, 10, (1500,))]


def get_init_inputs():
    return [20, 10, 15]
