import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvDropoutNormReLU(nn.Module):
    def __init__(self, input_channels, output_channels, kernel_size, stride):
        super().__init__()
        self.conv = nn.Conv3d(input_channels, output_channels, kernel_size, stride, padding=(kernel_size - 1) // 2,
                              bias=True)
        self.norm = nn.InstanceNorm3d(output_channels, eps=1e-5, affine=True)
        self.nonlin = nn.LeakyReLU(negative_slope=1e-2, inplace=True)

    def forward(self, x):
        return self.nonlin(self.norm(self.conv(x)))


class StackedConvBlocks(nn.Module):
    def __init__(self, num_convs, input_channels, output_channels, kernel_size, initial_stride):
        super().__init__()
        self.convs = nn.Sequential(
            ConvDropoutNormReLU(input_channels, output_channels, kernel_size, initial_stride),
            *[ConvDropoutNormReLU(output_channels, output_channels, kernel_size, 1) for _ in range(1, num_convs)]
        )

    def forward(self, x):
        return self.convs(x)


class UNetDecoder(nn.Module):
    def __init__(self, features, strides, num_classes, n_conv_per_stage, deep_supervision=True):
        super().__init__()
        self.deep_supervision = deep_supervision
        n_stages = len(features)
        stages, transpconvs, seg_layers = [], [], []
        for s in range(1, n_stages):
            below, skip = features[-s], features[-(s + 1)]
            stride = strides[-s]
            transpconvs.append(nn.ConvTranspose3d(below, skip, stride, stride, bias=True))
            stages.append(StackedConvBlocks(n_conv_per_stage, 2 * skip, skip, 3, 1))
            seg_layers.append(nn.Conv3d(skip, num_classes, 1, 1, 0, bias=True))
        self.stages = nn.ModuleList(stages)
        self.transpconvs = nn.ModuleList(transpconvs)
        self.seg_layers = nn.ModuleList(seg_layers)

    def forward(self, skips):
        lres_input = skips[-1]
        seg_outputs = []
        for s in range(len(self.stages)):
            x = self.transpconvs[s](lres_input)
            x = torch.cat((x, skips[-(s + 2)]), 1)
            x = self.stages[s](x)
            if self.deep_supervision:
                seg_outputs.append(self.seg_layers[s](x))
            elif s == (len(self.stages) - 1):
                seg_outputs.append(self.seg_layers[-1](x))
            lres_input = x
        return seg_outputs[::-1]


class MemoryEfficientSoftDiceLoss(nn.Module):
    def __init__(self, batch_dice=False, do_bg=False, smooth=1e-5):
        super().__init__()
        self.do_bg, self.batch_dice, self.smooth = do_bg, batch_dice, smooth

    def forward(self, x, y):
        x = torch.softmax(x, 1)
        axes = tuple(range(2, x.ndim))
        with torch.no_grad():
            y_onehot = torch.zeros(x.shape, device=x.device, dtype=torch.bool)
            y_onehot.scatter_(1, y.long(), 1)
            if not self.do_bg:
                y_onehot = y_onehot[:, 1:]
            sum_gt = y_onehot.sum(axes)
        if not self.do_bg:
            x = x[:, 1:]
        intersect = (x * y_onehot).sum(axes)
        sum_pred = x.sum(axes)
        if self.batch_dice:
            intersect, sum_pred, sum_gt = intersect.sum(0), sum_pred.sum(0), sum_gt.sum(0)
        dc = (2 * intersect + self.smooth) / torch.clip(sum_gt + sum_pred + self.smooth, 1e-8)
        return -dc.mean()


class Model(nn.Module):
    """nnU-Net full-resolution 3-D plain conv U-Net with deep supervision and Dice + CE."""

    def __init__(self, in_channels, features, strides, num_classes):
        super().__init__()
        stages = []
        c = in_channels
        for f, s in zip(features, strides):
            stages.append(StackedConvBlocks(2, c, f, 3, s))
            c = f
        self.encoder = nn.ModuleList(stages)
        self.decoder = UNetDecoder(features, strides, num_classes, 2)
        self.dice = MemoryEfficientSoftDiceLoss()
        weights = torch.tensor([1 / (2 ** i) for i in range(len(features) - 1)])
        weights[-1] = 0
        self.register_buffer("ds_weights", weights / weights.sum())
        for m in self.modules():
            if isinstance(m, (nn.Conv3d, nn.ConvTranspose3d)):
                nn.init.kaiming_normal_(m.weight, a=1e-2)
                nn.init.constant_(m.bias, 0)

    def forward(self, x, target):
        skips = []
        for s in self.encoder:
            x = s(x)
            skips.append(x)
        outputs = self.decoder(skips)
        loss = 0.0
        for i, out in enumerate(outputs):
            t = F.interpolate(target.float(), size=out.shape[2:], mode="nearest")
            ce = F.cross_entropy(out, t[:, 0].long())
            loss = loss + self.ds_weights[i] * (ce + self.dice(out, t))
        return loss, outputs[0]


def get_inputs():
    return [torch.randn(2, 1, 96, 96, 96), torch.randint(0, 4, (2, 1, 96, 96, 96))]


def get_init_inputs():
    return [1, [32, 64, 128, 256, 320], [1, 2, 2, 2, 2], 4]
