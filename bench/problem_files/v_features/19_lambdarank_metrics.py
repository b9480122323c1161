import torch
import torch.nn as nn


class LambdaRank(torch.autograd.Function):
    """Pairwise logistic loss weighted by the change of NDCG; also returns the number of
    discordant pairs and the ranks, which have no derivative."""

    @staticmethod
    def forward(ctx, score, gain, discount, mask, sigma):
        live = mask.unsqueeze(2) & mask.unsqueeze(1)
        better = (gain.unsqueeze(2) > gain.unsqueeze(1)) & live
        order = score.masked_fill(~mask, float("-inf")).argsort(dim=1, descending=True, stable=True)
        rank = torch.empty_like(order).scatter_(1, order, torch.arange(order.shape[1]).expand_as(order))
        d = discount[rank]
        delta = ((gain.unsqueeze(2) - gain.unsqueeze(1)) * (d.unsqueeze(2) - d.unsqueeze(1))).abs()
        diff = sigma * (score.unsqueeze(2) - score.unsqueeze(1))
        w = torch.where(better, delta, torch.zeros_like(delta))
        loss = (w * torch.nn.functional.softplus(-diff)).sum((1, 2))
        wrong = (better & (diff < 0)).sum((1, 2), dtype=torch.int32)
        ctx.save_for_backward(diff, w)
        ctx.sigma = sigma
        ctx.mark_non_differentiable(wrong, rank)
        ctx.set_materialize_grads(False)
        return loss, wrong, rank

    @staticmethod
    def backward(ctx, g, _wrong, _rank):
        if g is None or not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        diff, w = ctx.saved_tensors
        lam = -ctx.sigma * w * torch.sigmoid(-diff) * g[:, None, None]
        return lam.sum(2) - lam.sum(1), None, None, None, None


class Model(nn.Module):
    """LambdaRank on padded lists with NDCG, average precision and tie-corrected AUC."""

    def __init__(self, features, hidden, cutoff):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, hidden), nn.Mish(), nn.Linear(hidden, 1))
        self.cutoff = cutoff

    def auc(self, score, positive, weight):
        """With ties counted half, from the sorted scores."""
        s, order = score.sort(stable=True)
        neg = torch.where(positive, torch.zeros_like(weight), weight)[order]
        cum = torch.cat([neg.new_zeros(1), neg.cumsum(0)])
        lo = torch.searchsorted(s, score, side="left")
        hi = torch.searchsorted(s, score, side="right")
        below = 0.5 * (cum[lo] + cum[hi])
        pos = torch.where(positive, weight, torch.zeros_like(weight))
        return (pos * below).sum() / (pos.sum() * neg.sum())

    def forward(self, x, relevance, mask):
        b, n, _ = x.shape
        score = self.net(x).squeeze(-1)
        gain = torch.ldexp(torch.ones_like(score), relevance) - 1
        gain = gain.masked_fill(~mask, 0.0)
        discount = 1.0 / torch.log2(torch.arange(n).to(score.dtype) + 2.0)
        ideal = (gain.sort(dim=1, descending=True).values * discount).sum(1).clamp_min(1e-6)
        loss, wrong, rank = LambdaRank.apply(score, gain / ideal[:, None], discount, mask, 1.3)

        kept = (rank < self.cutoff) & mask
        ndcg = (gain * discount[rank] * kept).sum(1) / ideal
        order = rank.argsort(dim=1)
        hit = (relevance.gather(1, order) >= 3) & mask.gather(1, order)
        seen = hit.cumsum(1)
        place = torch.arange(1, n + 1)
        precision = torch.where(hit, seen / place, torch.zeros((), dtype=torch.float32))
        average = precision.sum(1) / seen[:, -1].clamp(min=1)
        first = torch.where(hit, place, n + 1).amin(1)
        coarse = torch.round(score.detach().double() * 16) / 16
        flat = mask.flatten().nonzero_static(size=b * n - 3, fill_value=0).squeeze(1)
        auc = self.auc(coarse.flatten()[flat], (relevance >= 2).flatten()[flat], mask.double().flatten()[flat])
        return loss, wrong, rank.to(torch.int16), ndcg, average, first.reciprocal(), auc


def get_inputs():
    b, n, f = 31, 47, 19
    lengths = torch.randint(9, n + 1, (b, 1))
    return [torch.randn(b, n, f), torch.randint(0, 5, (b, n)), torch.arange(n) < lengths]


def get_init_inputs():
    return [19, 37, 10]
