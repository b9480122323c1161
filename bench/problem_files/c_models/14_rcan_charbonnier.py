import math

import torch
import torch.nn as nn


def default_conv(in_channels, out_channels, kernel_size, bias=True):
    return nn.Conv2d(in_channels, out_channels, kernel_size, padding=(kernel_size // 2), bias=bias)


class MeanShift(nn.Conv2d):
    def __init__(self, rgb_mean, rgb_std, sign=-1):
        super().__init__(3, 3, kernel_size=1)
        std = torch.tensor(rgb_std)
        self.weight.data = torch.eye(3).view(3, 3, 1, 1) / std.view(3, 1, 1, 1)
        self.bias.data = sign * torch.tensor(rgb_mean) / std
        for p in self.parameters():
            p.requires_grad = False


class CALayer(nn.Module):
    def __init__(self, channel, reduction=16):
        super().__init__()
        self.avg_pool = nn.AdaptiveAvgPool2d(1)
        self.conv_du = nn.Sequential(
            nn.Conv2d(channel, channel // reduction, 1), nn.ReLU(inplace=True), nn.Conv2d(channel // reduction, channel, 1), nn.Sigmoid()
        )

    def forward(self, x):
        y = self.avg_pool(x)
        y = self.conv_du(y)
        return x * y


class RCAB(nn.Module):
    def __init__(self, conv, n_feat, kernel_size, reduction, res_scale=1.0):
        super().__init__()
        body = []
        for i in range(2):
            body.append(conv(n_feat, n_feat, kernel_size))
            if i == 0:
                body.append(nn.ReLU(True))
        body.append(CALayer(n_feat, reduction))
        self.body = nn.Sequential(*body)
        self.res_scale = res_scale

    def forward(self, x):
        res = self.body(x).mul(self.res_scale)
        res += x
        return res


class ResidualGroup(nn.Module):
    def __init__(self, conv, n_feat, reduction, n_resblocks):
        super().__init__()
        blocks = [RCAB(conv, n_feat, 3, reduction) for _ in range(n_resblocks)]
        blocks.append(conv(n_feat, n_feat, 3))
        self.body = nn.Sequential(*blocks)

    def forward(self, x):
        res = self.body(x)
        res += x
        return res


class Upsampler(nn.Sequential):
    def __init__(self, conv, scale, n_feats):
        m = []
        for _ in range(int(math.log(scale, 2))):
            m.append(conv(n_feats, 4 * n_feats, 3))
            m.append(nn.PixelShuffle(2))
        super().__init__(*m)


class Model(nn.Module):
    """RCAN super-resolution (residual groups with channel attention), x4, with a Charbonnier loss."""

    def __init__(self, n_groups, n_blocks, n_feats, reduction, scale):
        super().__init__()
        conv = default_conv
        mean, std = (0.4488, 0.4371, 0.4040), (1.0, 1.0, 1.0)
        self.sub_mean = MeanShift(mean, std, -1)
        self.add_mean = MeanShift(mean, std, 1)
        self.head = nn.Sequential(conv(3, n_feats, 3))
        self.body = nn.Sequential(*[ResidualGroup(conv, n_feats, reduction, n_blocks) for _ in range(n_groups)], conv(n_feats, n_feats, 3))
        self.tail = nn.Sequential(Upsampler(conv, scale, n_feats), conv(n_feats, 3, 3))

    def forward(self, lr, hr):
        x = self.sub_mean(lr)
        x = self.head(x)
        res = self.body(x)
        res += x
        x = self.tail(res)
        sr = self.add_mean(x)
        diff = sr - hr
        loss = torch.sqrt(diff * diff + 1e-6).mean()
        mse = (sr.detach().clamp(0, 1) - hr).square().flatten(1).mean(1)
        return loss, sr, -10 * torch.log10(mse + 1e-8)


def get_inputs():
    return [torch.rand(2, 3, 24, 30), torch.rand(2, 3, 96, 120)]


def get_init_inputs():
    return [2, 3, 48, 8, 4]
