import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import orthogonal


class PatchNonLocal(nn.Module):
    """Attention between overlapping patches: unfold, mix, fold, divide by the overlap count."""

    def __init__(self, ch, k, stride):
        super().__init__()
        self.k, self.stride = k, stride
        self.theta = orthogonal(nn.Linear(ch, 6, bias=False))
        self.scale = nn.Parameter(torch.tensor(10.0))
        self.out = nn.Conv2d(ch, ch, 1)

    def forward(self, x):
        n, c, h, w = x.shape
        pad = ((self.stride - (h - self.k) % self.stride) % self.stride, (self.stride - (w - self.k) % self.stride) % self.stride)
        y = F.pad(x, (0, pad[1], 0, pad[0]), mode="replicate")
        size = y.shape[-2:]
        t = self.theta(y.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        q = F.normalize(F.unfold(t, self.k, stride=self.stride), dim=1)
        v = F.unfold(y, self.k, stride=self.stride)
        sim = torch.einsum("ndi,ndj->nij", q, q) * self.scale
        sim = sim.masked_fill(torch.eye(sim.size(-1), dtype=torch.bool, device=x.device), float("-inf"))
        mixed = torch.einsum("nij,nfj->nfi", sim.softmax(-1), v)
        total = F.fold(mixed, size, self.k, stride=self.stride)
        count = F.fold(torch.ones_like(mixed), size, self.k, stride=self.stride)
        return x + self.out((total / count)[..., :h, :w])


class Model(nn.Module):
    """FFDNet: a noise-level map joins the pixel-unshuffled image; a patch non-local layer in the middle;
    noise is predicted at low resolution and shuffled back. Odd images are mirrored to even sizes."""

    def __init__(self, channels, width, depth, factor, k, stride):
        super().__init__()
        self.factor = factor
        self.unshuffle, self.shuffle = nn.PixelUnshuffle(factor), nn.PixelShuffle(factor)
        layers = [nn.Conv2d(channels * factor ** 2 + 1, width, 3, padding=1), nn.ReLU(inplace=True)]
        for i in range(depth):
            layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width, momentum=0.9, eps=1e-4), nn.ReLU(inplace=True)]
            if i == depth // 2:
                layers.append(PatchNonLocal(width, k, stride))
        layers.append(nn.Conv2d(width, channels * factor ** 2, 3, padding=1))
        self.body = nn.Sequential(*layers)

    def forward(self, clean, noise, sigma):
        noisy = clean + noise * sigma
        h, w = noisy.shape[-2:]
        f = self.factor
        x = F.pad(noisy, (0, -w % f, 0, -h % f), mode="reflect")
        x = self.unshuffle(x)
        m = sigma.expand(-1, 1, x.size(-2), x.size(-1))
        residual = self.shuffle(self.body(torch.cat((x, m), 1)))[..., :h, :w]
        out = noisy - residual
        mse = (out - clean).pow(2).mean(dim=(1, 2, 3))
        psnr = -10 * torch.log10(mse.detach() + 1e-8)
        return {"image": out.clamp(-0.5, 1.5), "loss": torch.sqrt(mse + 1e-6).sum() / 2, "psnr": psnr}


def get_inputs():
    return [torch.rand(2, 3, 47, 61), torch.randn(2, 3, 47, 61), torch.tensor([0.1, 0.25]).view(2, 1, 1, 1)]


def get_init_inputs():
    return [3, 33, 3, 2, 5, 3]
