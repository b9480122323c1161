import torch
import torch.nn as nn
import torch.nn.functional as F


def inv3x3(m):
    """Inverse of batched complex 3x3 matrices by the adjugate, (..., 3, 3)."""
    a, b, c = m[..., 0, 0], m[..., 0, 1], m[..., 0, 2]
    d, e, f = m[..., 1, 0], m[..., 1, 1], m[..., 1, 2]
    g, h, i = m[..., 2, 0], m[..., 2, 1], m[..., 2, 2]
    A = e * i - f * h
    B = -(d * i - f * g)
    C = d * h - e * g
    det = a * A + b * B + c * C
    adj = torch.stack([
        A, -(b * i - c * h), b * f - c * e,
        B, a * i - c * g, -(a * f - c * d),
        C, -(a * h - b * g), a * e - b * d,
    ], dim=-1).reshape(m.shape)
    return adj / det[..., None, None]


def psd(mask, spec):
    # mask (B, F, T), spec (B, F, C, T) -> (B, F, C, C)
    mask = mask / (mask.sum(-1, keepdim=True) + 1e-8)
    return torch.einsum("bft,bfct,bfet->bfce", mask.to(spec.dtype), spec, spec.conj())


class Model(nn.Module):
    """Mask network, spatial covariances of speech and noise, MVDR (Souden) beamformer with hand-written 3x3 inverse."""

    def __init__(self, n_freq=33, mics=3, hidden=24, diag_eps=1e-3):
        super().__init__()
        self.mics = mics
        self.diag_eps = diag_eps
        self.rnn = nn.Conv1d(n_freq * 2, hidden, 3, padding=1)
        self.out = nn.Linear(hidden, n_freq * 2)
        self.ref_score = nn.Linear(n_freq, 1)

    def forward(self, spec_ri):
        # (B, C, F, T, 2)
        spec = torch.view_as_complex(spec_ri.contiguous())
        B, C, Fq, T = spec.shape
        logmag = torch.log1p(spec.abs())
        feat = torch.cat([logmag.mean(1), logmag.std(1)], dim=1)
        h = torch.tanh(self.rnn(feat)).transpose(1, 2)
        masks = torch.sigmoid(self.out(h)).view(B, T, 2, Fq).permute(2, 0, 3, 1)
        mask_s, mask_n = masks.unbind(0)

        s = spec.permute(0, 2, 1, 3)
        phi_s = psd(mask_s, s)
        phi_n = psd(mask_n, s)
        trace = torch.diagonal(phi_n, dim1=-2, dim2=-1).real.sum(-1)
        eye = torch.eye(C, dtype=phi_n.dtype, device=phi_n.device)
        phi_n = phi_n + (self.diag_eps * trace + 1e-8)[..., None, None] * eye

        num = inv3x3(phi_n) @ phi_s
        tr = num.diagonal(offset=0, dim1=-2, dim2=-1).sum(-1)
        ws = num / (tr[..., None, None] + 1e-8)

        # attention over reference microphones
        power = torch.diagonal(phi_s, dim1=-2, dim2=-1).real        # (B, F, C)
        u = F.softmax(self.ref_score(torch.log(power + 1e-6).transpose(1, 2)).squeeze(-1), dim=-1)
        w = torch.einsum("bfce,be->bfc", ws, u.to(ws.dtype))
        enhanced = torch.einsum("bfc,bfct->bft", w.conj(), s)
        return torch.view_as_real(enhanced), u


def get_inputs():
    return [torch.randn(2, 3, 33, 50, 2)]


def get_init_inputs():
    return [33, 3, 24, 1e-3]
