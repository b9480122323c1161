import torch
import torch.nn as nn
import torch.nn.functional as F


class MaskedConv2d(nn.Conv2d):
    """Convolution whose kernel is multiplied by a registered mask."""

    def __init__(self, mask, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.register_buffer("mask", mask.view(1, 1, *mask.shape))

    def forward(self, x):
        return F.conv2d(x, self.weight * self.mask, self.bias, self.stride, self.padding, self.dilation)


def vertical(cin, cout, k, dilation=1, first=False):
    mask = torch.ones(k, k)
    mask[k // 2 + 1 :, :] = 0
    if first:
        mask[k // 2, :] = 0
    return MaskedConv2d(mask, cin, cout, k, padding=dilation * (k // 2), dilation=dilation)


def horizontal(cin, cout, k, dilation=1, first=False):
    mask = torch.ones(1, k)
    mask[0, k // 2 + 1 :] = 0
    if first:
        mask[0, k // 2] = 0
    return MaskedConv2d(mask, cin, cout, (1, k), padding=(0, dilation * (k // 2)), dilation=dilation)


class GatedMaskedConv(nn.Module):
    def __init__(self, c, n_cond, dilation=1):
        super().__init__()
        self.conv_vert = vertical(c, 2 * c, 3, dilation)
        self.conv_horiz = horizontal(c, 2 * c, 3, dilation)
        self.conv_vert_to_horiz = nn.Conv2d(2 * c, 2 * c, kernel_size=1)
        self.conv_horiz_1x1 = nn.Conv2d(c, c, kernel_size=1)
        self.cond = nn.Embedding(n_cond, 2 * c)

    @staticmethod
    def gate(z):
        val, gate = z.chunk(2, dim=1)
        return torch.tanh(val) * torch.sigmoid(gate)

    def forward(self, v_stack, h_stack, y):
        h = self.cond(y)[:, :, None, None]
        v_feat = self.conv_vert(v_stack)
        v_out = self.gate(v_feat + h)
        h_feat = self.conv_horiz(h_stack) + self.conv_vert_to_horiz(v_feat)
        h_out = self.conv_horiz_1x1(self.gate(h_feat + h))
        return v_out, h_out + h_stack


class Model(nn.Module):
    """Class-conditional gated PixelCNN with vertical/horizontal stacks; returns bits per dimension."""

    def __init__(self, channels, hidden, n_cond, dilations, levels):
        super().__init__()
        self.levels, self.channels = levels, channels
        self.conv_vstack = vertical(channels, hidden, 5, first=True)
        self.conv_hstack = horizontal(channels, hidden, 5, first=True)
        self.layers = nn.ModuleList([GatedMaskedConv(hidden, n_cond, d) for d in dilations])
        self.conv_out = nn.Sequential(nn.ReLU(), nn.Conv2d(hidden, 2 * hidden, 1), nn.ReLU(), nn.Conv2d(2 * hidden, channels * levels, 1))

    def forward(self, x, y):
        # x: integer image
        inp = x.to(self.conv_out[1].weight.dtype) / (self.levels - 1) * 2 - 1
        v = self.conv_vstack(inp)
        h = self.conv_hstack(inp)
        for layer in self.layers:
            v, h = layer(v, h, y)
        out = self.conv_out(h)
        out = out.reshape(out.shape[0], self.levels, self.channels, out.shape[2], out.shape[3])
        nll = F.cross_entropy(out, x, reduction="none")
        bpd = nll.mean(dim=[1, 2, 3]) * 1.4426950408889634
        return bpd.mean(), out.argmax(dim=1)


def get_inputs():
    return [torch.randint(0, 16, (5, 3, 28, 26)), torch.randint(0, 10, (5,))]


def get_init_inputs():
    return [3, 40, 10, (1, 2, 1, 4), 16]
