import torch
import torch.nn as nn
import torch.nn.functional as F


def round_ste(x):
    return (x.round() - x).detach() + x


def grad_scale(x, scale):
    y = x * scale
    return (x - y).detach() + y


class LSQ(nn.Module):
    def __init__(self, bits, init, signed):
        super().__init__()
        self.qn, self.qp = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2 ** bits - 1)
        self.s = nn.Parameter(torch.tensor(float(init)))

    def forward(self, x):
        g = 1.0 / (x.numel() * self.qp) ** 0.5
        s = grad_scale(self.s, g)
        x = torch.clamp(x / s, self.qn, self.qp)
        return round_ste(x) * s


class QConvBN(nn.Module):
    def __init__(self, cin, cout, stride, bits, groups=1):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride, 1, groups=groups, bias=False)
        self.gamma = nn.Parameter(torch.ones(cout))
        self.beta = nn.Parameter(torch.zeros(cout))
        self.register_buffer("running_mean", torch.randn(cout) * 0.05)
        self.register_buffer("running_var", torch.rand(cout) * 0.3 + 0.2)
        self.act = LSQ(bits, 0.05, signed=False)
        self.qmax = 2 ** (bits - 1) - 1

    def fold(self):
        inv = self.gamma * torch.rsqrt(self.running_var + 1e-5)
        return self.conv.weight * inv.view(-1, 1, 1, 1), self.beta - self.running_mean * inv

    def forward(self, x):
        w, b = self.fold()
        scale = w.detach().abs().amax(dim=(1, 2, 3), keepdim=True) / self.qmax
        wq = round_ste((w / scale).clamp(-self.qmax, self.qmax)) * scale
        x = F.conv2d(x, wq, b, self.conv.stride, self.conv.padding, groups=self.conv.groups)
        return self.act(F.relu6(x))


class Model(nn.Module):
    """Quantisation-aware training step: BN folding, per-channel weights, LSQ activations, bit-width penalty."""

    def __init__(self, channels, bits, num_classes):
        super().__init__()
        self.input_q = LSQ(8, 0.02, signed=True)
        c = channels
        self.l1 = QConvBN(3, c, 2, bits)
        self.l2 = QConvBN(c, c, 1, bits, groups=c)
        self.l3 = QConvBN(c, 2 * c, 2, bits)
        self.fc = nn.Linear(2 * c, num_classes)

    def forward(self, x, y, teacher_logits):
        h = self.l3(self.l2(self.l1(self.input_q(x))))
        h = F.adaptive_avg_pool2d(h, 1).flatten(1)
        s = self.fc.weight.detach().abs().max() / 127
        wq = self.fc.weight + ((self.fc.weight / s).round().clamp(-128, 127) * s - self.fc.weight).detach()
        logits = F.linear(h, wq, self.fc.bias)
        kd = F.kl_div(logits.log_softmax(-1), teacher_logits.softmax(-1), reduction="batchmean")
        size = sum(m.act.s.abs().log() for m in (self.l1, self.l2, self.l3))
        return F.cross_entropy(logits, y) + kd - 1e-3 * size


def get_inputs():
    return [torch.randn(6, 3, 50, 46), torch.randint(0, 12, (6,)), torch.randn(6, 12)]


def get_init_inputs():
    return [20, 4, 12]
