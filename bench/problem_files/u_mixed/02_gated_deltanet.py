import torch
import torch.nn as nn
import torch.nn.functional as F


def l2norm(x, eps=1e-6):
    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + eps)


def chunk_gated_delta_rule(q, k, v, g, beta, chunk_size):
    b, h, l, dk = k.shape
    dv = v.shape[-1]
    q = q * (dk ** -0.5)
    v = v * beta[..., None]
    k_beta = k * beta[..., None]
    n = l // chunk_size
    q, k, v, k_beta = [t.reshape(b, h, n, chunk_size, t.shape[-1]) for t in (q, k, v, k_beta)]
    decay = g.reshape(b, h, n, chunk_size).cumsum(-1)
    decay_exp = decay.exp()[..., None]
    mask = torch.triu(torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=q.device), diagonal=0)
    L_mask = ((decay.unsqueeze(-1) - decay.unsqueeze(-2)).tril().exp()).tril()
    attn = -((k_beta @ k.transpose(-1, -2)) * L_mask).masked_fill(mask, 0)
    # forward substitution, row by row
    for i in range(1, chunk_size):
        row = attn[..., i, :i].clone()
        sub = attn[..., :i, :i].clone()
        attn[..., i, :i] = row + (row.unsqueeze(-1) * sub).sum(-2)
    attn = attn + torch.eye(chunk_size, dtype=q.dtype, device=q.device)
    u = attn @ v
    w = attn @ (k_beta * decay_exp)
    S = torch.zeros(b, h, dk, dv, dtype=q.dtype, device=q.device)
    o = torch.zeros_like(v)
    mask = torch.triu(torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=q.device), diagonal=1)
    for i in range(n):
        q_i, k_i, v_i = q[:, :, i], k[:, :, i], u[:, :, i]
        a = (q_i @ k_i.transpose(-1, -2) * L_mask[:, :, i]).masked_fill(mask, 0)
        v_new = v_i - w[:, :, i] @ S
        o_inter = (q_i * decay[:, :, i, :, None].exp()) @ S
        o[:, :, i] = o_inter + a @ v_new
        last = decay[:, :, i, -1]
        S = S * last[..., None, None].exp() + (
            k_i * (last[..., None] - decay[:, :, i]).exp()[..., None]
        ).transpose(-1, -2) @ v_new
    return o.reshape(b, h, l, dv), S


class Model(nn.Module):
    """Gated DeltaNet layer: chunked WY form of the gated delta rule."""

    def __init__(self, dim, heads, dk, dv, chunk):
        super().__init__()
        self.heads, self.dk, self.dv, self.chunk = heads, dk, dv, chunk
        self.q_proj = nn.Linear(dim, heads * dk, bias=False)
        self.k_proj = nn.Linear(dim, heads * dk, bias=False)
        self.v_proj = nn.Linear(dim, heads * dv, bias=False)
        self.b_proj = nn.Linear(dim, heads, bias=False)
        self.a_proj = nn.Linear(dim, heads, bias=False)
        self.g_proj = nn.Linear(dim, heads * dv, bias=False)
        self.A_log = nn.Parameter(torch.log(torch.empty(heads).uniform_(0.5, 4)))
        self.dt_bias = nn.Parameter(torch.full((heads,), -2.0))
        self.o_norm = nn.Parameter(torch.ones(dv))
        self.o_proj = nn.Linear(heads * dv, dim, bias=False)

    def forward(self, x):
        b, l, _ = x.shape
        q = F.silu(self.q_proj(x)).view(b, l, self.heads, self.dk).transpose(1, 2)
        k = F.silu(self.k_proj(x)).view(b, l, self.heads, self.dk).transpose(1, 2)
        v = F.silu(self.v_proj(x)).view(b, l, self.heads, self.dv).transpose(1, 2)
        beta = self.b_proj(x).sigmoid().transpose(1, 2)
        g = (-self.A_log.exp() * F.softplus(self.a_proj(x) + self.dt_bias)).transpose(1, 2)
        o, state = chunk_gated_delta_rule(l2norm(q), l2norm(k), v, g, beta, self.chunk)
        o = o.transpose(1, 2)
        o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-5) * self.o_norm
        gate = self.g_proj(x).view(b, l, self.heads, self.dv)
        o = o * F.silu(gate)
        return self.o_proj(o.flatten(2)), state


def get_inputs():
    return [torch.randn(2, 48, 40)]


def get_init_inputs():
    return [40, 3, 12, 18, 12]
