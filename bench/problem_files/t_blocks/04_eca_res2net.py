import torch
import torch.nn as nn


class Model(nn.Module):
    """Res2Net bottleneck with hierarchical splits and efficient channel attention."""

    def __init__(self, ch, width, scale, k):
        super().__init__()
        self.width = width
        self.scale = scale
        self.inp = nn.Conv2d(ch, width * scale, 1, bias=False)
        self.bn_in = nn.BatchNorm2d(width * scale)
        self.convs = nn.ModuleList(
            [nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(scale - 1)]
        )
        self.bns = nn.ModuleList([nn.BatchNorm2d(width) for _ in range(scale - 1)])
        self.out = nn.Conv2d(width * scale, ch, 1, bias=False)
        self.bn_out = nn.BatchNorm2d(ch)
        self.eca = nn.Conv1d(1, 1, k, padding=(k - 1) // 2, bias=False)

    def forward(self, x):
        y = torch.relu(self.bn_in(self.inp(x)))
        parts = torch.split(y, self.width, dim=1)
        outs = [parts[0]]
        prev = None
        for i in range(1, self.scale):
            z = parts[i] if prev is None else parts[i] + prev
            prev = torch.relu(self.bns[i - 1](self.convs[i - 1](z)))
            outs.append(prev)
        y = self.bn_out(self.out(torch.cat(outs, dim=1)))
        s = y.mean(dim=(-2, -1)).unsqueeze(1)
        s = self.eca(s).squeeze(1).sigmoid()
        return torch.relu(x + y * s.unsqueeze(-1).unsqueeze(-1))


def get_inputs():
    return [torch.randn(2, 72, 29, 29)]


def get_init_inputs():
    return [72, 13, 5, 5]
