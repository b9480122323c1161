import torch
import torch.nn as nn
import torch.nn.functional as F


class RelativeBucketedTimeAndPositionBias(nn.Module):
    """Position table plus a table over log-bucketed time differences to the next item."""

    def __init__(self, max_len, num_buckets):
        super().__init__()
        self.max_len, self.num_buckets = max_len, num_buckets
        self.ts_w = nn.Parameter(torch.randn(num_buckets + 1) * 0.02)
        self.pos_w = nn.Parameter(torch.randn(2 * max_len - 1) * 0.02)

    def forward(self, timestamps):
        B, N = timestamps.shape
        t = F.pad(self.pos_w[: 2 * N - 1], [0, N]).repeat(N)
        t = t[..., :-N].reshape(1, N, 3 * N - 2)
        r = (2 * N - 1) // 2
        rel_pos = t[:, :, r:-r]
        ext = torch.cat([timestamps, timestamps[:, N - 1: N]], dim=1)
        diff = ext[:, 1:].unsqueeze(2) - ext[:, :-1].unsqueeze(1)
        bucket = (torch.log(torch.abs(diff).clamp(min=1).float()) / 0.301).long().clamp(min=0, max=self.num_buckets).detach()
        rel_ts = torch.index_select(self.ts_w, dim=0, index=bucket.view(-1)).view(B, N, N)
        return rel_pos + rel_ts


class HSTULayer(nn.Module):
    """Pointwise aggregated attention: silu(QK^T + rab) / N, gated by U, no softmax."""

    def __init__(self, dim, heads, qk_dim, v_dim, max_len, buckets, eps=1e-6):
        super().__init__()
        self.heads, self.qk_dim, self.v_dim, self.eps, self.dim = heads, qk_dim, v_dim, eps, dim
        self.uvqk = nn.Parameter(torch.randn(dim, heads * 2 * (v_dim + qk_dim)) * 0.02)
        self.rab = RelativeBucketedTimeAndPositionBias(max_len, buckets)
        self.o = nn.Linear(heads * v_dim, dim)

    def forward(self, x, timestamps, mask):
        B, N, D = x.shape
        h, qd, vd = self.heads, self.qk_dim, self.v_dim
        normed = F.layer_norm(x, normalized_shape=[D], eps=self.eps)
        mm = F.silu(torch.mm(normed.view(-1, D), self.uvqk))
        u, v, q, k = torch.split(mm, [vd * h, vd * h, qd * h, qd * h], dim=1)
        qk = torch.einsum("bnhd,bmhd->bhnm", q.view(B, N, h, qd), k.view(B, N, h, qd))
        qk = qk + self.rab(timestamps).unsqueeze(1)
        qk = F.silu(qk) / N
        qk = qk * mask.unsqueeze(1)
        attn = torch.einsum("bhnm,bmhd->bnhd", qk, v.reshape(B, N, h, vd)).reshape(B, N, h * vd)
        attn = F.layer_norm(attn, normalized_shape=[h * vd], eps=self.eps)
        return self.o(u.view(B, N, -1) * attn) + x


class Model(nn.Module):
    def __init__(self, n_items, dim, heads, qk_dim, v_dim, depth, max_len, buckets, temperature):
        super().__init__()
        self.temperature, self.max_len = temperature, max_len
        self.item_emb = nn.Embedding(n_items + 1, dim, padding_idx=0)
        self.pos_emb = nn.Embedding(max_len, dim)
        nn.init.normal_(self.item_emb.weight, std=0.02)
        self.layers = nn.ModuleList([HSTULayer(dim, heads, qk_dim, v_dim, max_len, buckets) for _ in range(depth)])

    def forward(self, items, gaps, lengths, negatives):
        B, N = items.shape
        timestamps = torch.cumsum(gaps, dim=1)
        pos = torch.arange(N, device=items.device)
        valid = pos[None, :] < lengths[:, None]
        items = items.masked_fill(~valid, 0)
        x = self.item_emb(items) * (self.item_emb.embedding_dim ** 0.5) + self.pos_emb(pos)
        x = x * valid.unsqueeze(-1).to(x.dtype)
        causal = torch.tril(torch.ones(N, N, dtype=torch.bool, device=x.device))
        mask = (causal[None] & valid[:, None, :]).to(x.dtype)
        for layer in self.layers:
            x = layer(x, timestamps, mask) * valid.unsqueeze(-1).to(x.dtype)

        # sampled softmax over the next item with shared negatives, l2-normalised
        out = x / torch.clamp(torch.linalg.norm(x.float(), dim=-1, keepdim=True), min=1e-6).to(x.dtype)
        target = items[:, 1:]
        pos_e = F.normalize(self.item_emb(target).float(), dim=-1, eps=1e-6)
        neg_e = F.normalize(self.item_emb(negatives).float(), dim=-1, eps=1e-6)
        query = out[:, :-1].float()
        pos_logit = (query * pos_e).sum(-1, keepdim=True) / self.temperature
        neg_logit = torch.einsum("bnd,kd->bnk", query, neg_e) / self.temperature
        clash = target.unsqueeze(-1) == negatives
        neg_logit = torch.where(clash, torch.full_like(neg_logit, -5e4), neg_logit)
        nll = -F.log_softmax(torch.cat([pos_logit, neg_logit], dim=-1), dim=-1)[..., 0]
        w = (target != 0).float()
        last = torch.gather(out, 1, (lengths - 1).view(-1, 1, 1).expand(-1, 1, out.shape[-1])).squeeze(1)
        return (nll * w).sum() / w.sum().clamp(min=1.0), last


def get_inputs():
    B, N = 16, 512
    return [
        torch.randint(1, 200001, (B, N)),
        torch.randint(1, 86400, (B, N)),
        torch.randint(N // 2, N + 1, (B,)),
        torch.randint(1, 200001, (512,)),
    ]


def get_init_inputs():
    return [200000, 512, 8, 64, 64, 2, 512, 128, 0.05]
