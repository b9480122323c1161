import torch
import torch.nn as nn
import torch.nn.functional as F


def round_ste(z):
    zhat = z.round()
    return z + (zhat - z).detach()


class FSQ(nn.Module):
    def __init__(self, levels):
        super().__init__()
        _levels = torch.tensor(levels, dtype=torch.int32)
        self.register_buffer("_levels", _levels, persistent=False)
        _basis = torch.cumprod(torch.tensor([1] + levels[:-1]), dim=0, dtype=torch.int32)
        self.register_buffer("_basis", _basis, persistent=False)

    def bound(self, z, eps=1e-3):
        half_l = (self._levels - 1) * (1 + eps) / 2
        offset = torch.where(self._levels % 2 == 0, 0.5, 0.0)
        shift = (offset / half_l).atanh()
        return (z + shift).tanh() * half_l - offset

    def forward(self, z):
        half_width = self._levels // 2
        codes = round_ste(self.bound(z)) / half_width
        zhat = codes * half_width + half_width
        indices = (zhat.detach() * self._basis).sum(dim=-1).round().to(torch.int32)
        return codes, indices

    def indices_to_codes(self, indices):
        indices = indices.unsqueeze(-1)
        non_centered = (indices // self._basis) % self._levels
        half = self._levels // 2
        return (non_centered - half) / half


class LFQ(nn.Module):
    def __init__(self, dim, inv_temp=100.0, gamma=1.0):
        super().__init__()
        self.dim, self.inv_temp, self.gamma = dim, inv_temp, gamma
        self.register_buffer("mask", 2 ** torch.arange(dim - 1, -1, -1))

    def forward(self, x):
        q = torch.where(x > 0, torch.ones_like(x), -torch.ones_like(x))
        indices = ((x > 0).int() * self.mask.int()).sum(-1)
        all_codes = torch.arange(2 ** self.dim, device=x.device)
        bits = ((all_codes[..., None].int() & self.mask) != 0).to(x.dtype)
        codebook = bits * 2 - 1
        dist = -2 * torch.einsum("...id,jd->...ij", x, codebook)
        prob = (-dist * self.inv_temp * 0.01).softmax(dim=-1)
        log = lambda t: t.clamp(min=1e-5).log()
        per_sample = (-prob * log(prob)).sum(-1).mean()
        avg = prob.flatten(0, -2).mean(0)
        codebook_ent = (-avg * log(avg)).sum()
        commit = F.mse_loss(x, q.detach(), reduction="mean")
        q = x + (q - x).detach()
        return q, indices, per_sample - self.gamma * codebook_ent + 0.25 * commit


class Model(nn.Module):
    """Finite scalar quantiser and lookup-free quantiser on the two halves of one latent sequence."""

    def __init__(self, in_dim, hidden, levels, lfq_bits):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv1d(in_dim, hidden, 5, stride=2, padding=2), nn.GELU(), nn.Conv1d(hidden, hidden, 3, padding=1))
        self.to_fsq = nn.Linear(hidden, len(levels))
        self.to_lfq = nn.Linear(hidden, lfq_bits)
        self.fsq = FSQ(levels)
        self.lfq = LFQ(lfq_bits)
        self.dec = nn.Sequential(nn.Linear(len(levels) + lfq_bits, hidden), nn.GELU(), nn.Linear(hidden, 2 * in_dim))

    def forward(self, x):
        b, c, t = x.shape
        h = self.enc(x).transpose(1, 2)
        codes, idx_f = self.fsq(self.to_fsq(h))
        q, idx_l, aux = self.lfq(self.to_lfq(h))
        check = (self.fsq.indices_to_codes(idx_f) - codes.detach()).abs().amax()
        y = self.dec(torch.cat([codes, q], dim=-1))
        y = y.view(b, -1, 2, c).flatten(1, 2)[:, :t].transpose(1, 2)
        return y, F.l1_loss(y, x) + 0.1 * aux, idx_f, idx_l, check


def get_inputs():
    return [torch.randn(3, 10, 75)]


def get_init_inputs():
    return [10, 40, [8, 5, 5, 4], 7]
