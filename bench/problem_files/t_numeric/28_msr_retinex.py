import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Multi-scale Retinex with colour restoration; Gaussian surrounds by separable
    depthwise convolution; simple per-channel mean/std stretch at the end. NHWC."""

    def __init__(self, sigmas, alpha, gain):
        super().__init__()
        self.alpha, self.gain = alpha, gain
        self.n = len(sigmas)
        for i, s in enumerate(sigmas):
            r = int(2.5 * s)
            t = torch.arange(-r, r + 1).float()
            k = torch.exp(-0.5 * (t / s) ** 2)
            self.register_buffer(f"k{i}", k / k.sum())

    def blur(self, x, k):
        C = x.shape[1]
        r = k.numel() // 2
        x = F.conv2d(F.pad(x, (r, r, 0, 0), mode="replicate"), k.view(1, 1, 1, -1).repeat(C, 1, 1, 1), groups=C)
        x = F.conv2d(F.pad(x, (0, 0, r, r), mode="replicate"), k.view(1, 1, -1, 1).repeat(C, 1, 1, 1), groups=C)
        return x

    def forward(self, img):
        x = img.permute(0, 3, 1, 2) + 0.02
        logx = torch.log(x)
        msr = torch.zeros_like(x)
        for i in range(self.n):
            msr = msr + (logx - torch.log(self.blur(x, getattr(self, f"k{i}"))))
        msr = msr / self.n
        restore = torch.log(self.alpha * x / x.sum(dim=1, keepdim=True) + 1.0)
        out = self.gain * msr * restore
        mu = out.mean(dim=(2, 3), keepdim=True)
        sd = out.std(dim=(2, 3), keepdim=True)
        out = 0.5 + (out - mu) / (4.0 * sd + 1e-4)
        return out.clamp(0, 1).permute(0, 2, 3, 1).contiguous()


def get_inputs():
    return [torch.rand(1, 88, 107, 3)]


def get_init_inputs():
    return [[1.5, 4.0, 7.0], 60.0, 1.2]
