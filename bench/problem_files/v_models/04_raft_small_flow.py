import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, dim, norm):
        super().__init__()
        make = {"instance": lambda c: nn.InstanceNorm2d(c), "none": lambda c: nn.Identity()}[norm]
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 7, stride=2, padding=3), make(16), nn.ReLU(inplace=True),
            nn.Conv2d(16, 24, 3, stride=2, padding=1), make(24), nn.ReLU(inplace=True),
            nn.Conv2d(24, 32, 3, stride=2, padding=1), make(32), nn.ReLU(inplace=True),
            nn.Conv2d(32, dim, 1),
        )

    def forward(self, x):
        if isinstance(x, (list, tuple)):
            n = x[0].shape[0]
            return torch.split(self.net(torch.cat(x, dim=0)), [n, n], dim=0)
        return self.net(x)


def coords_grid(n, h, w, like):
    y, x = torch.meshgrid(torch.arange(h, device=like.device), torch.arange(w, device=like.device), indexing="ij")
    return torch.stack([x, y], dim=0).to(like.dtype)[None].repeat(n, 1, 1, 1)


def bilinear_sampler(img, coords):
    h, w = img.shape[-2:]
    xg, yg = coords.split([1, 1], dim=-1)
    grid = torch.cat([2 * xg / (w - 1) - 1, 2 * yg / (h - 1) - 1], dim=-1)
    return F.grid_sample(img, grid, align_corners=True)


class CorrBlock:
    def __init__(self, f1, f2, levels, radius):
        self.radius, self.pyramid = radius, []
        n, d, h, w = f1.shape
        corr = torch.matmul(f1.view(n, d, h * w).transpose(1, 2), f2.view(n, d, h * w)) / d ** 0.5
        corr = corr.reshape(n * h * w, 1, h, w)
        self.pyramid.append(corr)
        for _ in range(levels - 1):
            corr = F.avg_pool2d(corr, 2, stride=2)
            self.pyramid.append(corr)

    def __call__(self, coords):
        r = self.radius
        coords = coords.permute(0, 2, 3, 1)
        n, h, w, _ = coords.shape
        out = []
        for i, corr in enumerate(self.pyramid):
            d = torch.linspace(-r, r, 2 * r + 1, device=coords.device, dtype=coords.dtype)
            delta = torch.stack(torch.meshgrid(d, d, indexing="ij"), dim=-1)
            cen = coords.reshape(n * h * w, 1, 1, 2) / 2 ** i
            c = bilinear_sampler(corr, cen + delta.view(1, 2 * r + 1, 2 * r + 1, 2))
            out.append(c.view(n, h, w, -1))
        return torch.cat(out, dim=-1).permute(0, 3, 1, 2).contiguous()


class SepConvGRU(nn.Module):
    def __init__(self, hid, inp):
        super().__init__()
        self.zr1 = nn.Conv2d(hid + inp, 2 * hid, (1, 5), padding=(0, 2))
        self.q1 = nn.Conv2d(hid + inp, hid, (1, 5), padding=(0, 2))
        self.zr2 = nn.Conv2d(hid + inp, 2 * hid, (5, 1), padding=(2, 0))
        self.q2 = nn.Conv2d(hid + inp, hid, (5, 1), padding=(2, 0))

    def forward(self, h, x):
        for zr, q in ((self.zr1, self.q1), (self.zr2, self.q2)):
            z, r = torch.sigmoid(zr(torch.cat([h, x], 1))).chunk(2, 1)
            h = (1 - z) * h + z * torch.tanh(q(torch.cat([r * h, x], 1)))
        return h


class Model(nn.Module):
    """RAFT: all-pairs correlation pyramid, local lookup, separable ConvGRU refinement, convex upsampling."""

    def __init__(self, fdim, hdim, cdim, levels, radius, iters):
        super().__init__()
        self.hdim, self.cdim, self.levels, self.radius, self.iters = hdim, cdim, levels, radius, iters
        self.fnet = Encoder(fdim, "instance")
        self.cnet = Encoder(hdim + cdim, "none")
        self.convc = nn.Conv2d(levels * (2 * radius + 1) ** 2, 32, 1)
        self.convf = nn.Conv2d(2, 16, 7, padding=3)
        self.conv = nn.Conv2d(48, 30, 3, padding=1)
        self.gru = SepConvGRU(hdim, cdim + 32)
        self.flow = nn.Sequential(nn.Conv2d(hdim, 32, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(32, 2, 3, padding=1))
        self.mask = nn.Sequential(nn.Conv2d(hdim, 48, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(48, 64 * 9, 1))

    def upsample(self, flow, mask):
        n, _, h, w = flow.shape
        mask = torch.softmax(mask.view(n, 1, 9, 8, 8, h, w), dim=2)
        up = F.unfold(8 * flow, [3, 3], padding=1).view(n, 2, 9, 1, 1, h, w)
        up = torch.sum(mask * up, dim=2)
        return up.permute(0, 1, 4, 2, 5, 3).reshape(n, 2, 8 * h, 8 * w)

    def forward(self, im1, im2):
        im1, im2 = 2 * im1 - 1.0, 2 * im2 - 1.0
        f1, f2 = self.fnet([im1, im2])
        corr_fn = CorrBlock(f1, f2, self.levels, self.radius)
        net, inp = torch.split(self.cnet(im1), [self.hdim, self.cdim], dim=1)
        net, inp = torch.tanh(net), torch.relu(inp)
        n, _, h, w = net.shape
        coords0 = coords_grid(n, h, w, im1)
        coords1 = coords0.clone()
        flows = []
        for _ in range(self.iters):
            coords1 = coords1.detach()
            corr = corr_fn(coords1)
            flow = coords1 - coords0
            m = torch.cat([F.relu(self.convc(corr)), F.relu(self.convf(flow))], dim=1)
            m = torch.cat([F.relu(self.conv(m)), flow], dim=1)
            net = self.gru(net, torch.cat([inp, m], dim=1))
            coords1 = coords1 + self.flow(net)
            flows.append(self.upsample(coords1 - coords0, 0.25 * self.mask(net)))
        return flows


def get_inputs():
    return [torch.rand(1, 3, 72, 88), torch.rand(1, 3, 72, 88)]


def get_init_inputs():
    return [36, 24, 20, 3, 2, 3]
