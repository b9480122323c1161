import torch
import torch.nn as nn
import torch.nn.functional as F


class GatedRMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x, g):
        var = (x * x).mean(dim=-1, keepdim=True)
        return x * (var + self.eps).rsqrt() * self.weight * F.silu(g)


def chunk_gla(q, k, v, log_f, chunk):
    """q, k, log_f: (b h t d), v: (b h t e). Decay is per key channel; one state per chunk."""
    b, h, t, d = q.shape
    e = v.shape[-1]
    pad = (-t) % chunk
    if pad:
        q, k, v, log_f = (F.pad(z, (0, 0, 0, pad)) for z in (q, k, v, log_f))
    n = (t + pad) // chunk
    q, k, v, log_f = (z.reshape(b, h, n, chunk, -1) for z in (q, k, v, log_f))
    cum = log_f.cumsum(dim=3)
    total = cum[:, :, :, -1:, :]
    # inside a chunk: the pairwise decay is formed explicitly so that no exponent is positive
    diff = cum.unsqueeze(4) - cum.unsqueeze(3)
    tri = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    diff = diff.masked_fill(~tri[:, :, None], float("-inf"))
    scores = (q.unsqueeze(4) * k.unsqueeze(3) * diff.exp()).sum(-1)
    intra = scores @ v
    # across chunks
    k_in = k * (total - cum).exp()
    kv = k_in.transpose(-1, -2) @ v
    state = q.new_zeros(b, h, d, e)
    states = []
    for i in range(n):
        states.append(state)
        state = state * total[:, :, i, 0, :, None].exp() + kv[:, :, i]
    inter = (q * cum.exp()) @ torch.stack(states, dim=2)
    return (intra + inter).reshape(b, h, n * chunk, e)[:, :, :t]


class HGRN2Layer(nn.Module):
    def __init__(self, dim, heads, expand, chunk):
        super().__init__()
        self.heads, self.chunk = heads, chunk
        self.q_proj = nn.Linear(dim, heads * expand, bias=False)
        self.f_proj = nn.Linear(dim, heads * expand, bias=False)
        self.i_proj = nn.Linear(dim, dim, bias=False)
        self.g_proj = nn.Linear(dim, dim, bias=False)
        self.g_norm = GatedRMSNorm(dim)
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x, lower_bound):
        q = F.silu(self.q_proj(x))
        f = self.f_proj(x)
        lb = lower_bound.view(1, 1, -1)
        g = lb + (1 - lb) * torch.sigmoid(f)
        k, log_f = 1 - g, g.log()
        i = self.i_proj(x)
        q, k, log_f, i = (z.unflatten(-1, (self.heads, -1)).transpose(1, 2) for z in (q, k, log_f, i))
        o = chunk_gla(q, k, i, log_f, self.chunk)
        o = o.transpose(1, 2).flatten(2)
        return self.o_proj(self.g_norm(o, self.g_proj(x)))


class GLU(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate_proj = nn.Linear(dim, 2 * hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        gate, y = self.gate_proj(x).chunk(2, -1)
        return self.down_proj(F.silu(gate) * y)


class Model(nn.Module):
    """HGRN2 language model: chunked gated linear attention, learned per-layer forget lower bounds."""

    def __init__(self, vocab, dim, heads, expand, layers, chunk):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.lower_bounds = nn.Parameter(0.1 * torch.randn(layers, heads * expand))
        self.mixers = nn.ModuleList(HGRN2Layer(dim, heads, expand, chunk) for _ in range(layers))
        self.mlps = nn.ModuleList(GLU(dim, dim * 2) for _ in range(layers))
        self.norms = nn.ModuleList(nn.RMSNorm(dim, eps=1e-6) for _ in range(2 * layers + 1))
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        inp, tgt = ids[:, :-1], ids[:, 1:]
        lb = self.lower_bounds.softmax(dim=0)
        lb = lb.cumsum(0) - lb[0]
        x = self.embed(inp)
        for n, (mixer, mlp) in enumerate(zip(self.mixers, self.mlps)):
            x = x + mixer(self.norms[2 * n](x), lb[n])
            x = x + mlp(self.norms[2 * n + 1](x))
        logits = self.head(self.norms[-1](x))
        return F.cross_entropy(logits.transpose(1, 2), tgt, reduction="none")


def get_inputs():
    return [torch.randint(0, 777, (3, 102))]


def get_init_inputs():
    return [777, 128, 4, 32, 2, 16]
