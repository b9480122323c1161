import torch
import torch.nn as nn


class Model(nn.Module):
    """Civil dates from negative and positive epoch seconds by floor divisions, cyclic embeddings."""

    def __init__(self, d):
        super().__init__()
        self.hour = nn.Parameter(torch.randn(24, d) * 0.3)
        self.dow = nn.Parameter(torch.randn(7, d) * 0.3)
        self.mon = nn.Parameter(torch.randn(13, d) * 0.3)
        self.t2v = nn.Parameter(torch.rand(2, d) * 0.2)
        self.register_buffer("cum", torch.tensor([0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334]))

    def civil(self, day):
        z = day + 719468
        era = torch.div(z, 146097, rounding_mode="floor")
        doe = z - era * 146097
        yoe = (doe - doe // 1460 + doe // 36524 - doe // 146096) // 365
        doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
        mp = (5 * doy + 2) // 153
        dom = doy - (153 * mp + 2) // 5 + 1
        month = torch.where(mp < 10, mp + 3, mp - 9)
        return yoe + era * 400 + (month <= 2), month, dom

    def forward(self, ts, val):
        day = torch.div(ts, 86400, rounding_mode="floor")
        sod = ts % 86400
        y, m, d = self.civil(day)
        leap = ((y % 4 == 0) & (y % 100 != 0)) | (y % 400 == 0)
        doy = self.cum[m - 1] + d + (leap & (m > 2))
        wd = (day + 3) % 7
        iso = (doy - wd + 9) // 7
        hr = sod // 3600
        bad = torch.fmod(ts, 86400) != sod
        ph = 2 * torch.pi * doy.to(val.dtype) / (365 + leap)
        emb = self.hour[hr] * torch.sin(ph).unsqueeze(-1) + self.dow[wd] + self.mon[torch.where(leap, 0, m)]
        lin = val.unsqueeze(-1) * self.t2v[0] + self.t2v[1] * (day % 1009).unsqueeze(-1) / 1009
        k = torch.arange(emb.shape[-1], device=ts.device)
        emb = emb + torch.where(k % 3 == 0, lin, torch.sin(lin * 9))
        work = (wd < 5) & (hr >= 9) & (hr < 17)
        hol = torch.minimum((doy - 1).abs(), (doy - 359).abs())
        emb = emb * torch.where(work, 1.0, 0.5).unsqueeze(-1) * torch.exp(-hol / 90.0).unsqueeze(-1)
        gap = ts[:, 1:] - ts[:, :-1]
        same = (day[:, 1:] == day[:, :-1]).sum(1)
        bdays = torch.div(gap, 86400, rounding_mode="trunc")
        bdays = bdays - 2 * torch.div(gap, 604800, rounding_mode="floor")
        tot = (val * work).sum(1) / work.sum(1).clamp(min=1) + emb.logsumexp((1, 2))
        return emb, tot, y * 10000 + m * 100 + d, iso.to(torch.uint8), bdays, same, bad.sum(0)


def get_inputs():
    t0 = torch.randint(-4 * 10**9, 4 * 10**9, (41, 1))
    return [t0 + torch.randint(-60000, 80000, (41, 2003)).cumsum(1), torch.randn(41, 2003)]


def get_init_inputs():
    return [17]
