import torch
import torch.nn as nn


class Model(nn.Module):
    """Colour jitter as in photo editors: RGB -> HSV, rotate the hue, vibrance,
    value curve, HSV -> RGB, then split toning in YCbCr."""

    def __init__(self, hue_shift, vibrance, gamma):
        super().__init__()
        self.hue_shift, self.vibrance, self.gamma = hue_shift, vibrance, gamma
        m = torch.tensor([[0.299, 0.587, 0.114],
                          [-0.168736, -0.331264, 0.5],
                          [0.5, -0.418688, -0.081312]])
        self.register_buffer("to_ycc", m)
        self.register_buffer("to_rgb", torch.linalg.inv(m.double()).float())
        self.register_buffer("tone", torch.tensor([[-0.02, 0.03], [0.03, -0.02]]))

    def forward(self, img):
        # (B, 3, H, W) in [0, 1]
        r, g, b = img[:, 0], img[:, 1], img[:, 2]
        v, _ = img.max(dim=1)
        mn = img.amin(dim=1)
        c = v - mn
        safe = c + 1e-3
        hr = (g - b) / safe
        hg = 2.0 + (b - r) / safe
        hb = 4.0 + (r - g) / safe
        h = torch.where(v == r, hr, torch.where(v == g, hg, hb)) / 6.0
        s = c / (v + 1e-3)
        h = (h + self.hue_shift) % 1.0
        s = (s + self.vibrance * s * (1.0 - s)).clamp(0.0, 1.0)
        v = (v + 1e-3) ** self.gamma
        n = torch.tensor([5.0, 3.0, 1.0], device=img.device).view(1, 3, 1, 1)
        k = (n + h.unsqueeze(1) * 6.0) % 6.0
        f = torch.minimum(k, 4.0 - k).clamp(0.0, 1.0)
        rgb = v.unsqueeze(1) * (1.0 - s.unsqueeze(1) * f)
        ycc = torch.einsum("oc,bchw->bohw", self.to_ycc, rgb)
        y = ycc[:, :1]
        shadow, light = (1.0 - y) ** 2, y ** 2
        toned = ycc[:, 1:] + shadow * self.tone[0].view(1, 2, 1, 1) + light * self.tone[1].view(1, 2, 1, 1)
        out = torch.einsum("oc,bchw->bohw", self.to_rgb, torch.cat((y, toned), dim=1))
        return out.clamp(0.0, 1.0)


def get_inputs():
    return [torch.rand(3, 3, 255, 333)]


def get_init_inputs():
    return [0.11, 0.4, 0.9]
