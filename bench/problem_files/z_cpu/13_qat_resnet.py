import torch
import torch.nn as nn
import torch.nn.functional as F


def round_pass(x):
    return x + (torch.round(x) - x).detach()


def grad_scale(x, scale):
    return (x - x * scale).detach() + x * scale


class LSQWeightQuantizer(nn.Module):
    """Learned step size per output channel, symmetric signed range."""

    def __init__(self, out_channels, bits=8):
        super().__init__()
        self.qn, self.qp = -2 ** (bits - 1), 2 ** (bits - 1) - 1
        self.s = nn.Parameter(torch.ones(out_channels))

    def init_from(self, w):
        with torch.no_grad():
            self.s.copy_(2 * w.abs().flatten(1).mean(1) / (self.qp ** 0.5))

    def forward(self, w):
        g = 1.0 / (w[0].numel() * self.qp) ** 0.5
        s = grad_scale(self.s, g).view(-1, 1, 1, 1)
        w = w / s
        w = torch.clamp(w, self.qn, self.qp)
        return round_pass(w) * s


class EMAActQuantizer(nn.Module):
    """Asymmetric per-tensor fake quantisation with a fixed observed range (frozen observer)."""

    def __init__(self, bits=8, lo=0.0, hi=6.0):
        super().__init__()
        self.n = 2 ** bits - 1
        self.register_buffer("lo", torch.tensor(lo))
        self.register_buffer("hi", torch.tensor(hi))

    def forward(self, x):
        scale = (self.hi - self.lo) / self.n
        zero_point = torch.round(-self.lo / scale).clamp(0, self.n)
        q = round_pass(x / scale) + zero_point
        q = torch.clamp(q, 0, self.n)
        return (q - zero_point) * scale


class QConvBN(nn.Module):
    """Convolution with the batch-norm folded into the quantised weight (frozen statistics)."""

    def __init__(self, c1, c2, k=3, stride=1, relu=True, bits=8):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(c2, c1, k, k) * (2.0 / (c1 * k * k)) ** 0.5)
        self.gamma = nn.Parameter(torch.ones(c2))
        self.beta = nn.Parameter(torch.zeros(c2))
        self.register_buffer("running_mean", torch.randn(c2) * 0.1)
        self.register_buffer("running_var", torch.rand(c2) + 0.5)
        self.stride, self.pad, self.relu = stride, k // 2, relu
        self.wq = LSQWeightQuantizer(c2, bits)
        self.wq.init_from(self.weight.data)
        self.aq = EMAActQuantizer(bits, 0.0 if relu else -4.0, 6.0 if relu else 4.0)

    def forward(self, x):
        inv = self.gamma * torch.rsqrt(self.running_var + 1e-5)
        w = self.weight * inv.view(-1, 1, 1, 1)
        b = self.beta - self.running_mean * inv
        y = F.conv2d(x, self.wq(w), b, self.stride, self.pad)
        if self.relu:
            y = F.relu6(y)
        return self.aq(y)


class QBasicBlock(nn.Module):
    def __init__(self, c1, c2, stride):
        super().__init__()
        self.conv1 = QConvBN(c1, c2, 3, stride)
        self.conv2 = QConvBN(c2, c2, 3, 1, relu=False)
        self.short = QConvBN(c1, c2, 1, stride, relu=False) if stride != 1 or c1 != c2 else nn.Identity()
        self.aq = EMAActQuantizer()

    def forward(self, x):
        y = self.conv2(self.conv1(x))
        return self.aq(F.relu6(y + self.short(x)))


class Model(nn.Module):
    """Quantisation-aware ResNet (LSQ weights, folded batch-norm, fake-quantised activations) with distillation."""

    def __init__(self, widths, blocks, num_classes, temperature):
        super().__init__()
        self.T = temperature
        self.inq = EMAActQuantizer(8, -3.0, 3.0)
        self.stem = QConvBN(3, widths[0])
        layers, c = [], widths[0]
        for i, w in enumerate(widths):
            for j in range(blocks):
                layers.append(QBasicBlock(c, w, 2 if (i > 0 and j == 0) else 1))
                c = w
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(c, num_classes)

    def forward(self, x, labels, teacher_logits):
        x = self.stem(self.inq(x))
        x = self.layers(x)
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        logits = self.fc(x)
        ce = F.cross_entropy(logits, labels)
        kd = F.kl_div(F.log_softmax(logits / self.T, 1), F.log_softmax(teacher_logits / self.T, 1),
                      reduction="batchmean", log_target=True) * self.T ** 2
        return 0.3 * ce + 0.7 * kd, logits


def get_inputs():
    return [torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,)), torch.randn(16, 10) * 3]


def get_init_inputs():
    return [[16, 32, 64], 2, 10, 4.0]
