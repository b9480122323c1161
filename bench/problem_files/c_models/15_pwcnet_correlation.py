import torch
import torch.nn as nn
import torch.nn.functional as F


def conv(i, o, k=3, s=1, d=1):
    return nn.Sequential(nn.Conv2d(i, o, k, s, ((k - 1) * d) // 2, d, bias=True), nn.LeakyReLU(0.1, inplace=True))


def deconv(i, o):
    return nn.ConvTranspose2d(i, o, 4, 2, 1, bias=True)


class Correlation(nn.Module):
    """81-channel cost volume of normalised dot products in a (2d+1)^2 search window."""

    def __init__(self, d):
        super().__init__()
        self.d = d

    def forward(self, f1, f2):
        H, W = f1.shape[2:]
        d = self.d
        f2 = F.pad(f2, [d] * 4)
        cv = []
        for i in range(2 * d + 1):
            for j in range(2 * d + 1):
                cv.append((f1 * f2[:, :, i : i + H, j : j + W]).mean(1, keepdim=True))
        return torch.cat(cv, 1)


def warp(x, flo):
    B, C, H, W = x.size()
    xx = torch.arange(0, W, device=x.device, dtype=x.dtype).view(1, -1).repeat(H, 1)
    yy = torch.arange(0, H, device=x.device, dtype=x.dtype).view(-1, 1).repeat(1, W)
    grid = torch.stack((xx, yy), 0).unsqueeze(0).expand(B, -1, -1, -1)
    vgrid = grid + flo
    vx = 2.0 * vgrid[:, 0] / max(W - 1, 1) - 1.0
    vy = 2.0 * vgrid[:, 1] / max(H - 1, 1) - 1.0
    vgrid = torch.stack((vx, vy), dim=-1)
    output = F.grid_sample(x, vgrid, mode="bilinear", padding_mode="zeros", align_corners=True)
    with torch.no_grad():
        mask = F.grid_sample(torch.ones_like(x), vgrid, align_corners=True)
        mask = (mask > 0.999).to(x.dtype)
    return output * mask


class Decoder(nn.Module):
    def __init__(self, nd, feat, widths, top, last):
        super().__init__()
        od = nd if top else nd + feat + 4
        self.convs = nn.ModuleList()
        for w in widths:
            self.convs.append(conv(od, w))
            od = od + w
        self.predict_flow = nn.Conv2d(od, 2, 3, 1, 1)
        if not last:
            self.up_flow = deconv(2, 2)
            self.up_feat = deconv(od, 2)
        self.od = od

    def forward(self, x):
        for c in self.convs:
            x = torch.cat((c(x), x), 1)
        return x, self.predict_flow(x)


class Model(nn.Module):
    """PWC-Net: feature pyramid, warping, cost volumes, dense decoders, context net, multi-scale EPE."""

    def __init__(self, chans, md, widths):
        super().__init__()
        self.pyr = nn.ModuleList()
        cin = 3
        for c in chans:
            self.pyr.append(nn.Sequential(conv(cin, c, s=2), conv(c, c)))
            cin = c
        self.corr = Correlation(md)
        self.act = nn.LeakyReLU(0.1)
        nd = (2 * md + 1) ** 2
        self.dec = nn.ModuleList([Decoder(nd, c, widths, i == 0, i == len(chans) - 2) for i, c in enumerate(reversed(chans[1:]))])
        od = self.dec[-1].od
        self.context = nn.Sequential(conv(od, 48, d=1), conv(48, 48, d=2), conv(48, 32, d=4), conv(32, 24, d=8), nn.Conv2d(24, 2, 3, 1, 1))

    def pyramid(self, im):
        out = []
        for p in self.pyr:
            im = p(im)
            out.append(im)
        return out

    def forward(self, pair, target):
        im1, im2 = pair[:, :3], pair[:, 3:]
        p1, p2 = self.pyramid(im1), self.pyramid(im2)
        flows = []
        up_flow = up_feat = None
        n = len(p1)
        for i, dec in enumerate(self.dec):
            a, b = p1[n - 1 - i], p2[n - 1 - i]
            if i == 0:
                x = self.act(self.corr(a, b))
            else:
                b = warp(b, up_flow * (20.0 / 2 ** (n - i)))
                x = torch.cat((self.act(self.corr(a, b)), a, up_flow, up_feat), 1)
            x, flow = dec(x)
            if i == len(self.dec) - 1:
                flow = flow + self.context(x)
            else:
                up_flow, up_feat = dec.up_flow(flow), dec.up_feat(x)
            flows.append(flow)
        loss = pair.new_zeros(())
        for w, f in zip((0.32, 0.08, 0.02), flows):
            t = F.adaptive_avg_pool2d(target, f.shape[-2:])
            loss = loss + w * torch.norm(t - f, p=2, dim=1).sum((1, 2)).mean()
        return loss, flows[-1]


def get_inputs():
    return [torch.rand(2, 6, 96, 128), torch.randn(2, 2, 96, 128)]


def get_init_inputs():
    return [(16, 32, 48, 64), 3, (48, 32, 16)]
