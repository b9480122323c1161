import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm


class ConditionalBatchNorm2d(nn.Module):
    def __init__(self, ch, classes):
        super().__init__()
        self.bn = nn.BatchNorm2d(ch, affine=False)
        self.embed = nn.Embedding(classes, 2 * ch)
        self.embed.weight.data[:, :ch].normal_(1, 0.2)
        self.embed.weight.data[:, ch:].normal_(0, 0.2)

    def forward(self, x, y):
        gamma, beta = self.embed(y).chunk(2, 1)
        return torch.addcmul(beta[:, :, None, None], gamma[:, :, None, None], self.bn(x))


class GBlock(nn.Module):
    def __init__(self, i, o, classes):
        super().__init__()
        self.bn1, self.bn2 = ConditionalBatchNorm2d(i, classes), ConditionalBatchNorm2d(o, classes)
        self.conv1, self.conv2 = nn.Conv2d(i, o, 3, 1, 1), nn.Conv2d(o, o, 3, 1, 1)
        self.skip = nn.Conv2d(i, o, 1)

    def forward(self, x, y):
        h = self.conv1(F.interpolate(F.relu(self.bn1(x, y)), scale_factor=2))
        h = self.conv2(F.relu(self.bn2(h, y)))
        return h + self.skip(F.interpolate(x, scale_factor=2))


def sn_conv(*a, **k):
    return spectral_norm(nn.Conv2d(*a, **k), eps=1e-6)


class SelfAttention(nn.Module):
    """SAGAN's attention with pooled keys and values."""

    def __init__(self, ch):
        super().__init__()
        self.theta, self.phi, self.g = (sn_conv(ch, n, 1, bias=False) for n in (ch // 6, ch // 6, ch // 2))
        self.o = sn_conv(ch // 2, ch, 1, bias=False)
        self.gamma = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        theta = self.theta(x).flatten(2)
        phi = F.max_pool2d(self.phi(x), 2).flatten(2)
        g = F.max_pool2d(self.g(x), 2).flatten(2)
        beta = F.softmax(torch.bmm(theta.transpose(1, 2), phi), -1)
        o = torch.bmm(g, beta.transpose(1, 2)).view(x.size(0), -1, *x.shape[2:])
        return self.gamma * self.o(o) + x


class DBlock(nn.Module):
    def __init__(self, i, o, down, first=False):
        super().__init__()
        self.conv1, self.conv2, self.skip = sn_conv(i, o, 3, 1, 1), sn_conv(o, o, 3, 1, 1), sn_conv(i, o, 1)
        self.down, self.first = down, first

    def forward(self, x):
        h = self.conv2(F.relu(self.conv1(x if self.first else F.relu(x))))
        s = x
        if self.down:
            h, s = F.avg_pool2d(h, 2), F.avg_pool2d(s, 2)
        return h + self.skip(s)


class Model(nn.Module):
    """SNGAN with a projection discriminator, self-attention and a minibatch deviation; hinge losses. The
    discriminator sees the real and the generated images in one batch."""

    def __init__(self, z, base, width, classes):
        super().__init__()
        self.base, self.width = base, width
        self.fc = nn.Linear(z, 2 * width * base * base)
        self.g = nn.ModuleList([GBlock(2 * width, width, classes), GBlock(width, width, classes)])
        self.g_bn = nn.BatchNorm2d(width)
        self.to_rgb = nn.Conv2d(width, 3, 3, 1, 1)
        self.d = nn.Sequential(DBlock(3, width, True, True), SelfAttention(width), DBlock(width, 2 * width, True), DBlock(2 * width, 2 * width, False))
        self.d_fc = spectral_norm(nn.Linear(2 * width + 1, 1), n_power_iterations=2)
        self.d_embed = spectral_norm(nn.Embedding(classes, 2 * width))

    def generate(self, z, y):
        h = self.fc(z).view(-1, 2 * self.width, self.base, self.base)
        for block in self.g:
            h = block(h, y)
        return torch.tanh(self.to_rgb(F.relu(self.g_bn(h))))

    def discriminate(self, x, y):
        h = F.relu(self.d(x))
        dev = h.unflatten(0, (2, -1)).std(dim=1, unbiased=False).mean(dim=(1, 2, 3))
        dev = dev.repeat_interleave(h.size(0) // 2).unsqueeze(1)
        h = h.sum(dim=(2, 3))
        return self.d_fc(torch.cat([h, dev], 1)) + (self.d_embed(y) * h).sum(1, keepdim=True)

    def forward(self, real, y, z):
        fake = self.generate(z, y)
        real_s, fake_s = self.discriminate(torch.cat([real, fake]), torch.cat([y, y])).chunk(2)
        loss_d = F.relu(1.0 - real_s).mean() + F.relu(1.0 + fake_s).mean()
        return fake, {"d": loss_d, "g": -fake_s.mean(), "scores": torch.cat([real_s, fake_s], 1)}


def get_inputs():
    return [torch.rand(5, 3, 20, 20) * 2 - 1, torch.randint(0, 7, (5,)), torch.randn(5, 34)]


def get_init_inputs():
    return [34, 5, 24, 7]
