import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """All the nn losses with odd options, from a shared trunk."""

    def __init__(self, d=24, C=9):
        super().__init__()
        self.C = C
        self.trunk = nn.Sequential(nn.Linear(d, 48), nn.ELU(), nn.Linear(48, 48), nn.Hardswish())
        self.cls = nn.Linear(48, C)
        self.reg = nn.Linear(48, 6)
        self.emb = nn.Linear(48, 16)
        self.asm = nn.AdaptiveLogSoftmaxWithLoss(48, 40, cutoffs=[10, 25], div_value=2.0)
        self.w = nn.Parameter(torch.zeros(21))
        cw = torch.linspace(0.5, 1.5, C)
        self.losses = nn.ModuleDict({
            "ce": nn.CrossEntropyLoss(weight=cw, ignore_index=2, label_smoothing=0.1),
            "nll": nn.NLLLoss(weight=cw, reduction="mean"),
            "l1": nn.L1Loss(reduction="sum"),
            "mse": nn.MSELoss(reduction="none"),
            "huber": nn.HuberLoss(delta=0.7),
            "sl1": nn.SmoothL1Loss(beta=0.3),
            "bce": nn.BCELoss(),
            "bcel": nn.BCEWithLogitsLoss(pos_weight=torch.arange(1, 7).float()),
            "kl": nn.KLDivLoss(reduction="batchmean", log_target=True),
            "poisson": nn.PoissonNLLLoss(log_input=True, full=True),
            "hinge": nn.HingeEmbeddingLoss(margin=1.5),
            "mlm": nn.MultiLabelMarginLoss(),
            "mlsm": nn.MultiLabelSoftMarginLoss(),
            "mm": nn.MultiMarginLoss(p=2, margin=0.8),
            "soft": nn.SoftMarginLoss(),
            "cos": nn.CosineEmbeddingLoss(margin=0.2),
            "rank": nn.MarginRankingLoss(margin=0.1),
            "trip": nn.TripletMarginLoss(margin=0.9, p=2, swap=True),
            "tripd": nn.TripletMarginWithDistanceLoss(
                distance_function=lambda a, b: 1.0 - F.cosine_similarity(a, b), margin=0.4),
        })

    def forward(self, x, y, t, s):
        L = self.losses
        h = self.trunk(x)
        z, r, e = self.cls(h), self.reg(h), self.emb(h)
        sign = s * 2 - 1
        a, p, n = e, e.roll(1, 0), e.roll(-3, 0)
        multi = torch.full_like(z, -1, dtype=torch.long)
        multi[:, 0] = y
        multi[:, 1] = (y + 1) % self.C
        pos = (t > 0).to(z.dtype)
        vals = []
        vals += [L["ce"](z, y)]
        vals += [L["nll"](F.log_softmax(z, 1), y)]
        vals += [L["l1"](r, t) / r.numel()]
        vals += [L["mse"](r, t).mean(0).max()]
        vals += [L["huber"](r, t), L["sl1"](r, t)]
        vals += [L["bce"](r.sigmoid(), pos), L["bcel"](r, pos)]
        vals += [L["kl"](F.log_softmax(z, 1), F.log_softmax(z.detach().roll(1, 0) * 2, 1))]
        vals += [L["poisson"](r.clamp(max=3), t.abs().round())]
        # nn.GaussianNLLLoss asserts on values, so it is spelled out
        var = (F.softplus(r[:, 3:]) + 0.1).clamp(min=1e-6)
        vals += [0.5 * (var.log() + (r[:, :3] - t[:, :3]) ** 2 / var + 1.8378770664093453).mean()]
        vals += [L["hinge"](r.abs().mean(1), sign)]
        vals += [L["mlm"](z, multi)]
        vals += [L["mlsm"](z, F.one_hot(y, self.C).float())]
        vals += [L["mm"](z, y), L["soft"](r[:, 0], sign.float())]
        vals += [L["cos"](a, p, sign), L["rank"](r[:, 0], r[:, 1], sign)]
        vals += [L["trip"](a, p, n), L["tripd"](a, p, n)]
        vals.append(F.nll_loss(self.asm.log_prob(h), (y * 4 + s) % 40))
        vals = torch.stack([v.reshape(()) for v in vals])
        # uncertainty weighting
        total = (torch.exp(-self.w) * vals + self.w).sum()
        # image-like cross entropy with soft labels and per-pixel ignore
        pix = z[:60].reshape(4, 15, self.C).permute(0, 2, 1)
        tgt = y[:60].view(4, 15).masked_fill(s[:60].view(4, 15) == 0, -100)
        dense = F.cross_entropy(pix, tgt, reduction="sum")
        softce = F.cross_entropy(z, F.softmax(z.detach() / 0.5, -1), reduction="none")
        focal = (1 - torch.exp(-softce)).pow(2) * softce
        dice = 1 - (2 * (r.sigmoid() * pos).sum() + 1) / (r.sigmoid().sum() + pos.sum() + 1)
        return total, vals, dense, focal.mean(), dice


def get_inputs():
    n = 512
    return [torch.randn(n, 24), torch.randint(0, 9, (n,)), torch.randn(n, 6), torch.randint(0, 2, (n,))]


def get_init_inputs():
    return [24, 9]
