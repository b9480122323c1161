import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """One coarse-to-fine level of Horn-Schunck optical flow: warp the second frame
    by the initial flow, then Jacobi iterations for the increment."""

    def __init__(self, alpha, iters):
        super().__init__()
        self.alpha2, self.iters = alpha * alpha, iters
        k = torch.tensor([[1.0, 2.0, 1.0], [2.0, 0.0, 2.0], [1.0, 2.0, 1.0]]) / 12.0
        self.register_buffer("avg", k.view(1, 1, 3, 3).repeat(2, 1, 1, 1))

    def warp(self, img, flow):
        B, _, H, W = img.shape
        ys = torch.arange(H, device=img.device, dtype=img.dtype)
        xs = torch.arange(W, device=img.device, dtype=img.dtype)
        gx = 2.0 * (xs.view(1, 1, W) + flow[:, 0]) / (W - 1) - 1.0
        gy = 2.0 * (ys.view(1, H, 1) + flow[:, 1]) / (H - 1) - 1.0
        return F.grid_sample(img, torch.stack((gx, gy), -1), align_corners=True, padding_mode="border")

    def forward(self, f1, f2, flow0):
        f2w = self.warp(f2, flow0)
        m = 0.5 * (f1 + f2w)
        p = F.pad(m, (1, 1, 1, 1), mode="replicate")
        Ix = 0.5 * (p[:, :, 1:-1, 2:] - p[:, :, 1:-1, :-2])
        Iy = 0.5 * (p[:, :, 2:, 1:-1] - p[:, :, :-2, 1:-1])
        It = f2w - f1
        g = torch.cat((Ix, Iy), dim=1)
        den = self.alpha2 + (g * g).sum(1, keepdim=True)
        d = torch.zeros_like(flow0)
        for _ in range(self.iters):
            bar = F.conv2d(F.pad(flow0 + d, (1, 1, 1, 1), mode="replicate"), self.avg, groups=2) - flow0
            res = ((g * bar).sum(1, keepdim=True) + It) / den
            d = bar - g * res
        flow = flow0 + d
        err = (self.warp(f2, flow) - f1).abs().mean(dim=(1, 2, 3))
        return flow, err


def get_inputs():
    B, H, W = 2, 89, 106
    base = F.interpolate(torch.rand(B, 1, 15, 18), size=(H, W), mode="bicubic", align_corners=False)
    f2 = torch.roll(base, shifts=(1, 1), dims=(2, 3)) + 0.01 * torch.randn(B, 1, H, W)
    return [base, f2, 0.3 * torch.randn(B, 2, H, W)]


def get_init_inputs():
    return [0.2, 8]
