import torch
import torch.nn as nn
import torch.nn.functional as F


def segsum(x):
    """Stable segment sum: out[..., i, j] = sum_{k=j+1..i} x[..., k]."""
    T = x.size(-1)
    x = x[..., None].expand(*x.shape, T)
    mask = torch.tril(torch.ones(T, T, device=x.device, dtype=torch.bool), diagonal=-1)
    x = x.masked_fill(~mask, 0)
    x_segsum = torch.cumsum(x, dim=-2)
    mask = torch.tril(torch.ones(T, T, device=x.device, dtype=torch.bool), diagonal=0)
    return x_segsum.masked_fill(~mask, -torch.inf)


def ssd(x, A, B, C, block_len, initial_states=None):
    b, l, h, p = x.shape
    n = B.shape[-1]
    c = l // block_len
    x = x.reshape(b, c, block_len, h, p)
    B = B.reshape(b, c, block_len, h, n)
    C = C.reshape(b, c, block_len, h, n)
    A = A.reshape(b, c, block_len, h).permute(0, 3, 1, 2)  # b h c l
    A_cumsum = torch.cumsum(A, dim=-1)

    L = torch.exp(segsum(A))
    Y_diag = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", C, B, L, x)

    decay_states = torch.exp(A_cumsum[:, :, :, -1:] - A_cumsum)
    states = torch.einsum("bclhn,bhcl,bclhp->bchpn", B, decay_states, x)

    if initial_states is None:
        initial_states = torch.zeros_like(states[:, :1])
    states = torch.cat([initial_states, states], dim=1)
    decay_chunk = torch.exp(segsum(F.pad(A_cumsum[:, :, :, -1], (1, 0))))
    new_states = torch.einsum("bhzc,bchpn->bzhpn", decay_chunk, states)
    states, final_state = new_states[:, :-1], new_states[:, -1]

    state_decay_out = torch.exp(A_cumsum)
    Y_off = torch.einsum("bclhn,bchpn,bhcl->bclhp", C, states, state_decay_out)
    return (Y_diag + Y_off).reshape(b, l, h, p), final_state


class Model(nn.Module):
    """Mamba-2 mixer block with the SSD chunked scan written by hand."""

    def __init__(self, d_model, d_state, headdim, chunk, ngroups=1, d_conv=4, expand=2):
        super().__init__()
        self.d_inner = expand * d_model
        self.nheads = self.d_inner // headdim
        self.headdim, self.d_state, self.ngroups, self.chunk = headdim, d_state, ngroups, chunk
        conv_dim = self.d_inner + 2 * ngroups * d_state
        self.in_proj = nn.Linear(d_model, self.d_inner + conv_dim + self.nheads, bias=False)
        self.conv1d = nn.Conv1d(conv_dim, conv_dim, d_conv, groups=conv_dim, padding=d_conv - 1)
        dt = torch.exp(torch.rand(self.nheads) * 4.6 - 6.9).clamp(min=1e-4)
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.A_log = nn.Parameter(torch.log(torch.empty(self.nheads).uniform_(1, 16)))
        self.D = nn.Parameter(torch.ones(self.nheads))
        self.norm_weight = nn.Parameter(torch.ones(self.d_inner))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)

    def forward(self, u):
        b, l, _ = u.shape
        gn = self.ngroups * self.d_state
        z, xBC, dt = torch.split(self.in_proj(u), [self.d_inner, self.d_inner + 2 * gn, self.nheads], dim=-1)
        dt = F.softplus(dt + self.dt_bias)
        xBC = F.silu(self.conv1d(xBC.transpose(1, 2)).transpose(1, 2)[:, :l])
        x, B, C = torch.split(xBC, [self.d_inner, gn, gn], dim=-1)
        x = x.view(b, l, self.nheads, self.headdim)
        rep = self.nheads // self.ngroups
        B = B.view(b, l, self.ngroups, self.d_state).repeat_interleave(rep, dim=2)
        C = C.view(b, l, self.ngroups, self.d_state).repeat_interleave(rep, dim=2)
        A = -torch.exp(self.A_log)
        pad = (-l) % self.chunk
        if pad:
            xp = F.pad(x * dt.unsqueeze(-1), (0, 0, 0, 0, 0, pad))
            Ap = F.pad(A * dt, (0, 0, 0, pad))
            B, C = F.pad(B, (0, 0, 0, 0, 0, pad)), F.pad(C, (0, 0, 0, 0, 0, pad))
        else:
            xp, Ap = x * dt.unsqueeze(-1), A * dt
        y, final = ssd(xp, Ap, B, C, self.chunk)
        y = y[:, :l] + x * self.D.view(1, 1, -1, 1)
        y = y.reshape(b, l, -1) * F.silu(z)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5) * self.norm_weight
        return self.out_proj(y), final


def get_inputs():
    return [torch.randn(2, 61, 48)]


def get_init_inputs():
    return [48, 16, 24, 16]
