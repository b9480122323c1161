from itertools import permutations

import torch
import torch.nn as nn
import torch.nn.functional as F


class GlobLN(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(ch, 1))
        self.beta = nn.Parameter(torch.zeros(ch, 1))

    def forward(self, x):
        mean = x.mean(dim=(1, 2), keepdim=True)
        var = torch.pow(x - mean, 2).mean(dim=(1, 2), keepdim=True)
        return self.gamma * (x - mean) / torch.sqrt(var + 1e-8) + self.beta


class CumLN(nn.Module):
    """Cumulative layer norm: statistics of every frame up to the present one."""

    def __init__(self, ch):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, ch, 1))
        self.beta = nn.Parameter(torch.zeros(1, ch, 1))

    def forward(self, x):
        b, c, t = x.shape
        n = torch.arange(c, c * (t + 1), c, device=x.device, dtype=x.dtype).view(1, -1)
        mean = x.sum(1).cumsum(1) / n
        var = (x.pow(2).sum(1).cumsum(1) / n - mean ** 2).clamp(min=0)
        return (x - mean.unsqueeze(1)) / (var + 1e-5).sqrt().unsqueeze(1) * self.gamma + self.beta


class Conv1DBlock(nn.Module):
    def __init__(self, ch, hidden, skip, k, dilation, causal):
        super().__init__()
        norm = CumLN if causal else GlobLN
        self.pad = ((k - 1) * dilation, 0) if causal else ((k - 1) * dilation // 2, (k - 1) * dilation - (k - 1) * dilation // 2)
        self.inp = nn.Sequential(nn.Conv1d(ch, hidden, 1), nn.PReLU(), norm(hidden))
        self.dw = nn.Conv1d(hidden, hidden, k, dilation=dilation, groups=hidden)
        self.post = nn.Sequential(nn.PReLU(), norm(hidden))
        self.res, self.skip = nn.Conv1d(hidden, ch, 1), nn.Conv1d(hidden, skip, 1)

    def forward(self, x):
        y = self.post(self.dw(F.pad(self.inp(x), self.pad)))
        return x + self.res(y), self.skip(y)


def si_snr(est, ref, eps=1e-8):
    est = est - est.mean(-1, keepdim=True)
    ref = ref - ref.mean(-1, keepdim=True)
    target = (est * ref).sum(-1, keepdim=True) * ref / (ref.pow(2).sum(-1, keepdim=True) + eps)
    noise = est - target
    return 10 * torch.log10(target.pow(2).sum(-1) / (noise.pow(2).sum(-1) + eps) + eps)


class Model(nn.Module):
    """Conv-TasNet: learned filterbank, dilated separators (alternately global and causal cumulative norms),
    masks, ConvTranspose1d synthesis, permutation-invariant SI-SNR."""

    def __init__(self, filters, kernel, bottleneck, hidden, skip, blocks, repeats, speakers):
        super().__init__()
        self.speakers, self.filters, self.stride = speakers, filters, kernel // 2
        self.encoder = nn.Conv1d(1, filters, kernel, stride=kernel // 2, bias=False)
        self.ln = GlobLN(filters)
        self.bottleneck = nn.Conv1d(filters, bottleneck, 1)
        self.tcn = nn.ModuleList()
        for r in range(repeats):
            for i in range(blocks):
                self.tcn.append(Conv1DBlock(bottleneck, hidden, skip, 3 if r == 0 else 4, 2 ** i, causal=bool(r % 2)))
        self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(skip, speakers * filters, 1))
        self.decoder = nn.ConvTranspose1d(filters, 1, kernel, stride=kernel // 2, bias=False)

    def forward(self, mix, sources):
        n = mix.size(-1)
        rest = (self.stride - n % self.stride) % self.stride
        x = F.pad(mix, (self.stride, rest + self.stride)).unsqueeze(1)
        w = F.relu(self.encoder(x))
        y = self.bottleneck(self.ln(w))
        total = 0.0
        for block in self.tcn:
            y, s = block(y)
            total = s + total
        m = torch.sigmoid(self.mask(total)).view(-1, self.speakers, self.filters, w.size(-1))
        est = self.decoder((m * w.unsqueeze(1)).flatten(0, 1)).view(mix.size(0), self.speakers, -1)
        est = est[..., self.stride:self.stride + n]
        pair = si_snr(est.unsqueeze(1), sources.unsqueeze(2))
        perms = torch.tensor(list(permutations(range(self.speakers))), device=mix.device)
        scores = pair[:, torch.arange(self.speakers, device=mix.device), perms].mean(-1)
        best, which = scores.max(dim=1)
        order = perms[which]
        est = est.gather(1, order.unsqueeze(-1).expand(-1, -1, n))
        return est, -best.mean(), order


def get_inputs():
    s = torch.randn(2, 3, 1499)
    return [s.sum(1), s]


def get_init_inputs():
    return [40, 10, 26, 52, 30, 3, 2, 3]
