import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def dct_matrix(n, k=None):
    k = n if k is None else k
    i = torch.arange(n).float()
    C = torch.cos(math.pi * torch.outer(torch.arange(k).float(), i + 0.5) / n) * math.sqrt(2 / n)
    C[0] /= math.sqrt(2)
    return C


def quat_mul(a, b):
    aw, ax, ay, az = a.unbind(-1)
    bw, bx, by, bz = b.unbind(-1)
    return torch.stack((aw * bw - ax * bx - ay * by - az * bz, aw * bx + ax * bw + ay * bz - az * by,
                        aw * by - ax * bz + ay * bw + az * bx, aw * bz + ax * by - ay * bx + az * bw), -1)


def quat_to_matrix(q):
    w, x, y, z = F.normalize(q, dim=-1).unbind(-1)
    R = q.new_empty(*q.shape[:-1], 3, 3)
    R[..., 0, 0], R[..., 0, 1], R[..., 0, 2] = 1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)
    R[..., 1, 0], R[..., 1, 1], R[..., 1, 2] = 2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)
    R[..., 2, 0], R[..., 2, 1], R[..., 2, 2] = 2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)
    return R


def local_ncc(a, b, win=5):
    box = lambda z: F.avg_pool3d(z, win, stride=1, padding=win // 2, count_include_pad=False)
    ma, mb = box(a), box(b)
    cov = box(a * b) - ma * mb
    va, vb = box(a * a) - ma * ma, box(b * b) - mb * mb
    return (cov * cov / (va.clamp_min(0) * vb.clamp_min(0) + 1e-3)).mean((1, 2, 3, 4))


class Model(nn.Module):
    """Coarse-to-fine 3-D registration: quaternion affine plus DCT displacement, local NCC, grid_sample."""

    def __init__(self, size, modes, levels=2):
        super().__init__()
        self.size, self.modes = size, modes
        self.register_buffer("basis", dct_matrix(size, modes))
        self.enc = nn.ModuleList(nn.Conv3d(2, 8, 3, stride=2, padding=1) for _ in range(levels))
        self.affine = nn.ModuleDict({f"lvl{i}": nn.Linear(8, 4 + 3 + 3) for i in range(levels)})
        self.field = nn.Linear(8, 3 * modes ** 3)
        for lin in (*self.affine.values(), self.field):
            nn.init.normal_(lin.weight, std=0.02)
            nn.init.zeros_(lin.bias)
        self.register_buffer("q_ema", torch.tensor([1.0, 0.0, 0.0, 0.0]))
        self.register_buffer("history", torch.zeros(8))
        self.cursor = 0

    def warp(self, vol, q, t, logs, disp=None):
        n = vol.shape[0]
        M = quat_to_matrix(q) * logs.exp().unsqueeze(1)
        theta = torch.cat((M, t.unsqueeze(-1)), -1)
        grid = F.affine_grid(theta, list(vol.shape), align_corners=False)
        if disp is not None:
            grid = grid + disp.view(n, 3, *vol.shape[2:]).permute(0, 2, 3, 4, 1)
        return F.grid_sample(vol, grid, mode="bilinear", padding_mode="border", align_corners=False), grid

    def dct_field(self, coef):
        B = self.basis
        return torch.einsum("bcijk,ix,jy,kz->bcxyz", coef, B, B, B)

    def forward(self, moving, fixed, refine=True):
        n = moving.shape[0]
        q = self.q_ema.expand(n, 4).clone()
        q[:, 1:] *= 0.5
        t = moving.new_zeros(n, 3)
        logs = torch.zeros_like(t)
        sims = []
        for i, (enc, lin) in enumerate(zip(self.enc, self.affine.values())):
            factor = 2 ** (len(self.enc) - 1 - i)
            m, f = (F.avg_pool3d(v, factor) if factor > 1 else v for v in (moving, fixed))
            w, _ = self.warp(m, q, t, logs)
            feat = F.leaky_relu(enc(torch.cat((w, f), 1))).mean((2, 3, 4))
            dq, dt, ds = lin(feat).split((4, 3, 3), dim=1)
            dq = torch.cat((1 + dq[:, :1], dq[:, 1:]), 1)
            q = F.normalize(quat_mul(dq, q), dim=-1)
            t, logs = t + 0.1 * torch.tanh(dt), logs + 0.1 * torch.tanh(ds)
            sims.append(local_ncc(w, f))
        disp = coef = None
        if refine:
            k = torch.arange(self.modes, device=moving.device).float()
            decay = torch.exp(-0.3 * (k[:, None, None] + k[:, None] + k))
            coef = self.field(feat).view(n, 3, *(self.modes,) * 3) * decay
            disp = self.dct_field(coef)
        warped, grid = self.warp(moving, q, t, logs, disp)
        final = local_ncc(warped, fixed)
        smooth = moving.new_zeros(())
        if disp is not None:
            smooth = sum(disp.diff(dim=d).square().mean() for d in (2, 3, 4))
        with torch.no_grad():
            self.q_ema.lerp_(q.mean(0), 0.1).div_(self.q_ema.norm())
            self.history[self.cursor % 8] = final.mean()
            self.cursor += 1
        angle = 2 * torch.acos(q[:, 0].abs().clamp(max=1 - 1e-6))
        return {"loss": 1 - final.mean() + 0.1 * smooth, "warped": warped, "angle": angle, "q": q,
                "grid_z": grid[..., 2], "sims": torch.stack(sims, 1), "fixed": fixed, "history": self.history}


def get_inputs():
    base = F.avg_pool3d(torch.randn(2, 1, 24, 24, 24), 3, 1, 1)
    return [base, base.roll((1, -1), (2, 4)) + 0.02 * base.flip(3)]


def get_init_inputs():
    return [24, 4]
