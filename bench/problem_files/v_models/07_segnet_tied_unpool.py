import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """SegNet with max-unpooling to odd sizes; the last decoder convolutions are the encoder's transposed."""

    def __init__(self, cin, widths, classes):
        super().__init__()
        self.lrn = nn.LocalResponseNorm(4, alpha=5e-2, beta=0.6, k=2)
        chain = [cin] + widths
        self.enc = nn.ModuleDict()
        self.dec = nn.ModuleDict()
        for i, (a, b) in enumerate(zip(chain[:-1], chain[1:])):
            self.enc[f"stage{i}"] = nn.Sequential(
                nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.Hardswish(),
                nn.Conv2d(b, b, (3, 1), padding=(1, 0)), nn.Conv2d(b, b, (1, 3), padding=(0, 1)), nn.BatchNorm2d(b), nn.ReLU(),
            )
        for i in reversed(range(1, len(widths))):
            a, b = widths[i], widths[i - 1]
            self.dec[f"stage{i}"] = nn.Sequential(nn.Conv2d(a, a, 3, padding=1, groups=2), nn.BatchNorm2d(a), nn.ReLU())
        self.out_bias = nn.ParameterList([nn.Parameter(torch.zeros(c)) for c in chain[:-1]])
        self.norms = nn.ModuleList([nn.BatchNorm2d(c) for c in chain[:-1]])
        self.classify = nn.Conv2d(cin, classes, 1)
        self.pool = nn.MaxPool2d(2, 2, return_indices=True)
        self.unpool = nn.MaxUnpool2d(2, 2)

    def forward(self, x, target):
        x = self.lrn(x)
        saved = []
        for key in sorted(self.enc.keys()):
            x = self.enc[key](x)
            size = x.size()
            x, ind = self.pool(x)
            saved.append((ind, size))
        code = x
        for i in reversed(range(len(saved))):
            ind, size = saved[i]
            x = self.unpool(x, ind, output_size=size)
            key = f"stage{i}"
            if key in self.dec:
                x = self.dec[key](x)
            # tied weights: the transposed encoder kernel goes back to the narrower width
            x = F.conv_transpose2d(x, self.enc[key][0].weight, self.out_bias[i], padding=1)
            x = F.leaky_relu(self.norms[i](x), 0.1)
        logits = self.classify(x)
        loss = F.cross_entropy(logits, target, ignore_index=255, weight=None, label_smoothing=0.05)
        prob = logits.log_softmax(1)
        inter = (prob.exp() * F.one_hot(target.clamp(max=logits.size(1) - 1), logits.size(1)).permute(0, 3, 1, 2)).sum((2, 3))
        return logits, loss + 0.1 * (1 - inter.mean() / target[0].numel()), code.flatten(2).mean(-1)


def get_inputs():
    t = torch.randint(0, 7, (2, 41, 53))
    t[torch.rand(2, 41, 53) < 0.1] = 255
    return [torch.rand(2, 9, 41, 53), t]


def get_init_inputs():
    return [9, [20, 28, 36], 7]
