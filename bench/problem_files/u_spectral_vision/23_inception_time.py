import torch
import torch.nn as nn
import torch.nn.functional as F


class InceptionModule(nn.Module):
    def __init__(self, cin, n_filters, kernel_sizes=(9, 19, 39), bottleneck=16):
        super().__init__()
        self.bottleneck = nn.Conv1d(cin, bottleneck, 1, bias=False) if cin > 1 else nn.Identity()
        c = bottleneck if cin > 1 else 1
        self.convs = nn.ModuleList(nn.Conv1d(c, n_filters, k, padding="same", bias=False) for k in kernel_sizes)
        self.pool = nn.MaxPool1d(3, stride=1, padding=1)
        self.conv_pool = nn.Conv1d(cin, n_filters, 1, bias=False)
        self.bn = nn.BatchNorm1d(n_filters * (len(kernel_sizes) + 1))

    def forward(self, x):
        z = self.bottleneck(x)
        outs = [conv(z) for conv in self.convs]
        outs.append(self.conv_pool(self.pool(x)))
        return F.relu(self.bn(torch.cat(outs, dim=1)))


class Model(nn.Module):
    """InceptionTime classifier: three inception modules with a residual shortcut, masked global average pooling."""

    def __init__(self, cin=4, n_filters=8, depth=3, classes=11):
        super().__init__()
        width = n_filters * 4
        self.inception = nn.ModuleList(
            [InceptionModule(cin if d == 0 else width, n_filters) for d in range(depth)])
        self.shortcut = nn.Sequential(nn.Conv1d(cin, width, 1, bias=False), nn.BatchNorm1d(width))
        self.fc = nn.Linear(width, classes)

    def forward(self, x, lengths):
        t = x.shape[-1]
        mask = (torch.arange(t, device=x.device)[None, :] < lengths[:, None]).unsqueeze(1)
        x = x * mask
        # instance normalisation over the valid part
        n = lengths.view(-1, 1, 1).to(x.dtype)
        mu = x.sum(-1, keepdim=True) / n
        var = ((x - mu).pow(2) * mask).sum(-1, keepdim=True) / n
        x = torch.where(mask, (x - mu) * torch.rsqrt(var + 1e-5), torch.zeros_like(x))
        res = x
        for m in self.inception:
            x = m(x)
        x = F.relu(x + self.shortcut(res))
        x = x.masked_fill(~mask, 0).sum(-1) / n.squeeze(-1)
        return self.fc(x)


def get_inputs():
    return [torch.randn(4, 4, 109), torch.tensor([109, 64, 87, 23])]


def get_init_inputs():
    return [4, 8, 3, 11]
