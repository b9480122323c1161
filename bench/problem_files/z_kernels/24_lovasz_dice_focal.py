import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Lovasz-softmax by sort and cumsum for all classes, soft Dice and focal loss, with an ignore mask."""

    def __init__(self, gamma, ignore):
        super().__init__()
        self.gamma, self.ignore = gamma, ignore
        self.logit_scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, logits, target):
        c = logits.shape[1]
        lp = F.log_softmax(logits * self.logit_scale, dim=1)
        valid = target != self.ignore
        tgt = torch.where(valid, target, torch.zeros_like(target))
        lpt = torch.gather(lp, 1, tgt.unsqueeze(1)).squeeze(1)
        n = valid.sum().clamp(min=1)
        focal = (-(1 - lpt.exp()) ** self.gamma * lpt * valid).sum() / n
        p = lp.exp().permute(1, 0, 2, 3).reshape(c, -1)
        v = valid.reshape(1, -1).to(p.dtype)
        fg = F.one_hot(tgt.reshape(-1), c).t().to(p.dtype) * v
        dice = 1 - (2 * (p * fg).sum(1) + 1) / ((p * v).sum(1) + fg.sum(1) + 1)
        err, perm = torch.sort((fg - p).abs() * v, dim=1, descending=True)
        fs, vs = torch.gather(fg, 1, perm), torch.gather(v.expand(c, -1), 1, perm)
        tot = fs.sum(1, keepdim=True)
        inter = tot - fs.cumsum(1)
        union = (tot + (vs - fs).cumsum(1)).clamp(min=1)
        jac = 1 - inter / union
        grad = torch.cat([jac[:, :1], jac[:, 1:] - jac[:, :-1]], 1)
        lov = (err * grad).sum(1)
        return focal + dice.mean() + lov.mean(), dice, lov


def get_inputs():
    return [torch.randn(8, 19, 151, 163), torch.randint(0, 20, (8, 151, 163))]


def get_init_inputs():
    return [2.0, 19]
