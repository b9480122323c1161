import torch
import torch.nn as nn


class Model(nn.Module):
    """DeBERTa-like attention: content-position and position-content terms gathered by log buckets."""

    def __init__(self, dim, heads, span, max_dist):
        super().__init__()
        self.h, self.span, self.maxd = heads, span, max_dist
        self.log_span = float(torch.log(torch.tensor((max_dist - 1) / (span // 2))))
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim)
        self.rel = nn.Parameter(torch.randn(2 * span, dim) * 0.1)

    def forward(self, x, lengths):
        b, t, d = x.shape
        h, dh, mid = self.h, d // self.h, self.span // 2
        sp = lambda u: u.view(u.shape[0], -1, h, dh).transpose(1, 2)
        q, k, v = sp(self.q(x)), sp(self.k(x)), sp(self.v(x))
        pq, pk = sp(self.q(self.rel).unsqueeze(0)), sp(self.k(self.rel).unsqueeze(0))
        i = torch.arange(t, device=x.device)
        r = i.unsqueeze(1) - i
        far = torch.ceil(torch.log(r.abs().clamp(min=1).to(x.dtype) / mid)
                         / self.log_span * (mid - 1) - 1e-3) + mid
        bucket = torch.where(r.abs() <= mid, r, far.to(r.dtype) * torch.sign(r))
        idx = (bucket + self.span).clamp(0, 2 * self.span - 1)
        c2p = torch.gather(q @ pk.transpose(-1, -2), -1, idx.expand(b, h, t, t))
        p2c = torch.gather(k @ pq.transpose(-1, -2), -1, idx.expand(b, h, t, t)).transpose(-1, -2)
        s = (q @ k.transpose(-1, -2) + c2p + p2c) / (3 * dh) ** 0.5
        pad = i >= lengths.unsqueeze(1)
        s = s.masked_fill(pad.view(b, 1, 1, t), torch.finfo(s.dtype).min)
        y = (torch.softmax(s, -1) @ v).transpose(1, 2).reshape(b, t, d)
        return y * (~pad).unsqueeze(-1)


def get_inputs():
    return [torch.randn(5, 389, 320), torch.randint(200, 390, (5,))]


def get_init_inputs():
    return [320, 8, 48, 256]
