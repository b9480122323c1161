import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Corner cases gathered from a pipeline: optional features that may have zero columns, single
    element groups, 0-dim scalars, dtype promotion, out= everywhere, booleans used as numbers."""

    def __init__(self, n_in=40, n_extra=0, hidden=64):
        super().__init__()
        self.fc = nn.Linear(n_in + n_extra, hidden)
        self.extra = nn.Parameter(torch.randn(n_extra, hidden))          # may be empty
        self.one = nn.Parameter(torch.randn(1))
        self.scalar = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(hidden, 1)
        self.ln1 = nn.LayerNorm(1)
        self.register_buffer("best", torch.tensor(float("inf")))
        self.register_buffer("flag", torch.tensor(False))
        self.register_buffer("n", torch.tensor(0, dtype=torch.int16))

    def forward(self, x, extra, idx):
        B = x.shape[0]
        h = self.fc(torch.cat([x, extra], dim=1))
        h = h + extra @ self.extra                                       # K = 0 gives zeros
        e_sum = extra.sum(1)                                             # zeros of shape B
        e_prod = extra.prod(1)                                           # ones
        empty = h[:, :0]
        h = torch.cat([empty, h, empty.detach()], 1)
        none_rows = h[5:5]
        loss0 = none_rows.pow(2).sum() + none_rows.numel()
        stacked = torch.stack([none_rows, none_rows * 2]).view(2, 0, h.size(1))
        cat0 = torch.cat([stacked.flatten(1).sum(1), h.new_zeros(0)])
        # scalars
        s = self.scalar
        k = s * 2
        k += 1
        k = k / torch.tensor(3)                                          # int 0-dim
        h = h * k + self.one.squeeze() - self.one[0] * 0.5
        thr = h.detach().mean() + torch.tensor(0.1, dtype=torch.float64, device=h.device)   # 0-dim double
        assert thr.dtype == torch.float64 and (h * thr).dtype == torch.float32
        m = h > thr
        cnt = m.sum()
        frac = cnt / m.numel()
        as_num = m + m                                                   # bool + bool is or
        as_int = m * 3 - m.long()
        half = torch.where(m, 1, 0.5)
        both = (m & (h < 3)) | (~m ^ (h > 0))
        h = h * half
        h[both.logical_not()] = -0.01
        h = torch.where(h == 0, torch.tensor(-0.02, device=h.device), h)
        # out= with preallocated buffers and no gradients
        with torch.no_grad():
            tmp = torch.empty_like(h)
            torch.add(h, 1, out=tmp)
            torch.clamp(tmp, 0, 50, out=tmp)
            torch.mul(tmp, tmp, out=tmp)
            buf = torch.empty(3, B, dtype=h.dtype, device=h.device)
            torch.sum(tmp, 1, out=buf[0])
            torch.amax(tmp, 1, out=buf[1])
            torch.sub(buf[1], buf[0], out=buf[2])
            vals, ix = h.new_empty(B, 2), idx.new_empty(B, 2)
            torch.topk(tmp, 2, dim=1, out=(vals, ix))
            acc = torch.zeros(B, dtype=torch.float64, device=h.device)
            acc += tmp[:, 0]
            acc //= 0.3
        # groups of one element
        col = h[:, :1]
        var0 = col.var(1, unbiased=False)
        soft1 = col.softmax(1)
        norm1 = self.ln1(col)
        std_all = torch.std(h, correction=0)
        g = h.gather(1, idx.unsqueeze(1)).squeeze()
        g1 = g[None, None].squeeze(0).unsqueeze(-1)[..., 0]
        last = h[-1, -1]
        h = h.clone()
        h[0, 0] = last
        h[1] = s
        h[2:4, ::2] = h[2:4, 1::2]
        h[..., -1] = torch.arange(B, device=h.device)                   # int into float
        # promotions
        i8 = (idx % 5).to(torch.int8)
        u8 = (idx % 7).to(torch.uint8)
        prom = i8 + u8                                                   # int16
        f16 = prom / torch.tensor(2.0, dtype=torch.float16)              # 0-dim half leaves float default
        dbl = h.double().sum(1) + prom
        hlf = (h.half() + 1).sum(1, dtype=torch.float32)
        bf = (h.bfloat16() * h).sum(1)                                   # bf16 * f32 = f32
        ints = (idx.pow(2) - 3 ** 2).abs().float().sqrt().floor().int()
        sq = idx / 2 - idx // 2
        tri = torch.tensor([1, 2, 3], device=h.device).view(3, 1, 1) * torch.ones(1, device=h.device)
        out = self.head(h.tanh()).squeeze(-1)
        cur = out.detach().min()
        if self.training:
            torch.minimum(self.best, cur, out=self.best)
            self.flag.logical_or_(cur < 0)
            self.n += 1
        total = out.mean() + loss0 + cat0.sum() + frac * s + var0.sum() + soft1.mean() * s + norm1.sum()
        total = total + std_all + g1.mean() * k
        best = torch.where(torch.isinf(self.best), torch.zeros_like(self.best), self.best)
        cols = torch.linspace(0, 1, 1, device=h.device) + torch.arange(5, 5, device=h.device).sum()
        return (total, out, e_sum + e_prod, stacked, as_num, as_int, buf, vals, ix, acc, prom, f16.float(),
                dbl, hlf, bf, ints, sq, tri, best, self.flag.clone(), self.n.clone(), cols, cnt)


def get_inputs():
    return [torch.randn(700, 40), torch.randn(700, 0), torch.randint(0, 64, (700,))]


def get_init_inputs():
    return [40, 0, 64]
