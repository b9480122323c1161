from dataclasses import dataclass, field, replace
from typing import List, Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class MemState:
    S: torch.Tensor
    step: int = 0
    norms: List[torch.Tensor] = field(default_factory=list)


def recurrent_delta(q, k, v, beta, log_g, state: MemState):
    outs = []
    for t in range(q.shape[2]):
        S = state.S * log_g[:, :, t, None, None].exp()
        kt, vt = k[:, :, t], v[:, :, t]
        pred = torch.einsum("bhkv,bhk->bhv", S, kt)
        S = S + torch.einsum("bhk,bhv->bhkv", kt, beta[:, :, t, None] * (vt - pred))
        outs.append(torch.einsum("bhkv,bhk->bhv", S, q[:, :, t]))
        state = replace(state, S=S, step=state.step + 1)
        if state.step % 16 == 0:
            state.norms.append(S.flatten(1).norm(dim=1))
    return torch.stack(outs, dim=2), state


def chunked_delta(q, k, v, beta, log_g, state: MemState, chunk=16):
    """WY form: one triangular solve per chunk; equal to the recurrence above."""
    outs = []
    eye = torch.eye(chunk, dtype=q.dtype, device=q.device)
    lower = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    strict = lower.tril(-1)
    parts = [a.split(chunk, dim=2) for a in (q, k, v, beta, log_g)]
    for qc, kc, vc, bc, gc in zip(*parts):
        cum = gc.cumsum(-1)
        diff = cum.unsqueeze(-1) - cum.unsqueeze(-2)
        decay = diff.masked_fill(~lower, float("-inf")).exp()
        kk = (kc @ kc.mT) * decay * bc.unsqueeze(-1)
        T = eye + kk.masked_fill(~strict, 0.0)
        rhs = bc.unsqueeze(-1) * (vc - cum.exp().unsqueeze(-1) * (kc @ state.S))
        u = torch.linalg.solve_triangular(T, rhs, upper=False, unitriangular=True)
        o = cum.exp().unsqueeze(-1) * (qc @ state.S) + ((qc @ kc.mT) * decay) @ u
        tail = (cum[..., -1:] - cum).exp().unsqueeze(-1)
        S = state.S * cum[..., -1].exp()[..., None, None] + (kc * tail).mT @ u
        state = replace(state, S=S, step=state.step + qc.shape[2])
        state.norms.append(S.flatten(1).norm(dim=1))
        outs.append(o)
    return torch.cat(outs, dim=2), state


class DeltaLayer(nn.Module):
    impls = {"recurrent": recurrent_delta, "chunked": chunked_delta}

    def __init__(self, dim, heads, mode):
        super().__init__()
        self.heads, self.mode = heads, mode
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.bg = nn.Linear(dim, 2 * heads)
        self.out = nn.Linear(dim, dim, bias=False)
        self.A = nn.Parameter(torch.linspace(-3, 0, heads))

    def forward(self, x, state: Optional[MemState] = None):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = F.normalize(F.silu(q), dim=-1), F.normalize(F.silu(k), dim=-1)
        beta, a = self.bg(x).unflatten(-1, (2, self.heads)).permute(2, 0, 3, 1).unbind(0)
        log_g = -self.A.exp().view(1, -1, 1) * F.softplus(a)
        if state is None:
            state = MemState(x.new_zeros(b, self.heads, q.shape[-1], v.shape[-1]))
        o, state = self.impls[self.mode](q, k, v, beta.sigmoid(), log_g, state)
        return self.out(o.transpose(1, 2).flatten(2)), state


class Model(nn.Module):
    """Gated delta-rule layers: the same recurrence step by step and in chunked WY form."""

    def __init__(self, dim, heads):
        super().__init__()
        self.a = DeltaLayer(dim, heads, "recurrent")
        self.b = DeltaLayer(dim, heads, "chunked")
        self.b.load_state_dict(self.a.state_dict())
        self.ln = nn.LayerNorm(dim)

    def forward(self, x):
        h = self.ln(x)
        ya, sa = self.a(h)
        yb, sb = self.b(h)
        gap = (ya - yb).abs().amax().detach()
        y, sa2 = self.b(self.ln(x + ya), state=MemState(sa.S.clone(), sa.step))
        return x + ya + y, torch.stack(sa.norms), torch.stack(sb.norms), sa2.S, gap < 1e-3


def get_inputs():
    return [torch.randn(8, 48, 128)]


def get_init_inputs():
    return [128, 4]
