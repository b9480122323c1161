import torch
import torch.nn as nn


class Model(nn.Module):
    """Integer alpha blend and YCbCr, wrapping and saturating sums, Bayer dither to RGB565, learned curve."""

    def __init__(self, c):
        super().__init__()
        self.gamma = nn.Parameter(torch.rand(c, 1) * 0.6 + 0.7)
        bay = torch.tensor([[0, 8, 2, 10], [12, 4, 14, 6], [3, 11, 1, 9], [15, 7, 13, 5]])
        self.register_buffer("bay", bay)

    def div255(self, v):
        v = v + 128
        return (v + (v >> 8)) >> 8

    def forward(self, fg, bg):
        b, _, h, w = fg.shape
        a = fg[:, 3:].to(torch.int32)
        f, g = fg[:, :3].to(torch.int32), bg.to(torch.int32)
        mix = self.div255(f * a + g * (255 - a))
        add = torch.minimum(f + g, torch.tensor(255, device=fg.device, dtype=torch.int32))
        wrap = (fg[:, :3] + bg).to(torch.int32)
        ovf = (wrap != add) & (wrap < f)
        r, gr, bl = mix.unbind(1)
        y = (77 * r + 150 * gr + 29 * bl + 128) >> 8
        cb = ((-43 * r - 85 * gr + 128 * bl + 128) >> 8) + 128
        cr = ((128 * r - 107 * gr - 21 * bl + 128) >> 8) + 128
        ycc = torch.stack([y, cb, cr], 1).clamp(0, 255).to(torch.uint8)
        d = self.bay.to(torch.int32).repeat((h + 3) // 4, (w + 3) // 4)[:h, :w]
        r5 = (r + (d >> 1)).clamp(max=255) >> 3
        g6 = (gr + (d >> 2)).clamp(max=255) >> 2
        b5 = (bl + (15 - d) // 2).clamp(max=255) >> 3
        pk = (r5 << 11) | (g6 << 5) | b5
        up = torch.stack([pk >> 11, (pk >> 5) & 63, pk & 31], 1)
        up = torch.stack([(up[:, 0] << 3) | (up[:, 0] >> 2), (up[:, 1] << 2) | (up[:, 1] >> 4),
                          (up[:, 2] << 3) | (up[:, 2] >> 2)], 1)
        err = (up - mix).abs().amax(1)
        lut = (torch.arange(256, device=fg.device).to(self.gamma.dtype) / 255) ** self.gamma
        ch = torch.arange(3, device=fg.device).view(3, 1, 1)
        curve = lut[ch, up.long()] * (1 - a / 510)
        med = torch.maximum(torch.minimum(fg[:, :3], bg), torch.minimum(torch.maximum(fg[:, :3], bg), ycc))
        return curve, ycc ^ med, pk, err, ovf.sum((2, 3)), ~med[:, :, ::7, ::5]


def get_inputs():
    return [torch.randint(0, 256, (4, 4, 211, 317)).byte(), torch.randint(0, 256, (4, 3, 211, 317)).byte()]


def get_init_inputs():
    return [3]
