import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class ShortConvolution(nn.Conv1d):
    def __init__(self, hidden_size, kernel_size=4, activation="silu"):
        super().__init__(hidden_size, hidden_size, kernel_size, groups=hidden_size, bias=False,
                         padding=kernel_size - 1)
        self.activation = activation

    def forward(self, x):
        L = x.shape[1]
        y = super().forward(x.transpose(1, 2))[..., :L].transpose(1, 2)
        return F.silu(y) if self.activation == "silu" else y


def l2norm(x, eps=1e-6):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + eps)


def delta_rule_chunkwise(q, k, v, beta, chunk_size=32):
    b, h, l, d_k = q.shape
    d_v = v.shape[-1]
    q = q * (d_k ** -0.5)
    v = v * beta[..., None]
    k_beta = k * beta[..., None]
    assert l % chunk_size == 0
    n = l // chunk_size

    # compute (I - tri(diag(beta) K K^T))^{-1}
    mask = torch.triu(torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=q.device), diagonal=0)
    q, k, v, k_beta = map(lambda t: t.reshape(b, h, n, chunk_size, t.shape[-1]), (q, k, v, k_beta))
    attn = -(k_beta @ k.transpose(-1, -2)).masked_fill(mask, 0)
    for i in range(1, chunk_size):
        attn[..., i, :i] = attn[..., i, :i].clone() + (attn[..., i, :, None].clone() * attn[..., :, :i].clone()).sum(-2)
    attn = attn + torch.eye(chunk_size, dtype=torch.float, device=q.device)
    u = attn @ v
    w = attn @ k_beta
    S = k.new_zeros(b, h, d_k, d_v)
    o = torch.zeros_like(v)
    mask = torch.triu(torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=q.device), diagonal=1)
    for i in range(n):
        q_i, k_i = q[:, :, i], k[:, :, i]
        attn = (q_i @ k_i.transpose(-1, -2)).masked_fill_(mask, 0)
        u_i = u[:, :, i] - w[:, :, i] @ S
        o_inter = q_i @ S
        o[:, :, i] = o_inter + attn @ u_i
        S = S + k_i.transpose(-1, -2) @ u_i
    return o.reshape(b, h, l, d_v), S


class DeltaNet(nn.Module):
    def __init__(self, hidden_size, num_heads, chunk_size):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.chunk_size = chunk_size
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.b_proj = nn.Linear(hidden_size, num_heads, bias=False)
        self.g_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.q_conv1d = ShortConvolution(hidden_size)
        self.k_conv1d = ShortConvolution(hidden_size)
        self.v_conv1d = ShortConvolution(hidden_size)
        self.o_norm = RMSNorm(self.head_dim)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def _heads(self, x):
        B, L, _ = x.shape
        return x.view(B, L, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, x):
        B, L, D = x.shape
        q = self._heads(self.q_conv1d(self.q_proj(x)))
        k = self._heads(self.k_conv1d(self.k_proj(x)))
        v = self._heads(self.v_conv1d(self.v_proj(x)))
        q, k = l2norm(q), l2norm(k)
        beta = self.b_proj(x).sigmoid().transpose(1, 2)
        o, state = delta_rule_chunkwise(q, k, v, beta, self.chunk_size)
        g = self._heads(self.g_proj(x))
        o = self.o_norm(o) * F.silu(g)
        o = o.transpose(1, 2).reshape(B, L, D)
        return self.o_proj(o), state


class GatedMLP(nn.Module):
    def __init__(self, hidden_size, ratio=4):
        super().__init__()
        inter = 256 * ((int(hidden_size * ratio * 2 / 3) + 255) // 256)
        self.gate_proj = nn.Linear(hidden_size, inter * 2, bias=False)
        self.down_proj = nn.Linear(inter, hidden_size, bias=False)

    def forward(self, x):
        gate, y = self.gate_proj(x).chunk(2, -1)
        return self.down_proj(F.silu(gate) * y)


class Model(nn.Module):
    """DeltaNet: chunk-parallel delta rule with the WY representation, short convolutions and gated output norm."""

    def __init__(self, hidden_size, num_heads, num_layers, chunk_size):
        super().__init__()
        self.attn_norms = nn.ModuleList([RMSNorm(hidden_size) for _ in range(num_layers)])
        self.attns = nn.ModuleList([DeltaNet(hidden_size, num_heads, chunk_size) for _ in range(num_layers)])
        self.mlp_norms = nn.ModuleList([RMSNorm(hidden_size) for _ in range(num_layers)])
        self.mlps = nn.ModuleList([GatedMLP(hidden_size) for _ in range(num_layers)])
        self.norm = RMSNorm(hidden_size)

    def forward(self, x):
        states = []
        for n1, attn, n2, mlp in zip(self.attn_norms, self.attns, self.mlp_norms, self.mlps):
            h, s = attn(n1(x))
            x = x + h
            x = x + mlp(n2(x))
            states.append(s)
        return self.norm(x), torch.stack(states)


def get_inputs():
    return [torch.randn(4, 1024, 1024)]


def get_init_inputs():
    return [1024, 8, 2, 32]
