import torch
import torch.nn as nn
import torch.nn.functional as F


class SpatioTemporalConv(nn.Sequential):
    """(2+1)D factorised convolution with the parameter-matched middle width of R(2+1)D."""

    def __init__(self, cin, cout, stride=(1, 1)):
        mid = (3 * 3 * 3 * cin * cout) // (3 * 3 * cin + 3 * cout)
        super().__init__(
            nn.Conv3d(cin, mid, (1, 3, 3), stride=(1, stride[1], stride[1]), padding=(0, 1, 1), bias=False),
            nn.BatchNorm3d(mid),
            nn.ReLU(inplace=True),
            nn.Conv3d(mid, cout, (3, 1, 1), stride=(stride[0], 1, 1), padding=(1, 0, 0), bias=False),
        )


class ResUnit(nn.Module):
    def __init__(self, cin, cout, stride=(1, 1)):
        super().__init__()
        self.conv1 = SpatioTemporalConv(cin, cout, stride)
        self.bn1 = nn.BatchNorm3d(cout)
        self.conv2 = SpatioTemporalConv(cout, cout)
        self.bn2 = nn.BatchNorm3d(cout)
        self.relu = nn.ReLU(inplace=True)
        self.down = None
        if cin != cout or stride != (1, 1):
            self.down = nn.Sequential(
                nn.Conv3d(cin, cout, 1, stride=(stride[0], stride[1], stride[1]), bias=False), nn.BatchNorm3d(cout)
            )

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.down is not None:
            identity = self.down(x)
        out += identity
        return self.relu(out)


def temporal_shift(x, fold_div=8):
    """TSM: a part of the channels one frame back, another part one frame forward."""
    fold = x.size(1) // fold_div
    out = torch.zeros_like(x)
    out[:, :fold, :-1] = x[:, :fold, 1:]
    out[:, fold:2 * fold, 1:] = x[:, fold:2 * fold, :-1]
    out[:, 2 * fold:] = x[:, 2 * fold:]
    return out


class Model(nn.Module):
    """R(2+1)D clip encoder with a temporal shift and a ConvTranspose3d decoder: labels and a voxel mask."""

    def __init__(self, cin, width, classes):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv3d(cin, width, (1, 5, 5), stride=(1, 2, 2), padding=(0, 2, 2), bias=False),
            nn.BatchNorm3d(width),
            nn.ReLU(inplace=True),
        )
        self.pool = nn.MaxPool3d(2, stride=2, ceil_mode=True)
        self.layer1 = ResUnit(width, width)
        self.layer2 = ResUnit(width, 2 * width, stride=(2, 2))
        self.up1 = nn.ConvTranspose3d(2 * width, width, 3, stride=2, padding=1)
        self.up2 = nn.ConvTranspose3d(2 * width, width, 2, stride=2)
        self.mask = nn.Conv3d(width, 2, 1)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, clip):
        s = self.stem(clip)
        p = self.layer1(self.pool(s))
        q = self.layer2(temporal_shift(p))
        up = self.up1(q, output_size=p.shape[-3:])
        up = F.relu(self.up2(torch.cat([up, p], dim=1)))
        up = up[:, :, :s.size(2), :s.size(3), :s.size(4)] + s
        mask = F.interpolate(self.mask(up), size=clip.shape[-3:], mode="trilinear", align_corners=False)
        logits = self.head(q.mean(dim=(-1, -2)).amax(dim=-1))
        return {"logits": logits, "mask": mask.sigmoid()}


def get_inputs():
    return [torch.randn(1, 3, 7, 37, 45)]


def get_init_inputs():
    return [3, 10, 11]
