import torch
import torch.nn as nn


class Model(nn.Module):
    """Ragged batches by comparing positions with lengths: masked moments, reversal, spans, chunks, F1."""

    def __init__(self, d, ch):
        super().__init__()
        self.ch = ch
        self.q = nn.Parameter(torch.randn(d) * 0.3)
        self.rate = nn.Parameter(torch.tensor(0.4))

    def forward(self, x, ln, st, wd, pred):
        b, t, d = x.shape
        pos = torch.arange(t, device=x.device)
        m = pos < ln[:, None]
        sp = ((pos >= st[..., None]) & (pos < (st + wd)[..., None])).any(1)
        late = pos / ln[:, None].clamp(min=1) > 0.75
        keep = m & ~sp
        me = keep.unsqueeze(-1)
        n = keep.sum(1).clamp(min=1)[:, None]
        mean = (x * me).sum(1) / n
        var = ((x - mean.unsqueeze(1)).square() * me).sum(1) / (n - 1).clamp(min=1)
        xh = torch.where(me, (x - mean.unsqueeze(1)) * torch.rsqrt(var + 1e-5).unsqueeze(1), 0.0)
        mx = torch.where(keep.any(1, keepdim=True), xh.masked_fill(~me, float("-inf")).amax(1), 0.0)
        ri = torch.where(m, ln[:, None] - 1 - pos, pos)
        rev = torch.take_along_dim(xh, ri.unsqueeze(-1), 1)
        left = torch.remainder(pos - (t - ln[:, None]), t)
        lp = xh.gather(1, left.unsqueeze(-1).expand(-1, -1, d))
        last = xh[torch.arange(b, device=x.device), (ln - 1).clamp(min=0)] * (ln > 0)[:, None]
        cid = pos * self.ch // ln[:, None].clamp(min=1)
        oh = ((cid.unsqueeze(-1) == torch.arange(self.ch, device=x.device)) & me).to(x.dtype)
        chunk = torch.einsum("btc,btd->bcd", oh, rev) / oh.sum(1).clamp(min=1).unsqueeze(-1)
        s = (xh @ self.q - self.rate * (late ^ sp)).masked_fill(~m, -1e4)
        a = torch.softmax(s, 1) * m
        ctx = torch.einsum("bt,btd->bd", a, lp) + last * (ln % 2 == 1)[:, None]
        g = sp & m
        tp, fp, fn = (pred & g).sum(1), (pred & ~g & m).sum(1), (~pred & g).sum(1)
        f1 = 2 * tp / (2 * tp + fp + fn).clamp(min=1)
        iou = (tp * 1000) // (tp + fp + fn).clamp(min=1)
        edge = (g[:, 1:] & ~g[:, :-1]).sum(1) + g[:, 0]
        out = rev - lp * keep.flip(1).unsqueeze(-1) + ctx.unsqueeze(1)
        return out, chunk, mx, f1.to(x.dtype), iou, edge, (cid * keep).amax(1), (~(keep | late)).sum(0)


def get_inputs():
    b, t = 61, 397
    st, wd = torch.randint(0, t, (b, 3)), torch.randint(0, 41, (b, 3))
    return [torch.randn(b, t, 37), torch.randint(0, t + 1, (b,)), st, wd, torch.rand(b, t) < 0.2]


def get_init_inputs():
    return [37, 9]
