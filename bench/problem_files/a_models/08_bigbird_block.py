import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class BlockSparseAttention(nn.Module):
    """First and last blocks global; the rest see first, previous, own, next, two fixed random, last block."""

    def __init__(self, d, heads, block, n_blocks, n_rand):
        super().__init__()
        self.h, self.dh, self.bs, self.n = heads, d // heads, block, n_blocks
        self.query, self.key, self.value, self.dense = [nn.Linear(d, d) for _ in range(4)]
        rand, dup = [], []
        for _ in range(heads):
            rows, drow = [], []
            for i in range(1, n_blocks - 1):
                legal = [j for j in range(1, n_blocks - 1) if abs(i - j) > 1]
                rows.append([legal[j] for j in torch.randperm(len(legal))[:n_rand].tolist()])
                drow.append([0.0, float(i == 1), 0.0, float(i == n_blocks - 2)] + [0.0] * (n_rand + 1))
            rand.append(rows)
            dup.append(drow)
        self.register_buffer("rand", torch.tensor(rand))
        self.register_buffer("dup", torch.tensor(dup[0]))
        self.scale = 1 / math.sqrt(self.dh)

    def gather(self, x):
        h = torch.arange(self.h, device=x.device)[:, None, None]
        return x[:, h, self.rand].flatten(3, 4)

    def forward(self, x, mask):
        b, t, d = x.shape
        n, bs = self.n, self.bs
        q, k, v = [w(x).view(b, n, bs, self.h, self.dh).permute(0, 3, 1, 2, 4)
                   for w in (self.query, self.key, self.value)]
        kf, vf = k.flatten(2, 3), v.flatten(2, 3)
        ends = torch.stack([q[:, :, 0], q[:, :, -1]], dim=2)
        a = torch.einsum("bhgqd,bhkd->bhgqk", ends, kf) * self.scale
        a = torch.softmax(a + (1.0 - mask[:, None, None, None, :]) * -10000.0, dim=-1)
        glob = torch.einsum("bhgqk,bhkd->bhgqd", a, vf)
        wide = lambda y: y.expand(-1, -1, n - 2, -1, -1)
        keys, vals = [torch.cat([wide(y[:, :, :1]), y[:, :, :-2], y[:, :, 1:-1], y[:, :, 2:], self.gather(y),
                                 wide(y[:, :, -1:])], dim=3) for y in (k, v)]
        mb = mask.view(b, n, bs)
        band = torch.cat([mb[:, :1].expand(-1, n - 2, -1), mb[:, :-2], mb[:, 1:-1], mb[:, 2:]], dim=2)
        rm = mb[:, self.rand].flatten(3, 4)
        km = torch.cat([band.unsqueeze(1).expand(-1, self.h, -1, -1), rm,
                        mb[:, -1:].unsqueeze(1).expand(-1, self.h, n - 2, -1)], dim=3)
        km = km * (1 - self.dup).repeat_interleave(bs, dim=1)
        a = torch.einsum("bhnqd,bhnkd->bhnqk", q[:, :, 1:-1], keys) * self.scale
        a = a + (1.0 - km.unsqueeze(3)) * -10000.0
        a = torch.exp(a - a.amax(-1, keepdim=True).detach())
        mid = torch.einsum("bhnqk,bhnkd->bhnqd", a / a.sum(-1, keepdim=True), vals)
        ctx = torch.cat([glob[:, :, :1], mid, glob[:, :, 1:]], dim=2)
        ctx = ctx.permute(0, 2, 3, 1, 4).reshape(b, t, d)
        return self.dense(ctx * mask.unsqueeze(-1))


class Layer(nn.Module):
    def __init__(self, d, *args):
        super().__init__()
        self.attn = BlockSparseAttention(d, *args)
        self.n1, self.n2 = nn.LayerNorm(d, 1e-12), nn.LayerNorm(d, 1e-12)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x, mask):
        x = self.n1(x + self.attn(x, mask))
        h = self.up(x)
        h = 0.5 * h * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (h + 0.044715 * torch.pow(h, 3.0))))
        return self.n2(self.down(h) + x)


class Model(nn.Module):
    """BigBird extractive QA: block-sparse attention with fixed random blocks, span start/end loss."""

    def __init__(self, vocab, d, heads, depth, block, n_blocks, n_rand):
        super().__init__()
        self.block, self.total, self.d = block, block * n_blocks, d
        self.word, self.typ = nn.Embedding(vocab, d, padding_idx=0), nn.Embedding(16, d)
        self.pos = nn.Embedding(self.total, d)
        self.register_buffer("position_ids", torch.arange(self.total).expand((1, -1)))
        self.norm = nn.LayerNorm(d, 1e-12)
        self.layers = nn.ModuleList([Layer(d, heads, block, n_blocks, n_rand) for _ in range(depth)])
        self.qa_mid, self.qa_down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.qa_norm, self.qa = nn.LayerNorm(d, 1e-12), nn.Linear(d, 2)

    def forward(self, ids, q_len, start, end):
        t = ids.shape[1]
        pad = self.total - t
        ids = F.pad(ids, (0, pad), value=0)
        mask = (ids != 0).to(self.norm.weight.dtype)
        in_q = self.position_ids < q_len[:, None]
        x = self.word(ids) * math.sqrt(self.d) + self.typ((~in_q).long()) + self.pos(self.position_ids)
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, mask)
        x = x[:, :t]
        x = self.qa_norm(self.qa_down(F.gelu(self.qa_mid(x))) + x)
        logits = self.qa(x)
        q = in_q[:, :t].clone()
        q[:, 0] = False
        s, e = (logits - q.unsqueeze(-1).to(logits.dtype) * 1e4).split(1, dim=-1)
        s, e = s.squeeze(-1).contiguous(), e.squeeze(-1).contiguous()
        loss = sum(F.cross_entropy(y, g.clamp(0, t), ignore_index=t) for y, g in ((s, start), (e, end))) / 2
        return loss, logits, x[:, 0]


def get_inputs():
    t = 203
    ids = torch.randint(1, 5003, (3, t)) * (torch.arange(t)[None] < torch.randint(150, t, (3, 1)))
    s = torch.randint(40, 140, (3,))
    return [ids, torch.randint(8, 30, (3,)), s, s + torch.randint(0, 9, (3,))]


def get_init_inputs():
    return [5003, 256, 4, 3, 16, 13, 2]
