import torch
import torch.nn as nn
import torch.nn.functional as F


def sinkhorn(r, n_iters):
    for _ in range(n_iters):
        r = r - torch.logsumexp(r, dim=2, keepdim=True)
        r = r - torch.logsumexp(r, dim=1, keepdim=True)
    return torch.exp(r)


class SinkhornAttention(nn.Module):
    """First heads attend in their own bucket, the others to their bucket and a soft-sorted one."""

    def __init__(self, d, heads, n_local, bucket, n_buckets, iters):
        super().__init__()
        self.h, self.nl, self.bs, self.iters, self.dh = heads, n_local, bucket, iters, d // heads
        self.to_q, self.to_kv = nn.Linear(d, d, bias=False), nn.Linear(d, 2 * d, bias=False)
        self.to_out, ns = nn.Linear(d, d), heads - n_local
        self.q_pos = nn.Parameter(torch.randn(1, ns, n_buckets, self.dh) * 0.1)
        self.k_pos = nn.Parameter(torch.randn(1, ns, n_buckets, self.dh) * 0.1)
        self.sort_w = nn.Parameter(torch.randn(ns, 2 * self.dh, n_buckets) * 0.1)
        self.null_k, self.null_v = [nn.Parameter(torch.randn(ns, 1, self.dh)) for _ in range(2)]
        self.log_temp = nn.Parameter(torch.full((ns, 1, 1), -0.3))

    def bucket(self, x):
        return x.reshape(*x.shape[:2], -1, self.bs, self.dh)

    def local(self, q, k, v, mask):
        q, k, v = map(self.bucket, (q, k, v))
        k, v = [torch.cat([F.pad(y[:, :, :-1], (0, 0, 0, 0, 1, 0)), y], dim=3) for y in (k, v)]
        m = mask.view(mask.shape[0], 1, -1, self.bs)
        m = torch.cat([F.pad(m[:, :, :-1], (0, 0, 1, 0)), m], dim=3)
        a = torch.einsum("bhnid,bhnjd->bhnij", q, k) * self.dh ** -0.5
        a = a.masked_fill(~m.unsqueeze(3), -1e4).softmax(-1)
        return torch.einsum("bhnij,bhnjd->bhnid", a, v).flatten(2, 3)

    def sorted(self, q, k, v, mask):
        q, k, v = map(self.bucket, (q, k, v))
        b, h, n = q.shape[:3]
        sq, sk = q.mean(3) + self.q_pos, k.mean(3) + self.k_pos
        r = F.leaky_relu(torch.einsum("bhnd,hdm->bhnm", torch.cat([sq, sk], dim=-1), self.sort_w), 0.2)
        r = r + sq @ sk.transpose(-1, -2) * self.dh ** -0.5
        eye = torch.eye(n, dtype=torch.bool, device=r.device)
        r = (r / self.log_temp.exp()).masked_fill(eye, -1e4)
        r = sinkhorn(r.reshape(b * h, n, n), self.iters).view(b, h, n, n)
        m = mask.view(b, 1, n, self.bs)
        gather = lambda x: torch.einsum("bhij,bhjd->bhid", r, x.flatten(3)).view_as(x)
        m_sorted = torch.einsum("bhij,bhjs->bhis", r, m.expand(-1, h, -1, -1).to(r.dtype)) > 0.5
        nk, nv = [t.unsqueeze(1).expand(b, -1, n, -1, -1) for t in (self.null_k, self.null_v)]
        k, v = torch.cat([nk, gather(k), k], dim=3), torch.cat([nv, gather(v), v], dim=3)
        m = F.pad(torch.cat([m_sorted, m.expand(-1, h, -1, -1)], dim=3), (1, 0), value=True)
        a = torch.einsum("bhnid,bhnjd->bhnij", q, k) * self.dh ** -0.5
        a = a.masked_fill(~m.unsqueeze(3), -1e4).softmax(-1)
        return torch.einsum("bhnij,bhnjd->bhnid", a, v).flatten(2, 3)

    def forward(self, x, mask):
        b, t, d = x.shape
        qkv = [self.to_q(x), *self.to_kv(x).chunk(2, dim=-1)]
        qkv = [y.view(b, t, self.h, self.dh).transpose(1, 2) for y in qkv]
        lo, so = zip(*[(y[:, :self.nl], y[:, self.nl:]) for y in qkv])
        out = torch.cat([self.local(*lo, mask), self.sorted(*so, mask)], dim=1)
        return self.to_out(out.transpose(1, 2).reshape(b, t, d))


class ChunkedFF(nn.Module):
    def __init__(self, d, chunks):
        super().__init__()
        self.w1, self.w2, self.chunks = nn.Linear(d, 8 * d), nn.Linear(4 * d, d), chunks

    def forward(self, x):
        out = []
        for c in x.chunk(self.chunks, dim=1):
            v, g = self.w1(c).chunk(2, dim=-1)
            out.append(self.w2(F.gelu(g) * v))
        return torch.cat(out, dim=1)


class Model(nn.Module):
    """Sinkhorn transformer MLM: log-space soft bucket sorting, reversible residual streams, auto padding."""

    def __init__(self, vocab, d, depth, heads, n_local, bucket, n_buckets, iters):
        super().__init__()
        self.bucket, self.n_buckets = bucket, n_buckets
        self.emb, self.proj = nn.Embedding(vocab, d // 2), nn.Linear(d // 2, d)
        nn.init.normal_(self.emb.weight, std=0.1)
        n = int(n_buckets ** 0.5) + 1
        self.ax1, self.ax2 = [nn.Parameter(torch.randn(*s, d)) for s in ((n * bucket // 4, 1), (1, n * 4))]
        self.attn = nn.ModuleList([SinkhornAttention(d, heads, n_local, bucket, n_buckets, iters)
                                   for _ in range(depth)])
        self.ff = nn.ModuleList([ChunkedFF(d, 3) for _ in range(depth)])
        self.g = nn.ParameterList([torch.tensor(1.0) for _ in range(2 * depth)])
        self.norm = nn.LayerNorm(d)

    def rescale(self, x, i):
        n = x.norm(dim=-1, keepdim=True) * x.shape[-1] ** -0.5
        return x * n.clamp(min=1e-5).reciprocal() * self.g[i]

    def forward(self, ids, labels, mask):
        t, total = ids.shape[1], self.bucket * self.n_buckets
        ids, mask = F.pad(ids, (0, total - t)), F.pad(mask, (0, total - t), value=False)
        x = self.proj(self.emb(ids)) + 0.1 * (self.ax1 + self.ax2).flatten(0, 1)[:total]
        x1, x2 = x, x
        for i, (f, g) in enumerate(zip(self.attn, self.ff)):
            x1 = x1 + f(self.rescale(x2, 2 * i), mask)
            x2 = x2 + g(self.rescale(x1, 2 * i + 1))
        x = self.norm(torch.stack([x1, x2]).mean(0))[:, :t]
        logits = F.linear(F.linear(x, self.proj.weight.t()), self.emb.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100), logits


def get_inputs():
    ids, hide = torch.randint(1, 2003, (3, 205)), torch.rand(3, 205) < 0.15
    live = torch.arange(205)[None] < torch.randint(150, 206, (3, 1))
    return [ids.masked_fill(hide, 0), torch.where(hide & live, ids, -100), live]


def get_init_inputs():
    return [2003, 256, 3, 8, 3, 16, 13, 7]
