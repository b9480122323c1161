import torch
import torch.nn as nn
import torch.nn.functional as F


class DiscS(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.convs = nn.ModuleList([
            nn.Conv1d(1, ch, 15, 1, padding=7),
            nn.Conv1d(ch, ch * 2, 21, 4, groups=4, padding=10),
            nn.Conv1d(ch * 2, ch * 4, 21, 4, groups=8, padding=10),
            nn.Conv1d(ch * 4, ch * 4, 5, 1, padding=2),
        ])
        self.post = nn.Conv1d(ch * 4, 1, 3, 1, padding=1)

    def forward(self, x):
        fmap = []
        for c in self.convs:
            x = F.leaky_relu(c(x), 0.1)
            fmap.append(x)
        x = self.post(x)
        fmap.append(x)
        return torch.flatten(x, 1, -1), fmap


class DiscP(nn.Module):
    def __init__(self, period, ch):
        super().__init__()
        self.period = period
        self.convs = nn.ModuleList([
            nn.Conv2d(1, ch, (5, 1), (3, 1), padding=(2, 0)),
            nn.Conv2d(ch, ch * 2, (5, 1), (3, 1), padding=(2, 0)),
        ])
        self.post = nn.Conv2d(ch * 2, 1, (3, 1), 1, padding=(1, 0))

    def forward(self, x):
        b, c, t = x.shape
        if t % self.period != 0:
            n_pad = self.period - (t % self.period)
            x = F.pad(x, (0, n_pad), "reflect")
            t = t + n_pad
        x = x.view(b, c, t // self.period, self.period)
        fmap = []
        for l in self.convs:
            x = F.leaky_relu(l(x), 0.1)
            fmap.append(x)
        x = self.post(x)
        fmap.append(x)
        return torch.flatten(x, 1, -1), fmap


class Model(nn.Module):
    """Vocoder GAN objectives: multi-scale + multi-period discriminators; hinge D, LSGAN G, feature matching."""

    def __init__(self, ch, periods):
        super().__init__()
        self.scale = nn.ModuleList([DiscS(ch), DiscS(ch)])
        self.period = nn.ModuleList([DiscP(p, ch) for p in periods])
        self.pool = nn.AvgPool1d(4, 2, padding=2)

    def run(self, y):
        outs = [d(y) for d in self.period]
        x = y
        for i, d in enumerate(self.scale):
            if i:
                x = self.pool(x)
            outs.append(d(x))
        return outs

    def forward(self, real, fake):
        d_real = self.run(real)
        d_fake = self.run(fake)
        loss_d = loss_g = loss_fm = 0.0
        for (sr, fr), (sf, ff) in zip(d_real, d_fake):
            loss_d = loss_d + torch.mean(F.relu(1 - sr)) + torch.mean(F.relu(1 + sf))
            loss_g = loss_g + torch.mean((1 - sf) ** 2)
            for a, b in zip(fr, ff):
                loss_fm = loss_fm + torch.mean(torch.abs(a.detach() - b))
        return loss_d + loss_g + 2 * loss_fm


def get_inputs():
    return [torch.randn(3, 1, 1501), torch.randn(3, 1, 1501)]


def get_init_inputs():
    return [8, [2, 3, 5]]
