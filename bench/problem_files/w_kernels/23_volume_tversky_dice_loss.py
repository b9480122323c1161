import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Softmax over channels of volumes, one-hot targets, Tversky overlap per class, focal power, boundary term."""

    def __init__(self, classes, alpha, power):
        super().__init__()
        self.classes = classes
        self.alpha = alpha
        self.power = power
        self.temp = nn.Parameter(torch.ones(classes))

    def forward(self, logits, target):
        p = torch.softmax(logits * self.temp.view(1, -1, 1, 1, 1), dim=1)
        t = F.one_hot(target, self.classes).permute(0, 4, 1, 2, 3).to(p.dtype)
        dims = (2, 3, 4)
        tp = (p * t).sum(dims)
        fp = (p * (1.0 - t)).sum(dims)
        fn = ((1.0 - p) * t).sum(dims)
        overlap = (tp + 1.0) / (tp + self.alpha * fp + (1.0 - self.alpha) * fn + 1.0)
        tv = (p[..., 1:] - p[..., :-1]).abs().mean(dims)
        return ((1.0 - overlap) ** self.power + 0.1 * tv).mean(dim=1)


batch = 4
classes = 5


def get_inputs():
    return [
        torch.randn(batch, classes, 60, 150, 150),
        torch.randint(0, classes, (batch, 60, 150, 150)),
    ]


def get_init_inputs():
    return [classes, 0.3, 0.75]
