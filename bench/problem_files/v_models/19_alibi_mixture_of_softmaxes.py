import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def alibi_slopes(n):
    def power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start ** i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    m = 2 ** math.floor(math.log2(n))
    return power_of_2(m) + power_of_2(2 * m)[0::2][: n - m]


class Conv1D(nn.Module):
    """GPT-2's transposed linear layer."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf) * 0.08)
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(x.size()[:-1] + (self.nf,))


class Block(nn.Module):
    """Parallel attention and feed-forward from one normalisation; keys and values shared by all heads (MQA)."""

    def __init__(self, d, heads, ctx):
        super().__init__()
        self.h, self.dh, self.d = heads, d // heads, d
        self.ln = nn.LayerNorm(d, eps=1e-5)
        self.fused = Conv1D(d + 2 * self.dh + 4 * d, d)
        self.proj = Conv1D(d, d)
        self.out = Conv1D(d, 4 * d)
        slopes = torch.tensor(alibi_slopes(heads))
        rel = torch.arange(ctx)[None] - torch.arange(ctx)[:, None]
        bias = slopes.view(-1, 1, 1) * rel.clamp(max=0).unsqueeze(0)
        bias = bias.masked_fill(rel > 0, torch.finfo(torch.float32).min)
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v, f = torch.split(self.fused(self.ln(x)), [self.d, self.dh, self.dh, 4 * self.d], dim=-1)
        q = q.view(b, t, self.h, self.dh).transpose(1, 2).reshape(b, self.h * t, self.dh)
        s = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(self.dh)
        s = s.view(b, self.h, t, t) + self.bias[:, :t, :t]
        p = torch.softmax(s, dim=-1, dtype=torch.float32).to(v.dtype)
        a = torch.bmm(p.view(b, self.h * t, t), v).view(b, self.h, t, self.dh).permute(0, 2, 1, 3).flatten(2)
        gelu = 0.5 * f * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (f + 0.044715 * torch.pow(f, 3.0))))
        return x + self.proj(a) + self.out(gelu)


class Model(nn.Module):
    """ALiBi multi-query decoder with a mixture-of-softmaxes output, tied embeddings, z-loss and entropy."""

    def __init__(self, vocab, d, heads, layers, ctx, mixtures):
        super().__init__()
        self.k, self.d = mixtures, d
        self.wte = nn.Embedding(vocab, d)
        nn.init.normal_(self.wte.weight, std=0.2)
        self.h = nn.ModuleList([Block(d, heads, ctx) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(d)
        self.prior = nn.Linear(d, mixtures, bias=False)
        self.latent = nn.Linear(d, mixtures * d)
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, ids, targets):
        x = self.wte(ids) * math.sqrt(self.d)
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)
        b, t, d = x.shape
        latent = torch.tanh(self.latent(x)).view(b * t, self.k, d)
        logits = F.linear(latent, self.wte.weight, self.bias)
        lse = logits.logsumexp(-1, keepdim=True)
        log_prior = F.log_softmax(self.prior(x).view(-1, self.k), dim=-1)
        logp = torch.logsumexp(log_prior.unsqueeze(-1) + logits - lse, dim=1)
        nll = F.nll_loss(logp, targets.reshape(-1), ignore_index=-1)
        entropy = -(logp.exp() * logp).sum(-1).view(b, t)
        z = (log_prior.exp() * lse.squeeze(-1).pow(2)).sum(-1).mean()
        return nll + 1e-3 * z, entropy


def get_inputs():
    t = torch.randint(0, 347, (2, 37))
    y = t.roll(-1, dims=1)
    y[:, -1] = -1
    return [t, y]


def get_init_inputs():
    return [347, 60, 6, 2, 48, 4]
