import torch
import torch.nn as nn
import torch.nn.functional as F


def segsum(x):
    """Stable segment sum: out[..., i, j] = sum_{k=j+1..i} x[..., k], -inf above the diagonal."""
    T = x.size(-1)
    x = x[..., None].expand(*x.shape, T)
    mask = torch.tril(torch.ones(T, T, device=x.device, dtype=bool), diagonal=-1)
    x = x.masked_fill(~mask, 0)
    out = torch.cumsum(x, dim=-2)
    mask = torch.tril(torch.ones(T, T, device=x.device, dtype=bool), diagonal=0)
    return out.masked_fill(~mask, -torch.inf)


def ssd(X, A, B, C, block_len, initial_states=None):
    """
    X: (b, l, h, p)   A: (b, l, h)   B, C: (b, l, g, n) already repeated to h heads
    """
    b, l, h, p = X.shape
    c = l // block_len
    X, B, C = [t.reshape(b, c, block_len, h, -1) for t in (X, B, C)]
    A = A.reshape(b, c, block_len, h).permute(0, 3, 1, 2)
    A_cumsum = torch.cumsum(A, dim=-1)

    # 1. intra-chunk
    L = torch.exp(segsum(A))
    scores = torch.einsum("bclhn,bcshn->bhcls", C, B) * L
    Y_diag = torch.einsum("bhcls,bcshp->bclhp", scores, X)

    # 2. state at the end of each chunk
    decay_states = torch.exp(A_cumsum[:, :, :, -1:] - A_cumsum)
    states = torch.einsum("bclhn,bhcl,bclhp->bchpn", B, decay_states, X)

    # 3. inter-chunk recurrence
    if initial_states is None:
        initial_states = torch.zeros_like(states[:, :1])
    states = torch.cat([initial_states, states], dim=1)
    decay_chunk = torch.exp(segsum(F.pad(A_cumsum[:, :, :, -1], (1, 0))))
    new_states = torch.einsum("bhzc,bchpn->bzhpn", decay_chunk, states)
    states, final_state = new_states[:, :-1], new_states[:, -1]

    # 4. state -> output
    state_decay_out = torch.exp(A_cumsum)
    Y_off = torch.einsum("bclhn,bchpn,bhcl->bclhp", C, states, state_decay_out)
    return (Y_diag + Y_off).reshape(b, l, h, p), final_state


class GatedRMSNorm(nn.Module):
    def __init__(self, d, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x, z):
        dtype = x.dtype
        x = x.float() * F.silu(z.float())
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return (x * self.weight.float()).to(dtype)


class Model(nn.Module):
    def __init__(self, d_model, d_state, headdim, ngroups, d_conv, chunk):
        super().__init__()
        self.d_inner = 2 * d_model
        self.nheads = self.d_inner // headdim
        self.d_state, self.headdim, self.ngroups, self.chunk = d_state, headdim, ngroups, chunk
        conv_dim = self.d_inner + 2 * ngroups * d_state
        self.norm_in = nn.RMSNorm(d_model)
        self.in_proj = nn.Linear(d_model, self.d_inner + conv_dim + self.nheads, bias=False)
        self.conv1d = nn.Conv1d(conv_dim, conv_dim, d_conv, groups=conv_dim, padding=d_conv - 1)
        dt = torch.exp(torch.linspace(-6.9, -2.3, self.nheads))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.A_log = nn.Parameter(torch.log(torch.linspace(1, 16, self.nheads)))
        self.D = nn.Parameter(torch.ones(self.nheads))
        self.norm = GatedRMSNorm(self.d_inner)
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)

    def forward(self, u):
        b, l, _ = u.shape
        residual = u
        zxbcdt = self.in_proj(self.norm_in(u))
        gn = self.ngroups * self.d_state
        z, xBC, dt = torch.split(zxbcdt, [self.d_inner, self.d_inner + 2 * gn, self.nheads], dim=-1)
        xBC = F.silu(self.conv1d(xBC.transpose(1, 2))[..., :l].transpose(1, 2))
        x, B, C = torch.split(xBC, [self.d_inner, gn, gn], dim=-1)
        dt = F.softplus(dt.float() + self.dt_bias.float())
        A = -torch.exp(self.A_log.float())
        x = x.view(b, l, self.nheads, self.headdim)
        rep = self.nheads // self.ngroups
        B = B.view(b, l, self.ngroups, self.d_state).repeat_interleave(rep, dim=2)
        C = C.view(b, l, self.ngroups, self.d_state).repeat_interleave(rep, dim=2)
        y, state = ssd(x.float() * dt[..., None], A * dt, B.float(), C.float(), self.chunk)
        y = y + x.float() * self.D.float()[:, None]
        y = self.norm(y.reshape(b, l, -1).to(u.dtype), z)
        return residual + self.out_proj(y), state


def get_inputs():
    return [torch.randn(1, 2048, 1536)]


def get_init_inputs():
    return [1536, 128, 64, 1, 4, 128]
