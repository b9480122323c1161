import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def token_shift(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((F.pad(a, (0, 0, 1, -1)), b), dim=-1)


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.scale, self.g = d ** -0.5, nn.Parameter(torch.ones(d))

    def forward(self, x):
        return x / (torch.norm(x, dim=-1, keepdim=True) * self.scale).clamp(min=1e-6) * self.g


class Attention(nn.Module):
    def __init__(self, d, heads, dh):
        super().__init__()
        self.h, self.dh = heads, dh
        self.norm, self.q = RMSNorm(d), nn.Linear(d, heads * dh, bias=False)
        self.kv, self.out = nn.Linear(d, 2 * dh, bias=False), nn.Linear(heads * dh, d, bias=False)
        self.scale = nn.Parameter(torch.full((heads, 1, 1), math.log(10.0)))

    def forward(self, x, rot):
        b, t, _ = x.shape
        x = self.norm(x)
        q = self.q(x).view(b, t, self.h, self.dh).transpose(1, 2)
        k, v = self.kv(x).chunk(2, dim=-1)
        cos, sin = rot
        turn = lambda y: y * cos[:t] + torch.cat((-y[..., 1::2], y[..., 0::2]), dim=-1) * sin[:t]
        q, k = turn(F.normalize(q, dim=-1)), turn(F.normalize(k, dim=-1))
        sim = torch.einsum("bhid,bjd->bhij", q, k) * self.scale.clamp(max=4.6).exp()
        causal = torch.ones((t, t), dtype=torch.bool, device=x.device).triu(1)
        a = sim.masked_fill(causal, -torch.finfo(sim.dtype).max).softmax(dim=-1)
        return self.out(torch.einsum("bhij,bjd->bhid", a, v).transpose(1, 2).reshape(b, t, -1))


class Transformer(nn.Module):
    def __init__(self, d, depth, heads, dh, ff, max_len):
        super().__init__()
        self.attn = nn.ModuleList([Attention(d, heads, dh) for _ in range(depth)])
        self.norms = nn.ModuleList([RMSNorm(d) for _ in range(depth)])
        self.up = nn.ModuleList([nn.Linear(d, 2 * ff * d) for _ in range(depth)])
        self.down = nn.ModuleList([nn.Linear(ff * d, d) for _ in range(depth)])
        self.final = RMSNorm(d)
        inv = 1.0 / (10000 ** (torch.arange(0, dh, 2).float() / dh))
        f = torch.outer(torch.arange(max_len).float(), inv)
        f = torch.cat((f, f), dim=-1)
        self.register_buffer("cos", f.cos(), persistent=False)
        self.register_buffer("sin", f.sin(), persistent=False)

    def forward(self, x):
        for attn, norm, up, down in zip(self.attn, self.norms, self.up, self.down):
            x = attn(token_shift(x), (self.cos, self.sin)) + x
            u, g = up(norm(token_shift(x))).chunk(2, dim=-1)
            x = down(u * F.gelu(g)) + x
        return self.final(x)


class Model(nn.Module):
    """MEGABYTE: three-stage patch-hierarchical byte LM, start tokens, ragged padding, shared byte table."""

    def __init__(self, vocab, dims, depths, lens, heads, dh):
        super().__init__()
        self.lens, self.pad = lens, 0
        fine = dims[-1]
        self.table = nn.Embedding(vocab, fine)
        self.starts = nn.ParameterList([torch.randn(d) * 0.1 for d in dims])
        self.pos = nn.ModuleList([nn.Embedding(n, d) for n, d in zip(lens, dims)])
        self.patch = nn.ModuleList()
        for i, d in enumerate(dims[:-1]):
            n = math.prod(lens[i + 1:]) * fine
            self.patch.append(nn.Sequential(nn.LayerNorm(n), nn.Linear(n, d), nn.LayerNorm(d)))
        self.stages = nn.ModuleList([Transformer(d, n, heads, dh, 2, s + 1)
                                     for d, n, s in zip(dims, depths, lens)])
        self.down = nn.ModuleList([nn.Linear(a, n * b) for a, b, n in zip(dims[:-1], dims[1:], lens[1:])])
        self.head = nn.Linear(fine, vocab)

    def forward(self, ids):
        b, t = ids.shape
        tail = math.prod(self.lens[1:])
        ids = F.pad(ids, (0, -t % tail), value=self.pad)
        ids = ids.view(b, -1, *self.lens[1:])
        emb, tokens = self.table(ids), []
        for i in range(len(self.lens)):
            x = emb if i == len(self.lens) - 1 else self.patch[i](emb.flatten(i + 2))
            n = x.shape[-2]
            tokens.append(x + self.pos[i](torch.arange(n, device=ids.device)))
        carry = None
        for i, (stage, x, start) in enumerate(zip(self.stages, tokens, self.starts)):
            lead = x.shape[:-2]
            x = x.flatten(0, -3) if x.dim() > 3 else x
            x = torch.cat((start.expand(x.shape[0], 1, -1), x), dim=1)
            if carry is not None:
                x = x + F.pad(carry, (0, 0, 0, 1))
            y = stage(x)
            if i < len(self.stages) - 1:
                c = self.down[i](y[:, :-1])
                carry = c.reshape(math.prod(lead) * (x.shape[1] - 1), self.lens[i + 1], -1)
        logits = self.head(y[:, :-1]).reshape(b, -1, self.head.out_features)[:, :t]
        labels = ids.flatten(1)[:, :t]
        keep = (labels != self.pad).to(logits.dtype)
        nll = -torch.gather(logits.log_softmax(-1), 2, labels.unsqueeze(-1)).squeeze(-1)
        return (nll * keep).sum() / keep.sum(), logits


def get_inputs():
    return [torch.randint(1, 256, (3, 347))]


def get_init_inputs():
    return [256, [256, 192, 96], [2, 2, 2], [16, 7, 4], 4, 32]
