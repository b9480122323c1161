import torch
import torch.nn as nn
import torch.nn.functional as F

B, T, D, HEADS, P, N, CHUNK = 4, 1024, 768, 24, 64, 64, 64


class Model(nn.Module):
    """Mamba-2 style mixer: one input projection for z, x, B, C and dt, short depthwise
    causal convolution, chunked selective scan by cumulative sums, gated RMS norm."""

    def __init__(self, dim, heads, head_dim, state, chunk):
        super().__init__()
        self.h, self.p, self.n, self.c = heads, head_dim, state, chunk
        self.inner = heads * head_dim
        conv_dim = self.inner + 2 * state
        self.in_proj = nn.Linear(dim, self.inner + conv_dim + heads, bias=True)
        self.conv = nn.Conv1d(conv_dim, conv_dim, 4, groups=conv_dim, padding=3)
        self.dt_bias = nn.Parameter(torch.rand(heads) * 2 - 3)
        self.A_log = nn.Parameter(torch.log(torch.rand(heads) * 2 + 0.5))
        self.Dskip = nn.Parameter(1 + 0.2 * torch.randn(heads, 1))
        self.norm_weight = nn.Parameter(torch.ones(self.inner))
        self.out_proj = nn.Linear(self.inner, dim, bias=False)

    def forward(self, u):
        b, t, _ = u.shape
        nc, c = t // self.c, self.c
        z, xbc, dt = self.in_proj(u).split(
            [self.inner, self.inner + 2 * self.n, self.h], dim=-1)
        xbc = F.silu(self.conv(xbc.transpose(1, 2))[..., :t].transpose(1, 2))
        x, Bm, Cm = xbc.split([self.inner, self.n, self.n], dim=-1)
        dt = F.softplus(dt + self.dt_bias)
        x = x.reshape(b, nc, c, self.h, self.p)
        Bm, Cm = Bm.reshape(b, nc, c, self.n), Cm.reshape(b, nc, c, self.n)
        dt = dt.reshape(b, nc, c, self.h)
        da = (-self.A_log.exp() * dt).permute(0, 1, 3, 2)
        cum = da.cumsum(-1)
        seg = cum.unsqueeze(-1) - cum.unsqueeze(-2)
        tri = torch.ones(c, c, dtype=torch.bool, device=u.device).tril()
        decay = seg.masked_fill(~tri, float("-inf")).exp()
        xdt = x * dt.unsqueeze(-1)
        scores = torch.einsum("bzin,bzjn->bzij", Cm, Bm).unsqueeze(2) * decay
        y_diag = torch.einsum("bzhij,bzjhp->bzihp", scores, xdt)
        to_end = (cum[..., -1:] - cum).exp()
        states = torch.einsum("bzjn,bzhj,bzjhp->bzhpn", Bm, to_end, xdt)
        total = cum[..., -1].exp()
        carry = torch.zeros_like(states[:, 0])
        prev = []
        for i in range(nc):
            prev.append(carry)
            carry = carry * total[:, i, :, None, None] + states[:, i]
        prev = torch.stack(prev, dim=1)
        y_off = torch.einsum("bzin,bzhpn,bzhi->bzihp", Cm, prev, cum.exp())
        y = (y_diag + y_off + self.Dskip * x).reshape(b, t, self.inner)
        y = F.rms_norm(y * F.silu(z), (self.inner,), self.norm_weight, 1e-5)
        return u + self.out_proj(y)


def get_inputs():
    return [torch.randn(B, T, D)]


def get_init_inputs():
    return [D, HEADS, P, N, CHUNK]
