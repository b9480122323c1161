import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Scores pairs by a bilinear layer and by a low-rank quadratic form, joins both in log space and normalises down the batch."""

    def __init__(self, left, right, classes, rank):
        super().__init__()
        self.pair = nn.Bilinear(left, right, classes)
        self.low = nn.Parameter(torch.randn(classes, left, rank) / left ** 0.5)
        self.temperature = nn.Parameter(torch.tensor(0.7))

    def forward(self, x, y):
        s = self.pair(x, y)  # (N, classes)
        q = torch.einsum("ni,cir->ncr", x, self.low).square().mean(dim=2)
        j = torch.logaddexp(s, -q) / F.softplus(self.temperature)
        column = torch.log_softmax(j, dim=0)
        row = torch.logsumexp(j, dim=1, keepdim=True)
        return torch.lerp(column, j - row, 0.3), F.selu(row).squeeze(1)


def get_inputs():
    return [torch.randn(1019, 61), torch.randn(1019, 47)]


def get_init_inputs():
    return [61, 47, 29, 8]
