import torch
import torch.nn as nn
import torch.nn.functional as F


class SpectralConv2d(nn.Module):
    def __init__(self, in_channels, out_channels, modes1, modes2):
        super().__init__()
        self.out_channels = out_channels
        self.modes1 = modes1
        self.modes2 = modes2
        scale = 1 / (in_channels * out_channels)
        self.weights1 = nn.Parameter(scale * torch.rand(in_channels, out_channels, modes1, modes2, dtype=torch.cfloat))
        self.weights2 = nn.Parameter(scale * torch.rand(in_channels, out_channels, modes1, modes2, dtype=torch.cfloat))

    def compl_mul2d(self, a, w):
        # (batch, in, x, y), (in, out, x, y) -> (batch, out, x, y)
        return torch.einsum("bixy,ioxy->boxy", a, w)

    def forward(self, x):
        b = x.shape[0]
        x_ft = torch.fft.rfft2(x)
        out_ft = torch.zeros(b, self.out_channels, x.size(-2), x.size(-1) // 2 + 1, dtype=torch.cfloat, device=x.device)
        out_ft[:, :, :self.modes1, :self.modes2] = self.compl_mul2d(
            x_ft[:, :, :self.modes1, :self.modes2], self.weights1)
        out_ft[:, :, -self.modes1:, :self.modes2] = self.compl_mul2d(
            x_ft[:, :, -self.modes1:, :self.modes2], self.weights2)
        return torch.fft.irfft2(out_ft, s=(x.size(-2), x.size(-1)))


class Model(nn.Module):
    """Fourier neural operator in 2D: grid lifting, two spectral layers with complex weights, projection."""

    def __init__(self, in_channels=1, width=12, modes=6, padding=5, n_layers=2):
        super().__init__()
        self.padding = padding
        self.fc0 = nn.Linear(in_channels + 2, width)
        self.convs = nn.ModuleList(SpectralConv2d(width, width, modes, modes) for _ in range(n_layers))
        self.ws = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(n_layers))
        self.fc1 = nn.Linear(width, 32)
        self.fc2 = nn.Linear(32, 1)

    def get_grid(self, shape, device):
        b, nx, ny = shape[0], shape[1], shape[2]
        gx = torch.linspace(0, 1, nx, device=device).reshape(1, nx, 1, 1).repeat(b, 1, ny, 1)
        gy = torch.linspace(0, 1, ny, device=device).reshape(1, 1, ny, 1).repeat(b, nx, 1, 1)
        return torch.cat((gx, gy), dim=-1)

    def forward(self, x):
        grid = self.get_grid(x.shape, x.device)
        x = self.fc0(torch.cat((x, grid), dim=-1))
        x = x.permute(0, 3, 1, 2)
        x = F.pad(x, [0, self.padding, 0, self.padding])
        for i, (conv, w) in enumerate(zip(self.convs, self.ws)):
            x = conv(x) + w(x)
            if i < len(self.convs) - 1:
                x = F.gelu(x)
        x = x[..., :-self.padding, :-self.padding]
        x = x.permute(0, 2, 3, 1)
        return self.fc2(F.gelu(self.fc1(x)))


def get_inputs():
    return [torch.randn(2, 29, 32, 1)]


def get_init_inputs():
    return [1, 12, 6, 5, 2]
