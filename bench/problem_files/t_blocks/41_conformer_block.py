import torch
import torch.nn as nn
import torch.nn.functional as F


class FFN(nn.Module):
    def __init__(self, d, m):
        super().__init__()
        self.n, self.a, self.b = nn.LayerNorm(d), nn.Linear(d, d * m), nn.Linear(d * m, d)

    def forward(self, x):
        return self.b(F.silu(self.a(self.n(x))))


class Model(nn.Module):
    """Conformer block, then TDNN layers with attentive statistics pooling for a speaker embedding."""

    def __init__(self, d, heads, k, tdnn, emb):
        super().__init__()
        self.h = heads
        self.f1, self.f2 = FFN(d, 3), FFN(d, 3)
        self.na, self.qkv, self.o = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.nc = nn.LayerNorm(d)
        self.p1 = nn.Conv1d(d, 2 * d, 1)
        self.dw = nn.Conv1d(d, d, k, padding=k // 2, groups=d)
        self.bn = nn.BatchNorm1d(d)
        self.p2 = nn.Conv1d(d, d, 1)
        self.nf = nn.LayerNorm(d)
        self.t1 = nn.Conv1d(d, tdnn, 3, dilation=2)
        self.t2 = nn.Conv1d(tdnn, tdnn, 3, dilation=3)
        self.att1 = nn.Conv1d(3 * tdnn, 20, 1)
        self.att2 = nn.Conv1d(20, tdnn, 1)
        self.fc = nn.Linear(2 * tdnn, emb)

    def attend(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.na(x)).view(b, n, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))

    def conv(self, x):
        y = F.glu(self.p1(self.nc(x).transpose(1, 2)), dim=1)
        return self.p2(F.silu(self.bn(self.dw(y)))).transpose(1, 2)

    def forward(self, x):
        x = x + 0.5 * self.f1(x)
        x = x + self.attend(x)
        x = x + self.conv(x)
        x = self.nf(x + 0.5 * self.f2(x))
        h = F.relu(self.t2(F.relu(self.t1(x.transpose(1, 2)))))
        mu = h.mean(-1, keepdim=True)
        sd = h.var(-1, keepdim=True).clamp(min=1e-6).sqrt()
        a = torch.cat([h, mu.expand_as(h), sd.expand_as(h)], 1)
        w = torch.softmax(self.att2(torch.tanh(self.att1(a))), -1)
        m = (w * h).sum(-1)
        s = ((w * h * h).sum(-1) - m * m).clamp(min=1e-6).sqrt()
        return F.normalize(self.fc(torch.cat([m, s], 1)), dim=1)


def get_inputs():
    return [torch.randn(2, 123, 80)]


def get_init_inputs():
    return [80, 5, 15, 66, 49]
