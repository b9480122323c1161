import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Grey morphology: flat square and cross elements, opening/closing, top-hats,
    morphological gradient, and a few steps of reconstruction by dilation."""

    def __init__(self, size, recon_steps, contrast):
        super().__init__()
        self.size, self.recon_steps, self.contrast = size, recon_steps, contrast

    def dilate(self, x):
        return F.max_pool2d(x, self.size, stride=1, padding=self.size // 2)

    def erode(self, x):
        return -F.max_pool2d(-x, self.size, stride=1, padding=self.size // 2)

    @staticmethod
    def dilate_cross(x):
        y = x.clone()
        y[..., 1:, :] = torch.maximum(y[..., 1:, :], x[..., :-1, :])
        y[..., :-1, :] = torch.maximum(y[..., :-1, :], x[..., 1:, :])
        y[..., :, 1:] = torch.maximum(y[..., :, 1:], x[..., :, :-1])
        y[..., :, :-1] = torch.maximum(y[..., :, :-1], x[..., :, 1:])
        return y

    def forward(self, x):
        opened = self.dilate(self.erode(x))
        closed = self.erode(self.dilate(x))
        white = x - opened
        black = closed - x
        enhanced = (x + self.contrast * (white - black)).clamp(0.0, 1.0)
        grad = self.dilate_cross(x) + self.dilate_cross(-x)
        marker = opened
        for _ in range(self.recon_steps):
            marker = torch.minimum(self.dilate_cross(marker), x)
        peaks = x - marker
        return enhanced, grad, peaks, torch.stack((white.mean(dim=(1, 2, 3)), black.mean(dim=(1, 2, 3))), dim=1)


def get_inputs():
    return [torch.rand(2, 1, 127, 150)]


def get_init_inputs():
    return [5, 6, 0.7]
