import torch
import torch.nn as nn
import torch.nn.functional as F


class ComplexConv2d(nn.Module):
    def __init__(self, cin, cout, k, padding=0, stride=1):
        super().__init__()
        self.re = nn.Conv2d(cin, cout, k, stride=stride, padding=padding)
        self.im = nn.Conv2d(cin, cout, k, stride=stride, padding=padding)

    def forward(self, z):
        return torch.complex(self.re(z.real) - self.im(z.imag), self.re(z.imag) + self.im(z.real))


class ComplexBatchNorm2d(nn.Module):
    """Whitening complex batch norm (Trabelsi et al.), training statistics, running stats kept."""

    def __init__(self, c, eps=1e-5, momentum=0.1):
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.zeros(c, 3))
        self.bias = nn.Parameter(torch.zeros(c, 2))
        with torch.no_grad():
            self.weight[:, :2] = 2 ** -0.5
        self.register_buffer("running_mean", torch.zeros(c, dtype=torch.complex64))
        self.register_buffer("running_covar", torch.zeros(c, 3))
        self.running_covar[:, :2] = 1.4142135

    def forward(self, z):
        if self.training:
            mean = z.mean(dim=(0, 2, 3))
            with torch.no_grad():
                self.running_mean.mul_(1 - self.momentum).add_(mean, alpha=self.momentum)
        else:
            mean = self.running_mean
        z = z - mean[None, :, None, None]
        if self.training:
            n = z.numel() / z.size(1)
            Crr = z.real.pow(2).sum((0, 2, 3)) / n + self.eps
            Cii = z.imag.pow(2).sum((0, 2, 3)) / n + self.eps
            Cri = (z.real * z.imag).mean((0, 2, 3))
            with torch.no_grad():
                new = torch.stack([Crr, Cii, Cri], dim=1) * (n / (n - 1))
                self.running_covar.lerp_(new, self.momentum)
        else:
            Crr, Cii, Cri = (self.running_covar + self.eps * self.running_covar.new_tensor([1., 1., 0.])).unbind(1)
        det = Crr * Cii - Cri.pow(2)
        s = torch.sqrt(det)
        t = torch.sqrt(Cii + Crr + 2 * s)
        inv = 1.0 / (s * t)
        Rrr, Rii, Rri = (Cii + s) * inv, (Crr + s) * inv, -Cri * inv
        v = lambda a: a[None, :, None, None]
        re = v(Rrr) * z.real + v(Rri) * z.imag
        im = v(Rii) * z.imag + v(Rri) * z.real
        w, b = self.weight, self.bias
        return torch.complex(v(w[:, 0]) * re + v(w[:, 2]) * im + v(b[:, 0]),
                             v(w[:, 2]) * re + v(w[:, 1]) * im + v(b[:, 1]))


class ModReLU(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.b = nn.Parameter(torch.full((c, 1, 1), -0.05))

    def forward(self, z):
        mag = torch.sqrt(z.real.square() + z.imag.square() + 1e-6)
        return z * (F.relu(mag + self.b) / mag)


class Model(nn.Module):
    """Two complex convolution layers with complex whitening batch norm and modReLU; magnitude features out."""

    def __init__(self, cin=2, width=10, classes=7):
        super().__init__()
        self.c1 = ComplexConv2d(cin, width, 3, padding=1)
        self.bn1 = ComplexBatchNorm2d(width)
        self.a1 = ModReLU(width)
        self.c2 = ComplexConv2d(width, width, 3, padding=1, stride=2)
        self.bn2 = ComplexBatchNorm2d(width)
        self.a2 = ModReLU(width)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x):
        # x: (B, C, H, W, 2)
        z = torch.view_as_complex(x)
        z = self.a1(self.bn1(self.c1(z)))
        z = self.a2(self.bn2(self.c2(z)))
        pooled = z.mean((-2, -1))
        return self.head(torch.cat([pooled.real, pooled.imag], dim=-1)), torch.view_as_real(z)


def get_inputs():
    return [torch.randn(3, 2, 25, 23, 2)]


def get_init_inputs():
    return [2, 10, 7]
