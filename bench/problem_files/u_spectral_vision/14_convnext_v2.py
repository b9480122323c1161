import torch
import torch.nn as nn
import torch.nn.functional as F


class LayerNorm(nn.Module):
    """LayerNorm for channels_last or channels_first."""

    def __init__(self, dim, eps=1e-6, data_format="channels_last"):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.eps = eps
        self.data_format = data_format
        self.normalized_shape = (dim,)

    def forward(self, x):
        if self.data_format == "channels_last":
            return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class GRN(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gamma = nn.Parameter(0.1 * torch.randn(1, 1, 1, dim))
        self.beta = nn.Parameter(torch.zeros(1, 1, 1, dim))

    def forward(self, x):
        gx = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
        nx = gx / (gx.mean(dim=-1, keepdim=True) + 1e-6)
        return self.gamma * (x * nx) + self.beta + x


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, kernel_size=7, padding=3, groups=dim)
        self.norm = LayerNorm(dim)
        self.pwconv1 = nn.Linear(dim, 4 * dim)
        self.act = nn.GELU()
        self.grn = GRN(4 * dim)
        self.pwconv2 = nn.Linear(4 * dim, dim)

    def forward(self, x):
        inp = x
        x = self.dwconv(x)
        x = x.permute(0, 2, 3, 1)  # NCHW -> NHWC
        x = self.pwconv2(self.grn(self.act(self.pwconv1(self.norm(x)))))
        x = x.permute(0, 3, 1, 2)
        return inp + x


class Model(nn.Module):
    """ConvNeXt-V2: patch stem, one block, downsampling, one block, pooled head; global response norm."""

    def __init__(self, in_chans=3, dims=(24, 40), num_classes=9):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(in_chans, dims[0], 4, 4),
                                  LayerNorm(dims[0], data_format="channels_first"))
        self.stage0 = Block(dims[0])
        self.down = nn.Sequential(LayerNorm(dims[0], data_format="channels_first"),
                                  nn.Conv2d(dims[0], dims[1], 2, 2))
        self.stage1 = Block(dims[1])
        self.norm = nn.LayerNorm(dims[1], eps=1e-6)
        self.head = nn.Linear(dims[1], num_classes)

    def forward(self, x):
        x = self.stage0(self.stem(x))
        x = self.stage1(self.down(x))
        return self.head(self.norm(x.mean([-2, -1])))


def get_inputs():
    return [torch.randn(2, 3, 72, 60)]


def get_init_inputs():
    return [3, (24, 40), 9]
