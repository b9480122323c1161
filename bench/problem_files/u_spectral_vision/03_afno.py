import torch
import torch.nn as nn
import torch.nn.functional as F


class AFNO2D(nn.Module):
    def __init__(self, hidden_size, num_blocks=4, sparsity_threshold=0.01, hard_thresholding_fraction=1.0,
                 hidden_size_factor=1):
        super().__init__()
        assert hidden_size % num_blocks == 0
        self.hidden_size = hidden_size
        self.sparsity_threshold = sparsity_threshold
        self.num_blocks = num_blocks
        self.block_size = hidden_size // num_blocks
        self.frac = hard_thresholding_fraction
        self.factor = hidden_size_factor
        scale = 0.1
        bs, nb, f = self.block_size, num_blocks, hidden_size_factor
        self.w1 = nn.Parameter(scale * torch.randn(2, nb, bs, bs * f))
        self.b1 = nn.Parameter(scale * torch.randn(2, nb, bs * f))
        self.w2 = nn.Parameter(scale * torch.randn(2, nb, bs * f, bs))
        self.b2 = nn.Parameter(scale * torch.randn(2, nb, bs))

    def forward(self, x):
        bias = x
        B, H, W, C = x.shape
        x = torch.fft.rfft2(x, dim=(1, 2), norm="ortho")
        x = x.reshape(B, H, W // 2 + 1, self.num_blocks, self.block_size)

        shape1 = [B, H, W // 2 + 1, self.num_blocks, self.block_size * self.factor]
        o1_real = torch.zeros(shape1, device=x.device)
        o1_imag = torch.zeros(shape1, device=x.device)
        o2_real = torch.zeros(x.shape, device=x.device)
        o2_imag = torch.zeros(x.shape, device=x.device)

        total_modes = H // 2 + 1
        kept = int(total_modes * self.frac)
        r = slice(total_modes - kept, total_modes + kept)

        def mul(a, w):
            return torch.einsum("...bi,bio->...bo", a, w)

        o1_real[:, r, :kept] = F.relu(
            mul(x[:, r, :kept].real, self.w1[0]) - mul(x[:, r, :kept].imag, self.w1[1]) + self.b1[0])
        o1_imag[:, r, :kept] = F.relu(
            mul(x[:, r, :kept].imag, self.w1[0]) + mul(x[:, r, :kept].real, self.w1[1]) + self.b1[1])
        o2_real[:, r, :kept] = (
            mul(o1_real[:, r, :kept], self.w2[0]) - mul(o1_imag[:, r, :kept], self.w2[1]) + self.b2[0])
        o2_imag[:, r, :kept] = (
            mul(o1_imag[:, r, :kept], self.w2[0]) + mul(o1_real[:, r, :kept], self.w2[1]) + self.b2[1])

        x = torch.stack([o2_real, o2_imag], dim=-1)
        x = F.softshrink(x, lambd=self.sparsity_threshold)
        x = torch.view_as_complex(x)
        x = x.reshape(B, H, W // 2 + 1, C)
        x = torch.fft.irfft2(x, s=(H, W), dim=(1, 2), norm="ortho")
        return x + bias


class Model(nn.Module):
    """Adaptive Fourier neural operator block (FourCastNet): block-diagonal complex MLP in frequency, softshrink."""

    def __init__(self, img_size=(40, 72), patch=4, in_chans=3, dim=48, num_blocks=4, frac=0.8):
        super().__init__()
        self.patch = patch
        self.h, self.w = img_size[0] // patch, img_size[1] // patch
        self.embed = nn.Conv2d(in_chans, dim, patch, stride=patch)
        self.pos = nn.Parameter(0.02 * torch.randn(1, self.h * self.w, dim))
        self.norm1 = nn.LayerNorm(dim)
        self.filter = AFNO2D(dim, num_blocks, 0.01, frac)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim * 2), nn.GELU(), nn.Linear(dim * 2, dim))
        self.head = nn.Linear(dim, in_chans * patch * patch, bias=False)

    def forward(self, x):
        B = x.shape[0]
        x = self.embed(x).flatten(2).transpose(1, 2) + self.pos
        x = x.reshape(B, self.h, self.w, -1)
        residual = x
        x = self.filter(self.norm1(x))
        x = x + residual          # double skip
        residual = x
        x = self.mlp(self.norm2(x)) + residual
        x = self.head(x)
        p = self.patch
        x = x.view(B, self.h, self.w, p, p, -1).permute(0, 5, 1, 3, 2, 4)
        return x.reshape(B, -1, self.h * p, self.w * p)


def get_inputs():
    return [torch.randn(2, 3, 40, 72)]


def get_init_inputs():
    return [(40, 72), 4, 3, 48, 4, 0.8]
