import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Harris and Shi-Tomasi corner measures; windowed structure tensor by integral
    images (double accumulators), orientation coherence, soft local-maximum gating."""

    def __init__(self, radius, k, gate):
        super().__init__()
        self.r, self.k, self.gate = radius, k, gate

    def window(self, x):
        r = self.r
        H, W = x.shape[-2:]
        ii = F.pad(x.double(), (r + 1, r, r + 1, r)).cumsum(-1).cumsum(-2)
        n = 2 * r + 1
        s = ii[..., n:, n:] - ii[..., :-n, n:] - ii[..., n:, :-n] + ii[..., :-n, :-n]
        return (s / float(n * n)).float()[..., :H, :W]

    def forward(self, img):
        # (B, H, W)
        gy = torch.zeros_like(img)
        gx = torch.zeros_like(img)
        gx[:, :, 1:-1] = 0.5 * (img[:, :, 2:] - img[:, :, :-2])
        gy[:, 1:-1, :] = 0.5 * (img[:, 2:, :] - img[:, :-2, :])
        T = self.window(torch.stack((gx * gx, gy * gy, gx * gy), dim=1))
        a, b, c = T[:, 0], T[:, 1], T[:, 2]
        tr, det = a + b, a * b - c * c
        harris = det - self.k * tr * tr
        root = torch.sqrt((a - b) ** 2 + 4.0 * c * c + 1e-8)
        lam_min = 0.5 * (tr - root)
        coherence = root / (tr + 1e-3)
        scale = harris.abs().mean(dim=(1, 2), keepdim=True) + 1e-8
        score = harris / scale
        peak = F.max_pool2d(score.unsqueeze(1), 7, stride=1, padding=3).squeeze(1)
        corner = torch.relu(score) * torch.sigmoid(self.gate * (score - 0.9 * peak))
        top = torch.topk(corner.flatten(1), 32, dim=1).values
        return corner, lam_min, coherence, top


def get_inputs():
    return [torch.rand(2, 121, 139)]


def get_init_inputs():
    return [3, 0.05, 2.0]
