import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """WaveNet dilated causal stack with global FiLM conditioning and mu-law class output."""

    def __init__(self, res, skip, cond, dilations, classes):
        super().__init__()
        self.dil = dilations
        self.front = nn.Embedding(classes, res)
        n = len(dilations)
        self.gate = nn.ModuleList([nn.Conv1d(res, 2 * res, 2, dilation=d) for d in dilations])
        self.film = nn.Linear(cond, n * 4 * res)
        self.res = nn.ModuleList([nn.Conv1d(res, res, 1) for _ in dilations])
        self.skip = nn.ModuleList([nn.Conv1d(res, skip, 1) for _ in dilations])
        self.o1 = nn.Conv1d(skip, skip, 1)
        self.o2 = nn.Conv1d(skip, classes, 1)

    def forward(self, tokens, cond):
        x = self.front(tokens).transpose(1, 2)
        film = self.film(cond).view(cond.size(0), len(self.dil), 2, -1, 1)
        total = 0
        for i, d in enumerate(self.dil):
            y = self.gate[i](F.pad(x, (d, 0)))
            y = y * (1 + film[:, i, 0]) + film[:, i, 1]
            f, g = y.chunk(2, dim=1)
            z = torch.tanh(f) * torch.sigmoid(g)
            total = total + self.skip[i](z)
            x = (x + self.res[i](z)) * 0.5 ** 0.5
        return self.o2(F.relu(self.o1(F.relu(total))))


def get_inputs():
    return [torch.randint(0, 64, (2, 210)), torch.randn(2, 17)]


def get_init_inputs():
    return [26, 38, 17, [1, 2, 4, 8, 16, 1, 2, 4, 8], 64]
