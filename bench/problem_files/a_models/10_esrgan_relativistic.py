import torch
import torch.nn as nn
import torch.nn.functional as F


class DenseBlock(nn.Module):
    def __init__(self, nf, gc):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(nf + i * gc, gc if i < 4 else nf, 3, 1, 1) for i in range(5)])
        self.lrelu = nn.LeakyReLU(negative_slope=0.2, inplace=True)
        for c in self.convs:
            c.weight.data = nn.init.kaiming_normal_(c.weight).data * 0.1
            c.bias.data.zero_()

    def forward(self, x):
        feats = [x]
        for c in self.convs[:-1]:
            feats.append(self.lrelu(c(torch.cat(feats, 1))))
        return self.convs[-1](torch.cat(feats, 1)) * 0.2 + x


class RRDB(nn.Module):
    def __init__(self, nf, gc):
        super().__init__()
        self.rdb1, self.rdb2, self.rdb3 = DenseBlock(nf, gc), DenseBlock(nf, gc), DenseBlock(nf, gc)

    def forward(self, x):
        return self.rdb3(self.rdb2(self.rdb1(x))) * 0.2 + x


class Generator(nn.Module):
    def __init__(self, nf, gc, nb):
        super().__init__()
        self.first, self.trunk = nn.Conv2d(3, nf, 3, 1, 1), nn.Sequential(*[RRDB(nf, gc) for _ in range(nb)])
        self.trunk_conv, self.up1, self.up2, self.hr = [nn.Conv2d(nf, nf, 3, 1, 1) for _ in range(4)]
        self.last = nn.Conv2d(nf, 3, 3, 1, 1)

    def forward(self, x):
        fea = self.first(x)
        fea = fea + self.trunk_conv(self.trunk(fea))
        for up in (self.up1, self.up2):
            fea = F.leaky_relu_(up(F.interpolate(fea, scale_factor=2, mode="nearest")), 0.2)
        base = F.interpolate(x, scale_factor=4, mode="bilinear")
        return self.last(F.leaky_relu_(self.hr(fea), 0.2)) + base


class SNConv(nn.Module):
    def __init__(self, c_in, c_out, k, s):
        super().__init__()
        self.w = nn.Parameter(torch.randn(c_out, c_in, k, k) * (2 / (c_in * k * k)) ** 0.5)
        self.s, self.p = s, (k - 1) // 2
        self.register_buffer("u", F.normalize(torch.randn(c_out), dim=0))

    def forward(self, x):
        w = self.w.flatten(1)
        with torch.no_grad():
            v = F.normalize(torch.mv(w.t(), self.u), dim=0)
            u = F.normalize(torch.mv(w, v), dim=0)
        sigma = torch.dot(u, torch.mv(w, v))
        return F.conv2d(x, self.w / sigma, None, self.s, self.p)


class UNetDiscriminator(nn.Module):
    def __init__(self, nf):
        super().__init__()
        self.c0 = nn.Conv2d(3, nf, 3, 1, 1)
        self.down = nn.ModuleList([SNConv(nf * a, nf * b, 4, 2) for a, b in ((1, 2), (2, 4), (4, 8))])
        self.up = nn.ModuleList([SNConv(nf * a, nf * b, 3, 1) for a, b in ((8, 4), (4, 2), (2, 1))])
        self.c8, self.c9 = SNConv(nf, nf, 3, 1), nn.Conv2d(nf, 1, 3, 1, 1)

    def forward(self, x):
        skips, feats = [F.leaky_relu(self.c0(x), 0.2, inplace=True)], []
        for d in self.down:
            skips.append(F.leaky_relu(d(skips[-1]), 0.2, inplace=True))
        x = skips.pop()
        for u in self.up:
            skip = skips.pop()
            x = F.interpolate(x, size=skip.shape[-2:], mode="bilinear", align_corners=False)
            x = F.leaky_relu(u(x), 0.2, inplace=True) + skip
            feats.append(x)
        return self.c9(F.leaky_relu(self.c8(x), 0.2, inplace=True)), feats


class Model(nn.Module):
    """ESRGAN step: RRDB generator, spectral-norm U-Net critic, relativistic average losses."""

    def __init__(self, nf, gc, nb, ndf):
        super().__init__()
        self.g, self.d = Generator(nf, gc, nb), UNetDiscriminator(ndf)
        k = torch.tensor([[-1.0, -2, -1], [0, 0, 0], [1, 2, 1]])
        self.register_buffer("sobel", torch.stack([k, k.t()]).unsqueeze(1))

    def edges(self, x):
        b, c, h, w = x.shape
        y = F.conv2d(F.pad(x.reshape(b * c, 1, h, w), (1, 1, 1, 1), mode="replicate"), self.sobel)
        return y.pow(2).sum(1).add(1e-3).sqrt().view(b, c, h, w)

    def forward(self, lr, hr):
        bce = F.binary_cross_entropy_with_logits
        fake = self.g(lr)
        d_fake, f_fake = self.d(fake)
        with torch.no_grad():
            d_real, f_real = self.d(hr)
        one, zero = torch.ones_like(d_fake), torch.zeros_like(d_fake)
        l_g = (bce(d_real - d_fake.mean(), zero) + bce(d_fake - d_real.mean(), one)) / 2
        l_pix = (fake - hr).abs().mean()
        l_feat = sum(w * (a - b).abs().mean() for w, a, b in zip((0.1, 1.0, 1.0), f_fake, f_real))
        l_edge = (self.edges(fake) - self.edges(hr)).pow(2).add(1e-6).sqrt().mean()
        s_fake, s_real = self.d(fake.detach())[0], self.d(hr)[0]
        l_d = (bce(s_real - s_fake.mean(), one * 0.9) + bce(s_fake - s_real.mean(), zero)) / 2
        loss_g = 1e-2 * l_pix + l_feat + 5e-3 * l_g + 0.05 * l_edge
        return loss_g, l_d, fake.clamp(-0.5, 1.5)


def get_inputs():
    return [torch.rand(3, 3, 25, 23), torch.rand(3, 3, 100, 92)]


def get_init_inputs():
    return [48, 24, 4, 24]
