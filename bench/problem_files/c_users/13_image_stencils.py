import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Image pipeline: colour conversions, stencils by slicing and roll, median window, morphology, bilinear sampling and dither-free gamma."""

    def __init__(self, sigma):
        super().__init__()
        k = torch.exp(-0.5 * (torch.arange(-3, 4).float() / sigma) ** 2)
        self.register_buffer("k", k / k.sum())
        self.register_buffer("yuv", torch.tensor([[0.299, 0.587, 0.114], [-0.147, -0.289, 0.436], [0.615, -0.515, -0.1]]))
        self.gain = nn.Parameter(torch.tensor([1.1, 0.95, 1.05]))

    def hsv(self, img):
        r, g, b = img.unbind(1)
        mx, mn = img.amax(1), img.amin(1)
        c = mx - mn + 1e-3
        h = torch.where(mx == r, torch.remainder((g - b) / c, 6), torch.where(mx == g, (b - r) / c + 2, (r - g) / c + 4))
        return torch.stack([torch.cos(h * 1.0471975512), c / (mx + 1e-3), mx], 1)

    def forward(self, img, flow):
        lin = torch.where(img <= 0.04045, img / 12.92, ((img + 0.055) / 1.055) ** 2.4) * self.gain[:, None, None]
        yuv = torch.tensordot(lin, self.yuv, dims=([1], [1])).movedim(-1, 1)
        y = yuv[:, 0]
        pad = F.pad(y[:, None], (3, 3, 3, 3), mode="reflect")[:, 0]
        gx = sum(self.k[i] * pad[:, :, i : i + y.shape[2]] for i in range(7))
        blur = sum(self.k[i] * gx[:, i : i + y.shape[1]] for i in range(7))
        sharp = y + 0.8 * (y - blur)
        sob = (y.roll(-1, 2) - y.roll(1, 2)) * 2 + y.roll((-1, 1), (2, 1)) - y.roll((1, -1), (2, 1))
        lap = F.conv2d(y[:, None], y.new_tensor([[[[0, 1, 0], [1, -4, 1], [0, 1, 0]]]]), padding=1)[:, 0]
        win = F.unfold(img[:, 1:2], 3, padding=1).view(img.shape[0], 9, *y.shape[1:])
        med = win.median(1).values
        dil = F.max_pool2d(img, (3, 5), stride=1, padding=(1, 2))
        ero = -F.max_pool2d(-img, 3, stride=1, padding=1)
        integral = y.cumsum(1).cumsum(2)
        box = integral[:, 5:, 5:] - integral[:, :-5, 5:] - integral[:, 5:, :-5] + integral[:, :-5, :-5]
        n, _, hh, ww = img.shape
        gy, gxx = torch.meshgrid(torch.linspace(-1, 1, hh, device=img.device, dtype=img.dtype),
                                 torch.linspace(-1, 1, ww, device=img.device, dtype=img.dtype), indexing="ij")
        grid = torch.stack([gxx, gy], -1) + 0.07 * torch.tanh(flow)
        warped = F.grid_sample(lin, grid, padding_mode="border", align_corners=True)
        rot = torch.rot90(img, 1, (2, 3)).flip(-1)
        down = F.interpolate(warped, scale_factor=0.5, mode="bilinear", align_corners=False, antialias=False)
        hist = torch.zeros(n, 16, device=img.device, dtype=torch.long).scatter_add_(
            1, (img[:, 0] * 16).long().clamp(0, 15).flatten(1), torch.ones(n, hh * ww, dtype=torch.long, device=img.device))
        psnr = -10 * torch.log10((sharp - y).square().mean((1, 2)) + 1e-4)
        return {"hsv": self.hsv(img), "sharp": sharp.clamp(0, 1), "edges": (sob, lap), "med": med, "morph": dil - ero,
                "box": box, "warp": (warped, down), "rot": rot, "hist": hist, "psnr": psnr}


def get_inputs():
    return [torch.rand(3, 3, 61, 67), torch.randn(3, 61, 67, 2)]


def get_init_inputs():
    return [1.3]
