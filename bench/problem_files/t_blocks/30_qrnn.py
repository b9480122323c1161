import torch
import torch.nn as nn
import torch.nn.functional as F


class QRNNLayer(nn.Module):
    def __init__(self, din, dh, window):
        super().__init__()
        self.window, self.dh = window, dh
        self.conv = nn.Conv1d(din, 4 * dh, window)

    def forward(self, x, reverse=False):
        if reverse:
            x = x.flip(-1)
        g = self.conv(F.pad(x, (self.window - 1, 0)))
        z, f, o, i = g.chunk(4, dim=1)
        z, f, o, i = z.tanh(), f.sigmoid(), o.sigmoid(), i.sigmoid()
        iz = i * z
        c = torch.zeros_like(z[..., 0])
        hs = []
        for t in range(x.shape[-1]):
            c = torch.addcmul(iz[..., t], f[..., t], c)
            hs.append(o[..., t] * c)
        h = torch.stack(hs, dim=-1)
        return h.flip(-1) if reverse else h


class Model(nn.Module):
    """Bidirectional two-layer QRNN with ifo-pooling and dense skip."""

    def __init__(self, din, dh, window):
        super().__init__()
        self.f1, self.b1 = QRNNLayer(din, dh, window), QRNNLayer(din, dh, window)
        self.f2, self.b2 = QRNNLayer(din + 2 * dh, dh, window), QRNNLayer(din + 2 * dh, dh, window)

    def forward(self, x):
        h = torch.cat([self.f1(x), self.b1(x, True)], 1)
        h = torch.cat([x, h], 1)
        return torch.cat([self.f2(h), self.b2(h, True)], 1)


def get_inputs():
    return [torch.randn(6, 30, 41)]


def get_init_inputs():
    return [30, 53, 3]
