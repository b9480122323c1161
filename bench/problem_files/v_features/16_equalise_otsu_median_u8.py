import torch
import torch.nn as nn


class Model(nn.Module):
    """uint8 pictures in channels-last: histograms by one_hot, equalisation tables, Otsu's
    threshold from integer prefix sums, adaptive medians by kthvalue written with
    masked_scatter, and a learned tone curve on what comes out."""

    def __init__(self, levels):
        super().__init__()
        self.levels = levels
        self.gamma = nn.Parameter(torch.tensor([0.7, 1.0, 1.4]))
        self.knots = nn.Parameter(torch.linspace(0, 1, 17) ** 1.1)

    def histogram(self, coarse):
        b, c = coarse.shape[:2]
        hot = nn.functional.one_hot(coarse.flatten(2).long(), self.levels)
        return hot.sum(2)  # b c levels, int64

    def otsu(self, hist):
        level = torch.arange(self.levels)
        count = hist.cumsum(-1)
        first = (hist * level).cumsum(-1)
        n, total = count[..., -1:], first[..., -1:]
        # the between-class variance as a quotient of integers
        num = (first * n - total * count).double().square()
        den = (count * (n - count)).double()
        score = torch.where(den > 0, num / den, torch.zeros_like(num))
        return score.argmax(-1)

    def medians(self, img):
        p = nn.functional.pad(img.to(torch.float32), (1, 1, 1, 1), mode="reflect").to(torch.int16)
        win = p.unfold(2, 3, 1).unfold(3, 3, 1).flatten(4)
        med = win.kthvalue(5, dim=-1).values
        lo, hi = win.aminmax(dim=-1)
        return med, lo, hi

    def forward(self, img):
        b, c, h, w = img.shape
        shift = 8 - (self.levels.bit_length() - 1)
        coarse = img >> shift
        hist = self.histogram(coarse)
        cdf = hist.cumsum(-1)
        low = torch.where(hist > 0, cdf, h * w).amin(-1, keepdim=True)
        table = ((cdf - low) * (self.levels - 1)).div((h * w - low).clamp(min=1), rounding_mode="floor")
        equal = table.gather(2, coarse.flatten(2).long()).view(b, c, h, w)
        equal = (equal << shift).clamp(0, 255).to(torch.uint8)

        med, lo, hi = self.medians(img)
        wide = img.to(torch.int16)
        impulse = (wide == lo) | (wide == hi)
        clean = wide.masked_scatter(impulse, med[impulse]).to(torch.uint8)

        threshold = self.otsu(hist)
        binary = coarse > threshold[..., None, None]
        x = clean.to(self.knots.dtype) / 255.0 + 1e-3
        toned = torch.special.xlogy(self.gamma.view(1, -1, 1, 1), x).exp()
        pos = equal.to(self.knots.dtype) * (16 / 255.0)
        cell = pos.floor().clamp(max=15)
        curve = torch.lerp(self.knots[cell.long()], self.knots[cell.long() + 1], pos - cell)
        mixed = torch.where(binary, toned, curve)
        local = mixed.median(dim=-1).values
        checksum = (equal.to(torch.int32) * 31).bitwise_xor(clean.to(torch.int32)).sum((2, 3))
        return equal, clean, threshold, binary, mixed, local, checksum


def get_inputs():
    b, c, h, w = 2, 3, 67, 95
    smooth = nn.functional.interpolate(torch.rand(b, c, 9, 11), size=(h, w), mode="bicubic")
    img = (40 + 150 * smooth + 6 * torch.randn(b, c, h, w)).clamp(0, 255)
    salt = torch.rand(b, 1, h, w)
    img = torch.where(salt < 0.03, 0.0, torch.where(salt > 0.97, 255.0, img))
    return [img.to(torch.uint8).to(memory_format=torch.channels_last)]


def get_init_inputs():
    return [64]
