import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Validation pass: temperature/vector scaling, confusion counts, ECE, Brier, soft F1, pairwise AUC."""

    def __init__(self, num_classes, n_bins, auc_margin):
        super().__init__()
        self.num_classes = num_classes
        self.log_temp = nn.Parameter(torch.tensor(0.2))
        self.vec_scale = nn.Parameter(torch.ones(num_classes))
        self.vec_bias = nn.Parameter(torch.zeros(num_classes))
        self.auc_margin = auc_margin
        self.register_buffer("edges", torch.linspace(0, 1, n_bins + 1))

    def ece(self, conf, correct):
        out = conf.new_zeros(())
        for lo, hi in zip(self.edges[:-1], self.edges[1:]):
            in_bin = (conf > lo) & (conf <= hi)
            n = in_bin.float().sum()
            acc = (correct * in_bin).sum() / n.clamp(min=1)
            avg = (conf * in_bin).sum() / n.clamp(min=1)
            out = out + (avg - acc).abs() * n / conf.numel()
        return out

    def forward(self, logits, labels, binary_scores, binary_labels):
        z = logits * self.vec_scale * torch.exp(-self.log_temp) + self.vec_bias
        probs = z.softmax(dim=1)
        conf, pred = probs.max(1)
        correct = pred.eq(labels).float()

        C = self.num_classes
        cm = torch.bincount(labels * C + pred, minlength=C * C).view(C, C).float()
        tp = cm.diagonal()
        precision = tp / cm.sum(0).clamp(min=1)
        recall = tp / cm.sum(1).clamp(min=1)
        macro_f1 = (2 * precision * recall / (precision + recall).clamp(min=1e-8)).mean()
        iou = (tp / (cm.sum(0) + cm.sum(1) - tp).clamp(min=1)).mean()
        total = cm.sum()
        pe = (cm.sum(0) * cm.sum(1)).sum() / total ** 2
        kappa = (tp.sum() / total - pe) / (1 - pe)

        onehot = F.one_hot(labels, C).float()
        brier = (probs - onehot).square().sum(1).mean()
        stp = (probs * onehot).sum(0)
        soft_f1 = (2 * stp / (probs.sum(0) + onehot.sum(0) + 1e-8)).mean()
        top5 = (z.topk(5, dim=1).indices == labels[:, None]).any(1).float().mean()

        pos, neg = binary_labels.float(), 1 - binary_labels.float()
        diff = binary_scores[:, None] - binary_scores[None, :]
        w = pos[:, None] * neg[None, :]
        auc = ((diff > 0).float() * w).sum() / w.sum()
        auc_surrogate = (F.relu(self.auc_margin - diff).square() * w).sum() / w.sum()
        return torch.stack([
            F.nll_loss(z.log_softmax(1), labels), self.ece(conf, correct), brier, soft_f1, macro_f1,
            iou, kappa, top5, auc, auc_surrogate,
        ])


def get_inputs():
    labels = torch.randint(0, 17, (1230,))
    logits = torch.randn(1230, 17) + 1.5 * F.one_hot(labels, 17)
    bl = torch.rand(430) > 0.7
    return [logits, labels, torch.randn(430) + bl.float(), bl]


def get_init_inputs():
    return [17, 15, 1.0]
