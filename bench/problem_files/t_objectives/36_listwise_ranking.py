import torch
import torch.nn as nn
import torch.nn.functional as F

PAD = -1.0


class Model(nn.Module):
    """Learning to rank on padded lists: scorer + ListNet, ListMLE, LambdaRank and ApproxNDCG."""

    def __init__(self, n_feat, hidden, alpha, sigma):
        super().__init__()
        self.scorer = nn.Sequential(nn.Linear(n_feat, hidden), nn.GELU(), nn.Linear(hidden, 1))
        self.alpha, self.sigma = alpha, sigma

    @staticmethod
    def ideal_dcg(y):
        ys, _ = y.sort(descending=True, dim=-1)
        pos = torch.arange(1, y.shape[-1] + 1, dtype=y.dtype, device=y.device)
        return ((torch.pow(2.0, ys) - 1) / torch.log2(1.0 + pos)).sum(-1).clamp(min=1e-6)

    def list_net(self, s, y, mask):
        s = s.masked_fill(mask, float("-inf"))
        yt = y.masked_fill(mask, float("-inf"))
        p = F.softmax(s, dim=1) + 1e-10
        return torch.mean(-torch.sum(F.softmax(yt, dim=1) * torch.log(p), dim=1))

    def list_mle(self, s, y, mask):
        y_sorted, idx = y.masked_fill(mask, -1.0).sort(descending=True, dim=-1, stable=True)
        preds = s.gather(1, idx)
        m = mask.gather(1, idx)
        preds = preds.masked_fill(m, -1e9)
        mx = preds.max(dim=1, keepdim=True).values
        e = (preds - mx).exp()
        cums = torch.cumsum(e.flip(1), dim=1).flip(1)
        obs = torch.log(cums + 1e-10) - (preds - mx)
        return obs.masked_fill(m, 0.0).sum(1).mean()

    def lambda_rank(self, s, y, valid):
        gains = torch.pow(2.0, y) - 1
        rank = (-s.detach()).masked_fill(~valid, 1e9).argsort(1).argsort(1).float() + 1
        disc = 1 / torch.log2(1 + rank)
        dgain = gains[:, :, None] - gains[:, None, :]
        ddisc = disc[:, :, None] - disc[:, None, :]
        w = (dgain * ddisc).abs() / self.ideal_dcg(y)[:, None, None]
        pair = (y[:, :, None] > y[:, None, :]) & valid[:, :, None] & valid[:, None, :]
        sd = (s[:, :, None] - s[:, None, :]).clamp(-30, 30)
        return (F.softplus(-self.sigma * sd) * w * pair).sum((1, 2)).mean()

    def approx_ndcg(self, s, y, valid):
        diff = s[:, :, None] - s[:, None, :]
        p = torch.sigmoid(-self.alpha * diff) * valid[:, None, :]
        approx_pos = 0.5 + p.sum(-1)
        g = (torch.pow(2.0, y) - 1) * valid
        dcg = (g / torch.log2(1.0 + approx_pos)).sum(-1)
        return -(dcg / self.ideal_dcg(y)).mean()

    def forward(self, x, y_true):
        s = self.scorer(x).squeeze(-1)
        mask = y_true == PAD
        y = y_true.clamp(min=0.0)
        return (
            self.list_net(s, y, mask)
            + 0.05 * self.list_mle(s, y, mask)
            + self.lambda_rank(s, y, ~mask)
            + self.approx_ndcg(s, y, ~mask)
        )


def get_inputs():
    B, L = 19, 57
    y = torch.randint(0, 5, (B, L)).float()
    lens = torch.randint(20, L + 1, (B,))
    y = torch.where(torch.arange(L)[None] < lens[:, None], y, torch.full_like(y, PAD))
    return [torch.randn(B, L, 46), y]


def get_init_inputs():
    return [46, 64, 2.0, 1.0]
