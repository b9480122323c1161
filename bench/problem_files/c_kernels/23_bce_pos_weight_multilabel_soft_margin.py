import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Multi-label loss: BCE with per-label positive weights on margin-shifted logits, a ranking margin against a second head, and a soft dice term."""

    def __init__(self, num_labels, shift, margin):
        super().__init__()
        self.register_buffer("pos_weight", 1.0 + 4.0 * torch.linspace(0.0, 1.0, num_labels))
        self.shift = shift
        self.margin = margin

    def forward(self, logits, other, labels):
        y = labels.to(logits.dtype)
        shifted = logits - self.shift * (2.0 * y - 1.0)
        bce = F.binary_cross_entropy_with_logits(shifted, y, pos_weight=self.pos_weight, reduction="none")
        rank = F.margin_ranking_loss(logits, other, 2.0 * y - 1.0, margin=self.margin, reduction="none")
        p = torch.sigmoid(logits)
        dice = 1.0 - (2.0 * (p * y).sum(dim=1) + 1.0) / (p.sum(dim=1) + y.sum(dim=1) + 1.0)
        return bce.mean(dim=1) + rank.mean(dim=1) + dice


def get_inputs():
    b, c = 5011, 1203
    return [torch.randn(b, c), torch.randn(b, c), torch.randint(0, 2, (b, c))]


def get_init_inputs():
    return [1203, 0.35, 0.5]
