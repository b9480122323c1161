import torch
import torch.nn as nn
import torch.nn.functional as F

B, T, CI, C, O = 32, 1029, 36, 360, 6


class WNConv1d(nn.Module):
    """Causal dilated convolution with w = g * v / |v| per output channel."""

    def __init__(self, cin, cout, kernel, dilation):
        super().__init__()
        self.v = nn.Parameter(torch.randn(cout, cin, kernel))
        self.g = nn.Parameter(torch.ones(cout, 1, 1) * (1 + 0.1 * torch.randn(cout, 1, 1)))
        self.b = nn.Parameter(torch.randn(cout) * 0.1)
        self.dilation, self.pad = dilation, (kernel - 1) * dilation

    def forward(self, x):
        w = self.g * self.v / self.v.flatten(1).norm(dim=1).view(-1, 1, 1)
        return F.conv1d(F.pad(x, (self.pad, 0)), w, self.b, dilation=self.dilation)


class Model(nn.Module):
    """WaveNet-like gated TCN with skip sums, a quantile head (non crossing by softplus
    increments) with pinball loss, and a Huber loss on the median path."""

    def __init__(self, cin, ch, outs, quantiles, dilations, delta):
        super().__init__()
        self.inp = nn.Conv1d(cin, ch, 1)
        self.gated = nn.ModuleList([WNConv1d(ch, 2 * ch, 3, d) for d in dilations])
        self.mix = nn.ModuleList([WNConv1d(ch, 2 * ch, 1, 1) for _ in dilations])
        self.head = nn.Linear(ch, outs * len(quantiles))
        self.level = nn.Parameter(torch.zeros(outs, 1))
        self.outs, self.delta = outs, delta
        self.register_buffer("taus", torch.tensor(quantiles))

    def forward(self, x, y):
        h = self.inp(x.transpose(1, 2))
        skip = 0
        for conv, mix in zip(self.gated, self.mix):
            filt, gate = conv(h).chunk(2, dim=1)
            res, s = mix(torch.tanh(filt) * torch.sigmoid(gate)).chunk(2, dim=1)
            h = (h + res) * 0.5 ** 0.5
            skip = skip + s
        z = F.relu(skip / len(self.gated) ** 0.5).transpose(1, 2)
        raw = self.head(z).unflatten(-1, (self.outs, -1))
        base, inc = raw[..., :1] + self.level, F.softplus(raw[..., 1:])
        q = torch.cat([base, base + inc.cumsum(-1)], dim=-1) - 1
        err = y.unsqueeze(-1) - q
        pinball = torch.maximum(self.taus * err, (self.taus - 1) * err).sum(-1).mean()
        huber = F.huber_loss(q[..., q.shape[-1] // 2], y, delta=self.delta)
        return pinball + huber, q


def get_inputs():
    return [torch.randn(B, T, CI), torch.randn(B, T, O)]


def get_init_inputs():
    return [CI, C, O, [0.1, 0.25, 0.5, 0.75, 0.9], [1, 2, 4, 8], 1.0]
