import torch
import torch.nn as nn
import torch.nn.functional as F


class TNet(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k
        self.a = nn.Conv1d(k, 32, 1)
        self.b = nn.Conv1d(32, 96, 1)
        self.fc = nn.Linear(96, k * k)

    def forward(self, x):
        y = torch.relu(self.b(torch.relu(self.a(x)))).max(dim=2).values
        m = self.fc(y).view(-1, self.k, self.k)
        return m + torch.eye(self.k, dtype=x.dtype, device=x.device)


class EdgeConv(nn.Module):
    def __init__(self, i, o, k):
        super().__init__()
        self.k = k
        self.conv = nn.Conv2d(2 * i, o, 1, bias=False)
        self.bn = nn.BatchNorm2d(o)

    def forward(self, x):
        b, c, n = x.shape
        sq = (x * x).sum(1)
        d = sq[:, :, None] + sq[:, None, :] - 2 * torch.bmm(x.transpose(1, 2), x)
        idx = d.topk(self.k, dim=-1, largest=False)[1]
        nb = torch.gather(x, 2, idx.reshape(b, 1, n * self.k).expand(-1, c, -1)).view(b, c, n, self.k)
        ctr = x.unsqueeze(-1).expand_as(nb)
        y = self.bn(self.conv(torch.cat([nb - ctr, ctr], dim=1)))
        return F.leaky_relu(y, 0.2).amax(-1)


class Model(nn.Module):
    """Point cloud classifier: input transform, two dynamic EdgeConvs, PointNet max/mean pool."""

    def __init__(self, k, classes):
        super().__init__()
        self.t = TNet(3)
        self.e1 = EdgeConv(3, 28, k)
        self.e2 = EdgeConv(28, 44, k)
        self.emb = nn.Conv1d(72, 120, 1)
        self.head = nn.Linear(240, classes)

    def forward(self, pts):
        x = torch.bmm(pts, self.t(pts.transpose(1, 2))).transpose(1, 2)
        a = self.e1(x)
        b = self.e2(a)
        g = F.leaky_relu(self.emb(torch.cat([a, b], 1)), 0.2)
        return self.head(torch.cat([g.amax(-1), g.mean(-1)], 1))


def get_inputs():
    return [torch.rand(2, 170, 3) * 2 - 1]


def get_init_inputs():
    return [11, 13]
