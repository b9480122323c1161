import torch
import torch.nn as nn
import torch.nn.functional as F


def spectral_crop(x_hat, h, w):
    """Crop a centred (fftshifted) spectrum to h x w."""
    H, W = x_hat.shape[-2:]
    top = H // 2 - h // 2
    left = W // 2 - w // 2
    return x_hat[..., top:top + h, left:left + w]


def remove_redundancy(y):
    """Make corner cases of an unshifted spectrum Hermitian: real dc/nyquist entries, conjugate edges."""
    H, W = y.shape[-2:]
    y = y.clone()
    idx = [(0, 0)]
    if H % 2 == 0:
        idx.append((H // 2, 0))
    if W % 2 == 0:
        idx.append((0, W // 2))
    if H % 2 == 0 and W % 2 == 0:
        idx.append((H // 2, W // 2))
    for i, j in idx:
        y[..., i, j] = y[..., i, j].real.clone()
    if W % 2 == 0:
        half = (H - 1) // 2
        y[..., H - half:, W // 2] = y[..., 1:half + 1, W // 2].flip(-1).conj()
    if H % 2 == 0:
        half = (W - 1) // 2
        y[..., H // 2, W - half:] = y[..., H // 2, 1:half + 1].flip(-1).conj()
    return y


class SpectralPool(nn.Module):
    def __init__(self, size, learn_cutoff=True):
        super().__init__()
        self.size = size
        self.cutoff = nn.Parameter(torch.tensor(0.8)) if learn_cutoff else None

    def forward(self, x):
        h, w = self.size
        H, W = x.shape[-2:]
        x_hat = torch.fft.fftshift(torch.fft.fft2(x), dim=(-2, -1))
        y = spectral_crop(x_hat, h, w)
        if self.cutoff is not None:
            fy = torch.arange(h, device=x.device, dtype=x.dtype) - h // 2
            fx = torch.arange(w, device=x.device, dtype=x.dtype) - w // 2
            r = torch.sqrt((fy[:, None] / h) ** 2 + (fx[None, :] / w) ** 2)
            y = y * torch.sigmoid((self.cutoff - r) * 12.0)
        y = torch.fft.ifftshift(y, dim=(-2, -1))
        y = remove_redundancy(y)
        return torch.fft.ifft2(y).real * (h * w / (H * W))


class Model(nn.Module):
    """Convolutional net whose downsampling layers crop the spectrum (spectral pooling)."""

    def __init__(self, cin=3, width=12, sizes=((22, 20), (11, 9))):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, width, 3, padding=1)
        self.pool1 = SpectralPool(sizes[0])
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.pool2 = SpectralPool(sizes[1], learn_cutoff=False)
        self.fc = nn.Linear(2 * width, 10)

    def forward(self, x):
        x = self.pool1(F.relu(self.conv1(x)))
        x = self.pool2(F.relu(self.conv2(x)))
        return self.fc(x.amax(dim=(-2, -1))), x


def get_inputs():
    return [torch.randn(2, 3, 35, 32)]


def get_init_inputs():
    return [3, 12, ((22, 20), (11, 9))]
