import torch
import torch.nn as nn


class Model(nn.Module):
    """Perceptual colour difference of two sRGB pictures (NHWC): linearise, XYZ,
    CIE Lab, dE94, and a chromaticity transfer of means and deviations in Lab."""

    def __init__(self, k1, k2):
        super().__init__()
        self.k1, self.k2 = k1, k2
        M = torch.tensor([[0.4124564, 0.3575761, 0.1804375],
                          [0.2126729, 0.7151522, 0.0721750],
                          [0.0193339, 0.1191920, 0.9503041]])
        white = torch.tensor([0.95047, 1.0, 1.08883])
        self.register_buffer("M", M / white[:, None])

    def to_lab(self, rgb):
        lin = torch.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
        xyz = lin @ self.M.t()
        f = torch.where(xyz > 0.008856, xyz.clamp(min=1e-4) ** (1.0 / 3.0), 7.787 * xyz + 16.0 / 116.0)
        fx, fy, fz = f.unbind(-1)
        return torch.stack((116.0 * fy - 16.0, 500.0 * (fx - fy), 200.0 * (fy - fz)), dim=-1)

    def forward(self, a, b):
        la, lb = self.to_lab(a), self.to_lab(b)
        ca = torch.sqrt(la[..., 1] ** 2 + la[..., 2] ** 2 + 1e-6)
        cb = torch.sqrt(lb[..., 1] ** 2 + lb[..., 2] ** 2 + 1e-6)
        d = la - lb
        dC = ca - cb
        dH2 = (d[..., 1] ** 2 + d[..., 2] ** 2 - dC ** 2).clamp(min=0.0)
        sc = 1.0 + self.k1 * ca
        sh = 1.0 + self.k2 * ca
        de = torch.sqrt(d[..., 0] ** 2 + (dC / sc) ** 2 + dH2 / sh ** 2 + 1e-6)
        ma, mb = la.mean(dim=(1, 2), keepdim=True), lb.mean(dim=(1, 2), keepdim=True)
        sa, sb = la.std(dim=(1, 2), keepdim=True), lb.std(dim=(1, 2), keepdim=True)
        moved = (la - ma) * (sb / (sa + 1e-4)) + mb
        return de, de.mean(dim=(1, 2)), moved


def get_inputs():
    a = torch.rand(3, 131, 153, 3)
    return [a, (a + 0.1 * torch.randn_like(a)).clamp(0, 1)]


def get_init_inputs():
    return [0.045, 0.015]
